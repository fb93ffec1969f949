"""Pools of documents: who is in them, and in which order."""

from __future__ import annotations

from hybridr.workbench.comparing import blind_order, interleaved


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
