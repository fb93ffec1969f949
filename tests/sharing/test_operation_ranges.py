"""Spans: what differs between two sets of numbers is found, and little else is named."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster.reading import Position
from hybridr.sharing.operation_ranges import STRETCH, Operations, differing


class Numbers:
    """A side of the comparison whose shards hold the given numbers."""

    def __init__(self, *shards: Iterable[int]) -> None:
        self.held = [sorted(held) for held in shards]
        self.info: Any = SimpleNamespace(shards=len(shards))

    def sums(self, shard: int, spans: Sequence[Operations]) -> list[tuple[int, float, float]]:
        held = self.held[shard]
        parts = [held[bisect_left(held, low) : bisect_left(held, high)] for low, high in spans]
        return [(len(part), float(sum(part)), float(sum(one * one for one in part))) for part in parts]


def spans_of(one: Numbers, other: Numbers, last: int) -> list[tuple[int, Operations]]:
    until = Position(dict.fromkeys(range(one.info.shards), last))
    return [(shard, span) for shard, spans in differing(one, other, until) for span in spans]  # type: ignore[arg-type]


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


def test_one_in_place_of_another_in_the_same_window_shows() -> None:
    whole = set(range(4096))
    for gone, gone_there in (([7], [4000]), ([1, 4], [2, 3])):
        assert spans_of(Numbers(whole - set(gone)), Numbers(whole - set(gone_there)), 4095)


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
