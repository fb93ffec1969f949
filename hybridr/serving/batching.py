"""The queue before the encoder: texts that wait while it works are encoded together.

Short requests for queries have their own thread: they start as soon as it is free, and no request waits
to fill a batch. All other requests share a second thread of lower priority. There the sides (query,
passage) take turns, and so do the requests of a side: a long one is cut into parts of at most `budget` tokens
and about `PART_S` seconds, and goes to the end of its line after each.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Condition, Thread
from typing import Any, TypeAlias

from .requests import Busy, EncodingFailed, Refused

Encode: TypeAlias = Callable[[Sequence[str]], Sequence[Any]]
"""Encodes texts; returns a result for each of them."""
SHORT_TOKENS = 512  # most tokens of an urgent request
PART_S = 0.1  # longest part of a long request, for which a short one waits if neither is urgent
FIRST_TOKENS = 512  # tokens of a part, until the encoder's speed is known
NICENESS = 10  # added to the polite thread's niceness: event loop, searches and cluster come first
PACE_WEIGHT = 0.2  # weight of the last part in the moving average of the speed


class EncodingJob:
    """The texts of one request and their results so far; `future` gets all results at the end."""

    def __init__(self, side: str, texts: Sequence[str], tokens: Sequence[int]) -> None:
        self.side, self.texts, self.tokens = side, texts, tokens
        self.future: Future[list[Any]] = Future()
        self.waiting = sorted(range(len(texts)), key=lambda position: (tokens[position], position))[::-1]
        self.results: list[Any] = [None] * len(texts)
        self.urgent = side != "passage" and sum(tokens) <= SHORT_TOKENS

    def take(self, room: int, at_least: int) -> list[int]:
        """Remove and return the positions of the shortest waiting texts: as many as fit into `room` tokens,
        and no fewer than `at_least`. Texts of similar length need little padding.
        """
        positions: list[int] = []
        while self.waiting and (len(positions) < at_least or self.tokens[self.waiting[-1]] <= room):
            positions.append(self.waiting.pop())
            room -= self.tokens[positions[-1]]
        return positions

    def collect(self, positions: Sequence[int], vectors: Sequence[Any]) -> None:
        """Store the results of a part; the last part completes the future."""
        for position, vector in zip(positions, vectors, strict=True):
            self.results[position] = vector
        if not self.waiting and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.results)


JobPart: TypeAlias = tuple[EncodingJob, list[int]]


class BatchQueue:
    """Encodes the texts of many requests in two threads, one for urgent and one for other requests.

    `encode` maps a side to its function; `budget` is in tokens; `count(texts, tokens)` is called for every
    batch. At most `limit` texts wait in each thread's queue; a single request may exceed that if none waits.
    """

    def __init__(
        self, encode: Mapping[str, Encode], budget: int, count: Callable[[int, int], None], limit: int = 2**31
    ) -> None:
        self._urgent = Lane(encode, budget, count, limit)
        self._polite = Lane(encode, budget, count, limit, polite=True)

    def __len__(self) -> int:
        """Return how many texts wait."""
        return len(self._urgent) + len(self._polite)

    @property
    def delay_s(self) -> float:
        """Return how long an urgent request would wait, in seconds."""
        return self._urgent.delay_s

    def put(self, side: str, texts: Sequence[str], tokens: Sequence[int]) -> EncodingJob:
        """Queue texts, with the number of `tokens` of each; return their job.

        Raises Refused (503) after `close`, or if the queue is full.
        """
        job = EncodingJob(side, texts, tokens)
        self._lane(job).put(job)
        return job

    def drop(self, job: EncodingJob) -> None:
        """Cancel a job: texts that the encoder has not begun are never encoded."""
        job.future.cancel()
        self._lane(job).remove(job)

    def close(self) -> None:
        """Refuse new jobs, cancel waiting ones and stop each thread after its batch."""
        self._urgent.close()
        self._polite.close()

    def _lane(self, job: EncodingJob) -> Lane:
        """Return the lane (queue with a thread) for urgent or for other jobs."""
        return self._urgent if job.urgent else self._polite


class Lane:
    """The jobs of one urgency and the thread that encodes them; a `polite` lane works in parts of
    `PART_S`.
    """

    def __init__(
        self,
        encode: Mapping[str, Encode],
        budget: int,
        count: Callable[[int, int], None],
        limit: int,
        *,
        polite: bool = False,
    ) -> None:
        self.budget, self.limit, self.polite = budget, limit, polite
        self._encode = encode
        self._count = count
        self._waiting: dict[str, deque[EncodingJob]] = {side: deque() for side in encode}
        self._part_s = 0.0
        self._token_s = 0.0
        self._part_began: float | None = None
        self._changed = Condition()
        self._worker: Thread | None = None
        self._closed = False

    def __len__(self) -> int:
        """Return how many texts wait."""
        with self._changed:
            return sum(len(job.waiting) for jobs in self._waiting.values() for job in jobs)

    @property
    def delay_s(self) -> float:
        """Return how long a request would wait, in seconds.

        That is the time of the part under way so far, plus the usual time of a part for each part before the
        request.
        """
        with self._changed:
            tokens = sum(sum(job.tokens) for jobs in self._waiting.values() for job in jobs)
            elapsed_s = 0.0 if self._part_began is None else time.monotonic() - self._part_began
            return elapsed_s + tokens // self.budget * self._part_s

    def put(self, job: EncodingJob) -> None:
        """Queue a job. Raises Refused (503) after `close`, or if the lane is full."""
        with self._changed:
            if self._closed:
                raise Refused(503, "the server is stopping", "ask again when it is back")
            if (waiting := len(self)) and waiting + len(job.texts) > self.limit:
                raise Busy(f"{waiting} texts wait for the encoder, the limit is {self.limit}")
            self._waiting[job.side].append(job)
            if self._worker is None:
                self._worker = Thread(target=self._work, name="hybridr-encoder", daemon=True)
                self._worker.start()
            self._changed.notify()

    def remove(self, job: EncodingJob) -> None:
        """Remove a job from its line."""
        with self._changed:
            if job in (line := self._waiting[job.side]):
                line.remove(job)

    def close(self) -> None:
        """Refuse new jobs, cancel waiting ones and stop the thread after its batch."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            waiting = [job for jobs in self._waiting.values() for job in jobs]
        for job in waiting:
            job.future.cancel()
            self.remove(job)
        if self._worker is not None:
            self._worker.join()

    def _work(self) -> None:
        """Encode batches until `close` (the lane's thread)."""
        if self.polite and sys.platform == "linux":  # other systems have no priority per thread
            os.nice(NICENESS)  # inherited by threads that it starts
        while self._encode_next():
            pass

    def _encode_next(self) -> bool:
        """Wait for texts and encode a batch; return False after `close`.

        This is a separate function so that no local variable of the loop keeps a batch alive.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or any(self._waiting.values()))
            parts = self._take_parts()
            self._part_began = time.monotonic()
        if parts:
            self._run(parts)
        with self._changed:
            self._part_began = None
            return not self._closed

    def _take_parts(self) -> list[JobPart]:
        """Return parts of jobs of the next side, up to the budget of tokens but at least one text.

        The side then moves behind the others, and an unfinished job to the end of its side's queue.
        """
        side = next((side for side, jobs in self._waiting.items() if jobs), None)
        if side is None:
            return []
        waiting = self._waiting[side] = self._waiting.pop(side)
        parts: list[JobPart] = []
        room = self.budget
        if self.polite:
            room = min(room, int(PART_S / self._token_s) if self._token_s else FIRST_TOKENS)
        while waiting:
            job = waiting.popleft()
            positions = job.take(room, at_least=0 if parts else 1)
            room -= sum(job.tokens[position] for position in positions)
            if positions:
                parts.append((job, positions))
            if job.waiting:
                if positions:
                    waiting.append(job)
                else:
                    waiting.appendleft(job)
                break
        return parts

    def _run(self, parts: Sequence[JobPart]) -> None:
        """Encode parts together; if that fails, each alone, so that one request cannot fail another."""
        try:
            vectors = self._encode_parts(parts)
        except Exception as error:
            if len(parts) > 1:
                for part in parts:
                    self._run([part])
            else:
                [(job, _)] = parts
                self.remove(job)
                failure = EncodingFailed()
                failure.__cause__ = error
                if job.future.set_running_or_notify_cancel():
                    job.future.set_exception(failure)
            return
        start = 0
        for job, positions in parts:
            job.collect(positions, vectors[start : start + len(positions)])
            start += len(positions)

    def _encode_parts(self, parts: Sequence[JobPart]) -> Sequence[Any]:
        """Return the vectors of a batch, and update the measured speed of the encoder."""
        texts = [job.texts[position] for job, positions in parts for position in positions]
        tokens = sum(job.tokens[position] for job, part_positions in parts for position in part_positions)
        self._count(len(texts), tokens)
        began = time.monotonic()
        vectors = self._encode[parts[0][0].side](texts)
        seconds = time.monotonic() - began
        token_s = seconds / max(tokens, 1)
        self._part_s += PACE_WEIGHT * (seconds - self._part_s)
        self._token_s += (PACE_WEIGHT if self._token_s else 1.0) * (token_s - self._token_s)
        if len(vectors) != len(texts):
            raise ValueError(f"the encoder gave {len(vectors)} vectors for {len(texts)} texts")
        return vectors
