"""Pools of documents: who is in them, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.records import Hit, Hits
from hybridr.serving.page.workbench import SideBySide, blind_order, interleaved
from support.odd_ids import FORGING


class Compared(SideBySide):
    """Two systems: by the one nothing fits."""

    def __init__(self) -> None:
        pass

    def search(self, name: str) -> Any:
        return self.none if name == "hybrid" else self.one

    @staticmethod
    def none(*_: object, **__: object) -> Hits:
        found = Hits((), 0.4)
        found.nearest = Hit("d2", 0.4, 1, confidence=0.3)
        return found

    @staticmethod
    def one(*_: object, **__: object) -> Hits:
        return Hits([Hit("d1", 7.0, 1)], 7.0)


def test_of_a_system_by_which_nothing_fits_the_nearest_is_told() -> None:
    found = Compared().lists("why", ["bm25", "hybrid"], 10)
    assert [hit["doc_id"] for hit in found["lists"]["bm25"]] == ["d1"]
    assert (found["lists"]["hybrid"], list(found["nearest"])) == ([], ["hybrid"])
    assert found["nearest"]["hybrid"]["confidence"] == 0.3


def test_a_pool_takes_the_best_of_each_in_turns() -> None:
    lists = [["a", "b", "c"], ["a", "d"], ["e"]]
    assert interleaved(lists, 10) == ["a", "e", "b", "d", "c"]
    assert interleaved(lists, 3) == ["a", "e", "b"]
    assert interleaved([[], []], 3) == []


def test_the_order_is_the_judges_own_and_stays() -> None:
    documents = [f"d{number}" for number in range(10)]
    first = blind_order(documents, "ada query")
    assert (sorted(first), first) == (sorted(documents), blind_order(documents[::-1], "ada query"))
    assert first != blind_order(documents, "bob query")


class Odd(SideBySide):
    """A system whose best document has an id that no file of judgements can hold."""

    def __init__(self, doc_id: str) -> None:
        self.doc_id, self._of = doc_id, None

    def search(self, _: str) -> Any:
        return self

    def requiring(self, at_least: float) -> Any:
        return lambda *_: Hits([Hit(self.doc_id, 9.0, 1), Hit("h1", 7.0, 2)], 9.0)

    @property
    def hybrid(self) -> Any:
        return SimpleNamespace(info=SimpleNamespace(name="docs", record=SimpleNamespace(fields=["text"])))

    @property
    def cluster(self) -> Any:
        return None


@pytest.mark.attack(128)
@pytest.mark.parametrize("doc_id", FORGING)
def test_nobody_is_asked_to_judge_what_cannot_be_kept(doc_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "hybridr.serving.page.workbench.sources_by_id",
        lambda _, __, doc_ids: {name: {"text": "river"} for name in doc_ids},
    )
    assert [one["doc_id"] for one in Odd(doc_id).pool("river", "ada")] == ["h1"]
