"""The queue before the encoder: what waits while it works is encoded together.

One thread encodes. When it is free a request starts at once; nothing ever waits for company. Short requests
for queries, which somebody waits for, go first; one part in nine is for the others. These take turns: a long
one is cut into parts of at most `budget` tokens and about `PART_S` seconds, and goes to the end of its line
after each. They are encoded at a lower priority, by a thread that stands behind all else on the machine.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, Thread
from typing import Any, TypeAlias

from .requests import Busy, EncodingFailed, Refused

Encode: TypeAlias = Callable[[Sequence[str]], Sequence[Any]]
"""Texts in, what is found for each of them out."""
SHORT_TOKENS = 512  # of a whole request
URGENT_IN_A_ROW = 8  # parts, before one of the others has its turn
PART_S = 0.025  # that an urgent request waits for a part of another one
FIRST_TOKENS = 512  # of a part, while the pace of the encoder is not known
POLITE = 10  # steps in priority that these parts stand behind the event loop, searches and the cluster
MEMORY = 0.2  # weight of the last part in what is known of the pace


class EncodingJob:
    """The texts of one request, and what was found for them so far; `future` ends with all of it."""

    def __init__(self, side: str, texts: Sequence[str], tokens: Sequence[int]) -> None:
        self.side, self.texts, self.tokens = side, texts, tokens
        self.future: Future[list[Any]] = Future()
        self.left = sorted(range(len(texts)), key=lambda position: (tokens[position], position))[::-1]
        self.found: list[Any] = [None] * len(texts)
        self.urgent = side != "passage" and sum(tokens) <= SHORT_TOKENS

    def take(self, room: int, at_least: int) -> list[int]:
        """Take the shortest texts that are left, as many as `room` tokens hold; texts of like length pad
        little."""
        taken: list[int] = []
        while self.left and (len(taken) < at_least or self.tokens[self.left[-1]] <= room):
            taken.append(self.left.pop())
            room -= self.tokens[taken[-1]]
        return taken

    def collect(self, positions: Sequence[int], found: Sequence[Any]) -> None:
        """Keep what was found for a part; the last part ends the job."""
        for position, one in zip(positions, found, strict=True):
            self.found[position] = one
        if not self.left and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.found)

    def fail(self, error: Exception) -> None:
        """End the job with an error."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


JobPart: TypeAlias = tuple[EncodingJob, list[int]]
Line: TypeAlias = tuple[bool, str]
"""Whether its jobs are urgent, and their side."""


