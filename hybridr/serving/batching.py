"""The queue before the encoder: what waits while it works is encoded together.

One thread encodes. When it is free a request starts at once; nothing ever waits for company. Requests take
turns: a long one is cut into parts of `budget` tokens and goes to the end of the queue after each, and
the sides alternate, so that a query waits for the part under way and at most one of each other side.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, TypeAlias

from .requests import EncodingFailed, Refused

Encode: TypeAlias = Callable[[Sequence[str]], Sequence[Any]]
"""Texts in, what is found for each of them out."""
RETRY_AFTER_S = 1


class EncodingJob:
    """The texts of one request, and what was found for them so far; `future` ends with all of it."""

    def __init__(self, side: str, texts: Sequence[str], tokens: Sequence[int]) -> None:
        self.side, self.texts, self.tokens = side, texts, tokens
        self.future: Future[list[Any]] = Future()
        self.left = sorted(range(len(texts)), key=lambda position: (tokens[position], position))[::-1]
        self.found: list[Any] = [None] * len(texts)

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


class BatchQueue:
    """Encode the texts of many requests with one thread.

    `encode` maps a side to the function for it; `budget` is in tokens; `count(texts, tokens)` is told of
    every batch. At most `most` texts wait, or those of one request that found none waiting. The thread starts
    with the first job.
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
        self._waiting: dict[str, deque[EncodingJob]] = {side: deque() for side in encode}
        self._changed = Condition()
        self._worker: Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        """Count the texts that wait."""
        with self._changed:
            return self._count_waiting()

    def put(self, side: str, texts: Sequence[str], tokens: Sequence[int]) -> EncodingJob:
        """Queue texts of so many `tokens` each. Raises Refused (503) after `close`, or when it is full."""
        job = EncodingJob(side, texts, tokens)
        with self._changed:
            if self._closed:
                raise Refused(503, "the server is stopping", "ask again when it is back")
            if (waiting := self._count_waiting()) and waiting + len(texts) > self.most:
                found = f"{waiting} texts wait for the encoder, at most {self.most} may"
                raise Refused(503, found, "ask again a little later", retry_after_s=RETRY_AFTER_S)
            self._waiting[side].append(job)
            if self._worker is None:
                self._worker = Thread(target=self._work, name="hybridr-encoder", daemon=True)
                self._worker.start()
            self._changed.notify()
        return job

    def drop(self, job: EncodingJob) -> None:
        """Cancel a job: what the encoder has not begun never runs."""
        job.future.cancel()
        with self._changed:
            if job in self._waiting[job.side]:
                self._waiting[job.side].remove(job)

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

    def _count_waiting(self) -> int:
        return sum(len(job.left) for jobs in self._waiting.values() for job in jobs)

    def _work(self) -> None:
        while self._encode_next():
            pass

    def _encode_next(self) -> bool:
        """Wait for texts and encode a batch; False after `close`. In its own frame: nothing of a batch
        outlives it."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(self._waiting.values()))
            parts = self._take()
        if parts:
            self._run(parts)
        return not self._closed

    def _take(self) -> list[JobPart]:
        """Take parts of one side worth `budget` tokens; the side that was not last goes first."""
        side = next((side for side, jobs in self._waiting.items() if jobs), None)
        if side is None:
            return []
        waiting = self._waiting[side]
        self._waiting[side] = self._waiting.pop(side)  # now the last of the sides
        parts: list[JobPart] = []
        room = self.budget
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
        self._count(len(texts), sum(job.tokens[position] for job, taken in parts for position in taken))
        found = self._encode[parts[0][0].side](texts)
        if len(found) != len(texts):
            raise ValueError(f"the encoder gave {len(found)} answers to {len(texts)} texts")
        return found

    def _fail(self, job: EncodingJob, error: Exception) -> None:
        with self._changed:
            if job in self._waiting[job.side]:
                self._waiting[job.side].remove(job)
        failure = EncodingFailed()
        failure.__cause__ = error
        job.fail(failure)
