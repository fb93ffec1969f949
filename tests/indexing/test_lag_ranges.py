"""Spans: what differs between two sets of numbers is found, and little else is named."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.reading import Position
from hybridr.cluster.record import IndexInfo
from hybridr.errors import ClusterError
from hybridr.indexing.lag import MAX_STRETCHES, PARTS, STRETCH, NumberedIndex, Operations, differing_spans


class Numbers:
    """A side of the comparison whose shards hold the given numbers."""

    def __init__(self, *shards: Iterable[int]) -> None:
        self.held = [sorted(held) for held in shards]
        self.info: Any = SimpleNamespace(shards=len(shards), settings={})

    def sums(self, shard: int, spans: Sequence[Operations]) -> list[tuple[int, float, float]]:
        held, width = self.held[shard], max(high - low for low, high in spans)
        parts = [held[bisect_left(held, low) : bisect_left(held, high)] for low, high in spans]
        return [added([number % width for number in part]) for part in parts]


def added(numbers: Sequence[int]) -> tuple[int, float, float]:
    """Add up as the server does, which rounds what doubles do not hold."""
    return len(numbers), float(sum(numbers)), float(sum(one * one for one in numbers))


def spans_of(one: Numbers, other: Numbers, last: int) -> list[tuple[int, Operations]]:
    until = Position(dict.fromkeys(range(one.info.shards), last))
    return [(shard, span) for shard, spans in differing_spans(one, other, until) for span in spans]  # type: ignore[arg-type]


def test_equal_sides_differ_nowhere() -> None:
    numbers = random.Random(1).sample(range(3 * STRETCH), 5000)
    assert spans_of(Numbers(numbers), Numbers(numbers), 3 * STRETCH) == []
    assert spans_of(Numbers([]), Numbers([]), -1) == []


@pytest.mark.parametrize("seed", range(20))
def test_what_is_missing_on_either_side_lies_in_a_span(seed: int) -> None:
    """Any number on one side alone, and one or two on each."""
    chance = random.Random(seed)
    end = chance.choice([50, 5000, 2 * STRETCH])
    whole = set(chance.sample(range(end), end // 3))
    missing = set(chance.sample(sorted(whole), chance.choice([1, 2, 40 if seed % 2 else 2, 9])))
    there = set(chance.sample(sorted(whole - missing), 2)) if len(missing) < 3 else set()
    found = spans_of(Numbers(whole - there), Numbers(whole - missing), end - 1)
    for number in missing | there:
        assert any(span.low <= number < span.high for _, span in found)
    assert sum(span.high - span.low for _, span in found) <= 16 * (len(missing) + len(there))


@pytest.mark.parametrize("first", [0, 10**9, 10**10])
def test_one_or_two_in_place_of_others_in_the_same_window_show(first: int) -> None:
    whole, last = set(range(first, first + 4096)), first + 4095
    for gone, gone_there in (([7], [4000]), ([1, 4], [2, 3])):
        here = Numbers(whole - {first + number for number in gone})
        assert spans_of(here, Numbers(whole - {first + number for number in gone_there}), last)


def test_no_sum_of_the_widest_windows_is_rounded() -> None:
    widest = 208_063
    assert widest**3 < 2**53 < (widest + 1) ** 3
    assert 13 * 10**9 // MAX_STRETCHES // PARTS[0] < widest


class Scriptless:
    """A cluster that runs no scripts; keeps what it was asked to add up."""

    url = "http://scriptless"
    reading_answer = Cluster.reading_answer

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def search(self, info: Any, body: Any, *_: Any, **__: Any) -> Any:
        values = body["aggs"]["spans"]["aggs"]["numbers"]["extended_stats"]
        self.asked.append(values)
        if "script" in values:
            raise ClusterError("the cluster refused (400 ): cannot execute [inline] scripts")
        numbers = {"sum": 5.0, "sum_of_squares": 13.0}
        return {"aggregations": {"spans": {"buckets": [{"doc_count": 2, "numbers": numbers}]}}}


def test_without_scripts_the_numbers_themselves_are_added_up() -> None:
    cluster = Scriptless()
    side = NumberedIndex(cast(Cluster, cluster), IndexInfo("docs", {}, {}, {}), "_seq_no")
    assert side.sums(0, [Operations(0, 4096)]) == [(2, 5.0, 13.0)]
    assert [sorted(values) for values in cluster.asked] == [["field", "script"], ["field"]]


def test_shards_are_compared_one_by_one() -> None:
    whole = set(range(100))
    found = spans_of(Numbers(whole, whole - {7}), Numbers(whole - {70}, whole), 99)
    assert found == [(0, Operations(64, 80)), (1, Operations(0, 16))]


def test_spans_that_touch_are_one() -> None:
    whole = set(range(200))
    assert spans_of(Numbers(whole), Numbers(whole - set(range(30, 70))), 199) == [(0, Operations(16, 80))]


def test_everything_differs_where_shards_are_others() -> None:
    whole = set(range(100))
    both = [(0, Operations(0, 100)), (1, Operations(0, 100))]
    assert spans_of(Numbers(whole, whole), Numbers(whole), 99) == both


def test_an_index_that_is_written_over_and_over_is_looked_at_in_a_thousand_steps() -> None:
    asked: list[int] = []

    class Watched(Numbers):
        def sums(self, shard: int, spans: Sequence[Operations]) -> list[tuple[int, float, float]]:
            asked.append(len(spans))
            return super().sums(shard, spans)

    last = 10**12
    found = spans_of(Watched([5, last - 5]), Numbers([5]), last)
    assert any(span.low <= last - 5 < span.high for _, span in found)
    assert len(asked) < 1100
