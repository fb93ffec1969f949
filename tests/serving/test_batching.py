"""The queue before the encoder."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event

import pytest

from hybridr.serving.batching import FIRST_TOKENS, NICENESS, PART_S, BatchQueue
from hybridr.serving.requests import EncodingFailed, Refused


class Gate:
    """Encodes a text as its number; holds every call until it is opened."""

    def __init__(self, is_open: bool = False) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.entered, self.opened = Event(), Event()
        if is_open:
            self.opened.set()

    def side(self, name):
        def encode(texts):
            self.calls.append((name, list(texts)))
            self.entered.set()
            assert self.opened.wait(10)
            if "bad" in texts:
                raise RuntimeError("bad text")
            return [float(text) for text in texts]

        return encode


def queue_of(gate: Gate, budget: int = 100, count=lambda texts, tokens: None) -> BatchQueue:
    return BatchQueue({side: gate.side(side) for side in ("query", "passage")}, budget, count)


def held(gate: Gate, queue: BatchQueue, side: str = "query"):
    """Keep the encoder busy with one text, so that what comes now of its kind has to wait."""
    job = queue.put(side, ["0"], [1])
    assert gate.entered.wait(10)
    return job


def test_what_waits_is_encoded_together_and_sides_apart():
    gate, batches = Gate(), []
    queue = queue_of(gate, count=lambda texts, tokens: batches.append((texts, tokens)))
    held(gate, queue, "passage")
    queries = queue.put("query", [str(number) for number in range(1, 61)], [9] * 60)
    passages = [queue.put("passage", [str(number)], [10]) for number in (71, 72)]
    assert len(queue) == 62
    gate.opened.set()
    assert queries.future.result(10) == list(range(1, 61))
    assert [job.future.result(10) for job in passages] == [[71], [72]]
    assert ("passage", ["71", "72"]) in gate.calls
    assert batches[0] == (1, 1)
    assert (2, 20) in batches
    assert len(queue) == 0


def test_an_idle_queue_adds_no_delay():
    queue = queue_of(Gate(is_open=True))
    queue.put("query", ["0"], [1]).future.result(10)
    started = time.perf_counter()
    for number in range(50):
        queue.put("query", [str(number)], [1]).future.result(10)
    assert (time.perf_counter() - started) / 50 < 0.02


def test_a_long_request_is_cut_by_the_budget_and_keeps_its_order():
    gate = Gate(is_open=True)
    texts = [str(number) for number in range(20)]
    tokens = [(number * 7) % 20 + 1 for number in range(20)]
    job = queue_of(gate, budget=40).put("passage", texts, tokens)
    assert job.future.result(10) == list(range(20))
    sizes = [sum(tokens[int(text)] for text in batch) for _, batch in gate.calls]
    assert len(sizes) > 4
    assert max(sizes) <= 40


def test_a_text_over_the_budget_goes_alone():
    gate = Gate()
    queue = queue_of(gate, budget=10)
    held(gate, queue)
    jobs = [queue.put("query", [text], [tokens]) for text, tokens in (("1", 50), ("2", 3), ("3", 3))]
    gate.opened.set()
    assert [job.future.result(10) for job in jobs] == [[1], [2], [3]]
    assert [batch for _, batch in gate.calls] == [["0"], ["1"], ["2", "3"]]


@pytest.mark.attack(21)
def test_queries_wait_for_no_passages_and_no_long_request_of_either_side():
    gate, queries = Gate(), Gate(is_open=True)
    sides = {"query": queries.side("query"), "passage": gate.side("passage")}
    queue = BatchQueue(sides, 10, lambda *_: None)
    held(gate, queue, "passage")
    queue.put("query", [str(number) for number in range(100, 300)], [5] * 200)
    assert queue.put("query", ["1"], [5]).future.result(10) == [1]
    assert queries.calls == [("query", ["1"])], "the long request waits for the passage"
    gate.opened.set()


def test_sides_that_can_wait_take_turns():
    gate = Gate()
    queue = queue_of(gate, budget=500)
    held(gate, queue, "passage")
    jobs = [queue.put(side, ["1", "2", "3"], [400] * 3) for side in ("passage", "query")]
    gate.opened.set()
    assert [job.future.result(10) for job in jobs] == [[1, 2, 3]] * 2
    assert [side for side, _ in gate.calls[1:]] == ["query", "passage"] * 3


def test_parts_that_can_wait_are_as_long_as_the_encoder_is_quick():
    parts = []

    def encode(texts):
        parts.append(len(texts))
        time.sleep(len(texts) / 1000)
        return texts

    queue = BatchQueue({"passage": encode}, 100_000, lambda *_: None)
    queue.put("passage", ["a"] * 1000, [100] * 1000).future.result(20)
    assert parts[0] == FIRST_TOKENS // 100, "nothing is known of the encoder yet"
    assert max(parts) <= 2 * PART_S * 1000, "about a millisecond a text"
    assert len(parts) > 8


def test_how_long_a_query_would_wait_is_known():
    gate = Gate()
    queue = queue_of(gate, budget=10)
    assert queue.delay_s == 0.0
    held(gate, queue)
    time.sleep(0.05)
    assert queue.delay_s >= 0.05, "an encoder that hangs"
    gate.opened.set()
    queue.close()
    assert queue.delay_s == 0.0


def test_a_short_request_overtakes_a_long_one_of_its_side():
    gate = Gate()
    queue = queue_of(gate, budget=10)
    held(gate, queue, "passage")
    long = queue.put("passage", [str(number) for number in range(30)], [5] * 30)
    short = queue.put("passage", ["99"], [5])
    gate.opened.set()
    assert short.future.result(10) == [99]
    assert long.future.result(10) == list(range(30))
    assert next(at for at, (_, batch) in enumerate(gate.calls) if "99" in batch) <= 2


def test_a_dropped_job_never_runs():
    gate = Gate()
    queue = queue_of(gate)
    held(gate, queue)
    kept, dropped = queue.put("query", ["1"], [1]), queue.put("query", ["2"], [1])
    queue.drop(dropped)
    assert len(queue) == 1
    gate.opened.set()
    assert kept.future.result(10) == [1]
    assert gate.calls[1:] == [("query", ["1"])]
    with pytest.raises(CancelledError):
        dropped.future.result(10)


def test_a_job_dropped_under_way_loses_the_rest():
    gate = Gate()
    queue = queue_of(gate, budget=10)
    job = queue.put("passage", [str(number) for number in range(30)], [5] * 30)
    assert gate.entered.wait(10)
    queue.drop(job)
    gate.opened.set()
    assert queue.put("query", ["1"], [1]).future.result(10) == [1]
    assert [side for side, _ in gate.calls] == ["passage", "query"]


def test_one_bad_text_fails_only_its_own_request():
    gate = Gate()
    queue = queue_of(gate)
    held(gate, queue)
    good, bad, other = (queue.put("query", [text], [1]) for text in ("1", "bad", "3"))
    gate.opened.set()
    assert good.future.result(10) == [1]
    assert other.future.result(10) == [3]
    with pytest.raises(EncodingFailed) as caught:
        bad.future.result(10)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "bad text" not in caught.value.detail


def test_a_failed_request_leaves_nothing_waiting():
    gate = Gate(is_open=True)
    queue = queue_of(gate, budget=10)
    job = queue.put("passage", ["bad", *map(str, range(30))], [1, *[5] * 30])
    with pytest.raises(EncodingFailed):
        job.future.result(10)
    assert (queue.put("query", ["1"], [1]).future.result(10), len(queue)) == ([1], 0)
    assert len(gate.calls) == 2


@pytest.mark.parametrize("wrong", [[], [1], [1, 2, 3]])
def test_another_number_of_answers_is_an_error_and_the_queue_lives_on(wrong):
    answers = iter([wrong, [4]])
    queue = BatchQueue({"query": lambda texts: next(answers)}, 100, lambda texts, tokens: None)
    with pytest.raises(EncodingFailed):
        queue.put("query", ["1", "2"], [1, 1]).future.result(10)
    assert queue.put("query", ["3"], [1]).future.result(10) == [4]


def test_a_full_queue_refuses_and_takes_again_what_it_has_room_for():
    gate = Gate()
    queue = BatchQueue({side: gate.side(side) for side in ("query", "passage")}, 100, lambda *_: None, 3)
    held(gate, queue, "passage")
    large = queue.put("passage", ["1", "2", "3", "4", "5"], [1] * 5)  # nobody waited
    with pytest.raises(Refused, match="5 texts wait for the encoder, the limit is 3") as caught:
        queue.put("passage", ["6"], [1])
    query = queue.put("query", ["6"], [1])  # these have a line of their own
    assert (caught.value.status_code, caught.value.headers) == (503, {"Retry-After": "1"})
    queue.drop(large)
    waiting = [queue.put("passage", [text], [1]) for text in ("7", "8", "9")]
    with pytest.raises(Refused):
        queue.put("passage", ["10"], [1])
    gate.opened.set()
    assert [job.future.result(10) for job in (query, *waiting)] == [[6], [7], [8], [9]]
    assert queue.put("passage", ["11"], [1]).future.result(10) == [11]


def test_a_closed_queue_refuses_and_cancels_what_waits():
    gate = Gate()
    queue = queue_of(gate)
    running, waiting = held(gate, queue), queue.put("query", ["1"], [1])
    gate.opened.set()
    queue.close()
    assert running.future.result(0) == [0]
    assert waiting.future.done()
    with pytest.raises(Refused, match="stopping"):
        queue.put("query", ["2"], [1])


def test_what_can_wait_stands_behind_all_other_work_of_the_machine():
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    def priorities(texts: Sequence[str]) -> list[int]:
        """Of this thread and of one that it starts."""
        with ThreadPoolExecutor(1) as pool:
            return [priority(), pool.submit(priority).result()]

    queue = BatchQueue({"query": priorities, "passage": priorities}, 100, lambda *_: None)
    usual = priority()
    polite = min(19, usual + NICENESS) if sys.platform == "linux" else usual
    assert queue.put("query", ["a", "b"], [1, 1]).future.result(10) == [usual, usual]
    assert queue.put("passage", ["a", "b"], [1, 1]).future.result(10) == [polite, polite]
    assert queue.put("query", ["a", "b"], [1, 1]).future.result(10) == [usual, usual]
    queue.close()