class BatchQueue:
    """Encode the texts of many requests with one thread.

    `encode` maps a side to the function for it; `budget` is in tokens; `count(texts, tokens)` is told of
    every batch. At most `most` texts of urgent requests wait, and as many of others, or those of one request
    that found none of its kind waiting. The thread starts with the first job.
    """

    def __init__(
        self,
        encode: Mapping[str, Encode],
        budget: int,
        count: Callable[[int, int], None],
        most: int = 2**31,
    ) -> None:
        self.budget, self.most = budget, most
        self._encode = encode
        self._count = count
        self._waiting: dict[Line, deque[EncodingJob]] = {
            (urgent, side): deque() for urgent in (True, False) for side in encode
        }
        self._urgent_part_s = 0.0
        self._token_s = 0.0  # of the other parts
        self._urgent_in_a_row = 0
        self._part_began: float | None = None
        self._changed = Condition()
        self._worker: Thread | None = None
        self._polite = ThreadPoolExecutor(1, "hybridr-encoder-polite", initializer=step_back)
        self._closed = False

    def __len__(self) -> int:
        """Count the texts that wait."""
        with self._changed:
            return self._count_waiting(True) + self._count_waiting(False)

    @property
    def delay_s(self) -> float:
        """Tell how long an urgent request would wait, in seconds.

        That is what the part under way has taken, and as much as the last ones took for each part before it.
        """
        with self._changed:
            tokens = sum(sum(job.tokens) for jobs in self._lines(True) for job in jobs)
            taken = 0.0 if self._part_began is None else time.monotonic() - self._part_began
            return taken + tokens // self.budget * self._urgent_part_s

    def put(self, side: str, texts: Sequence[str], tokens: Sequence[int]) -> EncodingJob:
        """Queue texts of so many `tokens` each. Raises Refused (503) after `close`, or when it is full."""
        job = EncodingJob(side, texts, tokens)
        with self._changed:
            if self._closed:
                raise Refused(503, "the server is stopping", "ask again when it is back")
            if (waiting := self._count_waiting(job.urgent)) and waiting + len(texts) > self.most:
                raise Busy(f"{waiting} texts wait for the encoder, at most {self.most} may")
            self._waiting[job.urgent, side].append(job)
            if self._worker is None:
                self._worker = Thread(target=self._work, name="hybridr-encoder", daemon=True)
                self._worker.start()
            self._changed.notify()
        return job

    def drop(self, job: EncodingJob) -> None:
        """Cancel a job: what the encoder has not begun never runs."""
        job.future.cancel()
        self._forget(job)

    def close(self) -> None:
        """Refuse new jobs, cancel what waits and end the thread after its batch."""
        with self._changed:
            self._closed = True
            waiting = [job for jobs in self._waiting.values() for job in jobs]
            self._changed.notify_all()
        for job in waiting:
            self.drop(job)
        if self._worker is not None:
            self._worker.join()
        self._polite.shutdown(wait=False)

    def _forget(self, job: EncodingJob) -> None:
        with self._changed:
            if job in (line := self._waiting[job.urgent, job.side]):
                line.remove(job)

    def _lines(self, urgent: bool) -> list[deque[EncodingJob]]:
        return [jobs for line, jobs in self._waiting.items() if line[0] == urgent]

    def _count_waiting(self, urgent: bool) -> int:
        return sum(len(job.left) for jobs in self._lines(urgent) for job in jobs)

    def _work(self) -> None:
        while self._encode_next():
            pass

    def _encode_next(self) -> bool:
        """Wait for texts and encode a batch; False after `close`. In its own frame: nothing of a batch
        outlives it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(self._waiting.values()))
            parts = self._take()
            self._part_began = time.monotonic()
        if parts:
            self._run(parts)
        with self._changed:
            self._part_began = None
            return not self._closed

    def _take(self) -> list[JobPart]:
        """Take parts of one line worth its room in tokens; a line that was served goes behind the others."""
        line = self._next_line()
        if line is None:
            return []
        waiting = self._waiting[line]
        self._waiting[line] = self._waiting.pop(line)
        parts: list[JobPart] = []
        room = self._room(line[0])
        while waiting:
            job = waiting.popleft()
            positions = job.take(room, at_least=0 if parts else 1)
            room -= sum(job.tokens[position] for position in positions)
            if positions:
                parts.append((job, positions))
            if job.left:
                waiting.append(job) if positions else waiting.appendleft(job)
                break
        return parts

    def _next_line(self) -> Line | None:
        """Choose the line that is served next; None where nothing waits."""
        others_turn = self._urgent_in_a_row >= URGENT_IN_A_ROW
        lines = sorted(
            (line for line, jobs in self._waiting.items() if jobs), key=lambda line: line[0] == others_turn
        )
        if not lines:
            return None
        self._urgent_in_a_row = self._urgent_in_a_row + 1 if lines[0][0] else 0
        return lines[0]

    def _room(self, urgent: bool) -> int:
        """Give the tokens of a part; of requests that can wait so few that they take `PART_S`."""
        if urgent:
            return self.budget
        return min(self.budget, int(PART_S / self._token_s) if self._token_s else FIRST_TOKENS)

    def _run(self, parts: Sequence[JobPart]) -> None:
        """Encode parts together; when that fails each alone, so that one request cannot fail another."""
        try:
            found = self._found(parts)
        except Exception as error:
            if len(parts) > 1:
                for part in parts:
                    self._run([part])
            else:
                self._fail(parts[0][0], error)
            return
        start = 0
        for job, positions in parts:
            job.collect(positions, found[start : start + len(positions)])
            start += len(positions)

    def _found(self, parts: Sequence[JobPart]) -> Sequence[Any]:
        texts = [job.texts[position] for job, positions in parts for position in positions]
        tokens = sum(job.tokens[position] for job, taken in parts for position in taken)
        self._count(len(texts), tokens)
        began = time.monotonic()
        job, encode = parts[0][0], self._encode[parts[0][0].side]
        found = encode(texts) if job.urgent else self._polite.submit(encode, texts).result()
        self._note_pace(job.urgent, time.monotonic() - began, max(tokens, 1))
        if len(found) != len(texts):
            raise ValueError(f"the encoder gave {len(found)} answers to {len(texts)} texts")
        return found

    def _note_pace(self, urgent: bool, seconds: float, tokens: int) -> None:
        if urgent:
            self._urgent_part_s += MEMORY * (seconds - self._urgent_part_s)
        else:
            self._token_s += (MEMORY if self._token_s else 1.0) * (seconds / tokens - self._token_s)

    def _fail(self, job: EncodingJob, error: Exception) -> None:
        self._forget(job)
        failure = EncodingFailed()
        failure.__cause__ = error
        job.fail(failure)


def step_back() -> None:
    """Lower the priority of this thread and of those that it starts; only Linux has one for each thread."""
    if sys.platform == "linux":
        os.nice(POLITE)
