"""Pools of documents: who is in them, and in which order."""

from __future__ import annotations

from typing import Any

from hybridr.records import Hit, Hits
from hybridr.workbench.comparing import SideBySide, blind_order, interleaved


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
    assert found["lists"]["hybrid"] == []
    assert list(found["nearest"]) == ["hybrid"]
    assert found["nearest"]["hybrid"]["confidence"] == 0.3


def test_a_pool_takes_the_best_of_each_in_turns() -> None:
    lists = [["a", "b", "c"], ["a", "d"], ["e"]]
    assert interleaved(lists, 10) == ["a", "e", "b", "d", "c"]
    assert interleaved(lists, 3) == ["a", "e", "b"]
    assert interleaved([[], []], 3) == []


def test_the_order_is_the_judges_own_and_stays() -> None:
    documents = [f"d{number}" for number in range(10)]
    first = blind_order(documents, "ada query")
    assert sorted(first) == sorted(documents)
    assert first == blind_order(documents[::-1], "ada query")
    assert first != blind_order(documents, "bob query")
