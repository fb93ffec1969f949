"""The queue before the encoder: texts that wait while it works are encoded together.

Short requests for queries have a thread of their own: they start as soon as it is free, and nothing ever
waits to fill a batch. All other requests share a second thread of lower priority. There the sides (query,
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
"""Texts in, what is found for each of them out."""
SHORT_TOKENS = 512  # of a whole request
PART_S = 0.1  # that a short request waits for a part of a long one, where neither is urgent
FIRST_TOKENS = 512  # of a part, while the pace of the encoder is not known
POLITE = 10  # steps in priority that these parts stand behind the event loop, searches and the cluster
MEMORY = 0.2  # weight of the last part in what is known of the pace


class EncodingJob:
    """The texts of one request and their results so far; `future` gets all results at the end."""

    def __init__(self, side: str, texts: Sequence[str], tokens: Sequence[int]) -> None:
        self.side, self.texts, self.tokens = side, texts, tokens
        self.future: Future[list[Any]] = Future()
        self.left = sorted(range(len(texts)), key=lambda position: (tokens[position], position))[::-1]
        self.found: list[Any] = [None] * len(texts)
        self.urgent = side != "passage" and sum(tokens) <= SHORT_TOKENS

    def take(self, room: int, at_least: int) -> list[int]:
        """Remove and return the positions of the shortest waiting texts, as many as `room` tokens hold; texts
        of similar length pad little.
        """
        taken: list[int] = []
        while self.left and (len(taken) < at_least or self.tokens[self.left[-1]] <= room):
            taken.append(self.left.pop())
            room -= self.tokens[taken[-1]]
        return taken

    def collect(self, positions: Sequence[int], vectors: Sequence[Any]) -> None:
        """Store the results of a part; the last part completes the future."""
        for position, vector in zip(positions, vectors, strict=True):
            self.found[position] = vector
        if not self.left and self.future.set_running_or_notify_cancel():
            self.future.set_result(self.found)


JobPart: TypeAlias = tuple[EncodingJob, list[int]]


class BatchQueue:
    """Encodes the texts of many requests in two threads, one for urgent and one for other requests.

    `encode` maps a side to its function; `budget` is in tokens; `count(texts, tokens)` is called for every
    batch. At most `limit` texts of each kind wait, except that a single request may exceed it if no other
    waits.
    """

    def __init__(
        self,
        encode: Mapping[str, Encode],
        budget: int,
        count: Callable[[int, int], None],
        limit: int = 2**31,
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
        """Queue texts of so many `tokens` each; return their job. Raises Refused (503) after `close`, or if
        the queue is full.
        """
        job = EncodingJob(side, texts, tokens)
        self._lane(job).put(job)
        return job

    def drop(self, job: EncodingJob) -> None:
        """Cancel a job: texts that the encoder has not begun are never encoded."""
        job.future.cancel()
        self._lane(job).forget(job)

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
        self.budget, self.most, self.polite = budget, limit, polite
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
            return sum(len(job.left) for jobs in self._waiting.values() for job in jobs)

    @property
    def delay_s(self) -> float:
        """Return how long a request would wait, in seconds.

        That is the time of the part under way so far, plus the usual time of a part for each part before the
        request.
        """
        with self._changed:
            tokens = sum(sum(job.tokens) for jobs in self._waiting.values() for job in jobs)
            taken = 0.0 if self._part_began is None else time.monotonic() - self._part_began
            return taken + tokens // self.budget * self._part_s

    def put(self, job: EncodingJob) -> None:
        """Queue a job. Raises Refused (503) after `close`, or if the lane is full."""
        with self._changed:
            if self._closed:
                raise Refused(503, "the server is stopping", "ask again when it is back")
            if (waiting := len(self)) and waiting + len(job.texts) > self.most:
                raise Busy(f"{waiting} texts wait for the encoder, at most {self.most} may")
            self._waiting[job.side].append(job)
            if self._worker is None:
                self._worker = Thread(target=self._work, name="hybridr-encoder", daemon=True)
                self._worker.start()
            self._changed.notify()

    def forget(self, job: EncodingJob) -> None:
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
            self.forget(job)
        if self._worker is not None:
            self._worker.join()

    def _work(self) -> None:
        """Encode batches until `close` (the lane's thread)."""
        if self.polite and sys.platform == "linux":  # which alone has a priority for each thread
            os.nice(POLITE)  # also for those that it starts
        while self._encode_next():
            pass

    def _encode_next(self) -> bool:
        """Wait for texts and encode a batch; return False after `close`. A frame of its own, so that nothing
        of a batch stays alive.
        """
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
        """Return parts of jobs of the next side, up to the budget of tokens but at least one text.

        The side then goes behind the others, and an unfinished job behind those of its side.
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
            if job.left:
                if positions:
                    waiting.append(job)
                else:
                    waiting.appendleft(job)
                break
        return parts

    def _run(self, parts: Sequence[JobPart]) -> None:
        """Encode parts together; if that fails, each alone, so that one request cannot fail another."""
        try:
            vectors = self._vectors_of(parts)
        except Exception as error:
            if len(parts) > 1:
                for part in parts:
                    self._run([part])
            else:
                [(job, _)] = parts
                self.forget(job)
                failure = EncodingFailed()
                failure.__cause__ = error
                if job.future.set_running_or_notify_cancel():
                    job.future.set_exception(failure)
            return
        start = 0
        for job, positions in parts:
            job.collect(positions, vectors[start : start + len(positions)])
            start += len(positions)

    def _vectors_of(self, parts: Sequence[JobPart]) -> Sequence[Any]:
        """Return the vectors of a batch, and update the measured speed of the encoder."""
        texts = [job.texts[position] for job, positions in parts for position in positions]
        tokens = sum(job.tokens[position] for job, taken in parts for position in taken)
        self._count(len(texts), tokens)
        began = time.monotonic()
        vectors = self._encode[parts[0][0].side](texts)
        seconds = time.monotonic() - began
        token_s = seconds / max(tokens, 1)
        self._part_s += MEMORY * (seconds - self._part_s)
        self._token_s += (MEMORY if self._token_s else 1.0) * (token_s - self._token_s)
        if len(vectors) != len(texts):
            raise ValueError(f"the encoder gave {len(vectors)} answers to {len(texts)} texts")
        return vectors
