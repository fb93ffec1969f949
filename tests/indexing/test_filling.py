"""Read, encode and write overlap, in order."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.indexing.filling import joined_pages, map_in_threads, prefetched, write_pages
from hybridr.indexing.job import Filling, Meter


def test_results_come_in_order_with_so_many_calls_at_once() -> None:
    lock, under_way, most = threading.Lock(), 0, 0

    def slow(number: int) -> int:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.02 if number % 3 else 0.06)
        with lock:
            under_way -= 1
        return 10 * number

    assert list(map_in_threads(slow, range(12), 3)) == [10 * number for number in range(12)]
    assert most == 3


def test_no_item_is_taken_before_there_is_room_for_it() -> None:
    taken: list[int] = []
    results = map_in_threads(lambda number: number, (taken.append(n) or n for n in range(100)), 2)
    assert next(results) == 0
    assert taken == [0, 1]
    results.close()
    assert taken == [0, 1]


def test_an_error_is_raised_where_its_result_would_have_come() -> None:
    def picky(number: int) -> int:
        if number == 3:
            raise KeyError(number)
        return number

    found = map_in_threads(picky, range(10), 2)
    assert [next(found) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(found)


def test_prefetched_keeps_order_raises_and_stops() -> None:
    before = threading.active_count()
    assert list(prefetched(iter(range(50)))) == list(range(50))

    def failing() -> object:
        yield 1
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        list(prefetched(failing()))
    made: list[int] = []

    def endless() -> object:
        while True:
            made.append(1)
            yield 1

    for _ in prefetched(endless(), size=2):
        break
    time.sleep(0.3)
    count = len(made)
    time.sleep(0.3)
    assert len(made) == count <= 5
    assert threading.active_count() <= before


def test_a_page_that_is_ready_too_late_is_not_written() -> None:
    """The job was asked to stop while it was encoded."""
    stop, asked = threading.Event(), []

    def pages() -> Any:
        stop.set()
        yield ["a document"]

    job: Any = SimpleNamespace(stop=stop, pace=SimpleNamespace(wait=asked.append))
    write_pages(job, SimpleNamespace(), pages(), Filling(), Meter(lambda *told: None, 1))  # type: ignore[arg-type]
    assert asked == []


def test_pages_are_joined_until_they_are_long_enough() -> None:
    pages = [[1, 2], [], [3], [4, 5, 6], [7]]
    assert list(joined_pages(iter(pages), 3)) == [[1, 2, 3], [4, 5, 6], [7]]
    assert list(joined_pages(iter(pages), 1)) == [[1, 2], [3], [4, 5, 6], [7]]
