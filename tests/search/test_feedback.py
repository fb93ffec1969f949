"""RM3 on the worked example of the specification."""

from __future__ import annotations

import pytest

from hybridr.search import feedback
from hybridr.search.feedback import rm3

FREQUENCIES = {"covid": 5, "virus": 5, "vaccine": 5, "the": 95, "market": 5, "stock": 5, "spread": 5}
DOCUMENTS = [
    ({"covid": 3, "virus": 2, "vaccine": 1, "the": 9}, 4.0),
    ({"virus": 4, "market": 1, "stock": 1}, 2.0),
]


def test_worked_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "FEEDBACK_TERMS", 3)
    # RM1: covid 3/6*4, virus 2/6*4 + 4/6*2, vaccine 1/6*4; market and stock (1/6*2) are cut at three terms
    found = rm3(["covid", "spread"], DOCUMENTS, FREQUENCIES, 100)
    assert found == {
        "covid": pytest.approx(0.5 * 0.5 + 0.5 * 0.375),
        "spread": pytest.approx(0.25),
        "virus": pytest.approx(0.25),
        "vaccine": pytest.approx(0.0625),
    }
    assert sum(found.values()) == pytest.approx(1.0)


def test_without_feedback_the_query_stays() -> None:
    assert rm3(["a1", "a1", "b1"], [], {}, 10) == {"a1": pytest.approx(2 / 3), "b1": pytest.approx(1 / 3)}
    assert rm3(["covid"], [({"the": 9}, 1.0)], FREQUENCIES, 100) == {"covid": 1.0}


def test_other_scripts_need_the_filter_off() -> None:
    documents = [({"病毒": 2, "疫苗": 1}, 1.0)]
    frequencies = {"病毒": 1, "疫苗": 1}
    assert rm3(["病毒"], documents, frequencies, 100) == {"病毒": 1.0}
    found = rm3(["病毒"], documents, frequencies, 100, words_only=False)
    assert found == {"病毒": pytest.approx(0.5 + 0.5 * 2 / 3), "疫苗": pytest.approx(0.5 / 3)}
