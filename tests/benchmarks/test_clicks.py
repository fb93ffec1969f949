"""Simulated people click as they are said to, and their labels are counted right."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.records import Query
from studies.clicks import SHOWN, Side, agreement_with, coec, labels_of, large_log, people, rows_of

QUERIES = [Query(f"q{number}", f"what is {number}?") for number in range(60)]
DOCS = [f"d{number}" for number in range(SHOWN)]
SHOWN_TO = {query.query_id: DOCS for query in QUERIES}
TRUE = {
    query.query_id: {f"d{number % 4}": 2, f"d{5 + number % 3}": 1, "never shown": 1}
    for number, query in enumerate(QUERIES)
}
SIDE = Side(QUERIES, TRUE, [], np.zeros((0, 0)))


def test_people_look_down_and_choose_as_they_are_said_to() -> None:
    log = list(people(SIDE, SHOWN_TO, 300))
    assert sum("action_name" not in one for one in log) == 300 * len(QUERIES)
    clicks = [one for one in log if "action_name" in one]
    for rank in (1, 3, 8):
        some = [one for one in clicks if one["event_attributes"]["position"]["ordinal"] == rank]
        good = [
            one
            for one in some
            if one["event_attributes"]["object"]["object_id"] in TRUE[one["query_id"].rpartition("-")[0]]
        ]
        relevant = sum(f"d{rank - 1}" in grades for grades in TRUE.values())
        assert len(good) / (300 * max(relevant, 1)) == pytest.approx(0.75 / rank, rel=0.15)
        assert len(some) - len(good) == pytest.approx(
            0.075 * 300 * (len(QUERIES) - relevant) / rank, rel=0.25, abs=15
        )


def test_labels_come_of_clicks_alone_and_are_compared_with_the_truth() -> None:
    labels = labels_of(SIDE, SHOWN_TO)
    found = {name: agreement_with(TRUE, one) for name, one in labels.items()}
    assert found["all true labels"] == {"queries": 60, "precision": 1, "recall": 1}
    assert found["true labels of what was shown"]["recall"] == pytest.approx(2 / 3)
    assert found["clicks, 100 sessions"]["precision"] > 0.95
    assert found["clicks, 100 sessions"]["recall"] > 0.55
    assert found["clicks, 10 sessions"]["recall"] < found["clicks, 100 sessions"]["recall"]


def test_coec_compares_with_what_a_rank_usually_gets() -> None:
    log = list(people(SIDE, SHOWN_TO, 100))
    judged = coec(log, SHOWN_TO)
    assert agreement_with(TRUE, judged)["recall"] > 0.5
    assert all(set(grades) == set(DOCS) for grades in judged.values())


def test_the_large_log_is_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.clicks.EVENTS", 500)
    assert 500 <= len(list(large_log())) < 520


def test_shares_are_of_what_true_labels_gain() -> None:
    row = {"queries": 9, "precision": 1.0, "recall": 0.5, "weights": 0.02, "applied": True, "memory": 0.0}
    half = row | {"weights": 0.01, "applied": False}
    rows = list(rows_of("set", {"true labels of what was shown": row, "clicks": half}))
    assert rows[1] == ["set", "clicks", "9", "1.00", "0.50", "(+0.0100)", "50%", "+0.0000", ""]
