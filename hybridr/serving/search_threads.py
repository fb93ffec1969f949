"""Threads and places for requests to the cluster, shared fairly among clients, with time limits and detection
of clients that left.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

from fastapi import Request

from .requests import CLIENT_GONE, Busy, Refused

CLIENT: ContextVar[str] = ContextVar("client", default="")
"""Address of the client whose request is answered; "" is the server itself."""
ARRIVED = "hybridr.arrived"
SEARCHING_THREADS = 40
SHARE = 0.75  # of the threads, and of the limit, for one client
STALLED_S = 1.0
"""If all threads are busy and no call ends for so long, waiting calls are refused."""
T = TypeVar("T")


@dataclass(eq=False)
class Turn:
    """A call that waits for a thread or runs in one; without `work` it runs in the event loop."""

    client: str
    work: Callable[[], Any] | None
    context: Context
    begun: bool = False
    result: Future[Any] = field(default_factory=Future)


class SearchThreads:
    """A pool of threads for calls to the cluster, with at most `limit` calls running or waiting.

    A client gets at most three quarters of the threads, and of the `limit`. If all threads that a call may
    use are busy, and none becomes free for `stalled_s` seconds, the call is refused.
    """

    def __init__(self, limit: int, stalled_s: float | None = None) -> None:
        self.limit, self.size, self.stalled_s = limit, min(limit, SEARCHING_THREADS), stalled_s
        self.share = max(1, int(SHARE * self.size))
        self._pool = ThreadPoolExecutor(self.size, thread_name_prefix="hybridr-search")
        self._lock = Lock()
        self._waiting: list[Turn] = []
        self._running: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._last_change: dict[str | None, float] = {None: time.monotonic()}

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread; return its result or raise its error.

        Raises Busy if too many calls wait, or no thread becomes free for `stalled_s` seconds.
        """
        turn = self._enter(work)
        try:
            value: T = await self._result(turn)
            return value
        finally:
            self._withdraw(turn)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Take the place of a thread for the length of the block, which works in the event loop. Raises Busy
        as `run`.
        """
        turn = self._enter(None)
        try:
            if not turn.begun:
                await self._result(turn)
            yield
        finally:
            self._withdraw(turn)
            if turn.begun:
                self._end(turn)

    async def _result(self, turn: Turn) -> Any:
        """Return the result of a turn's work, or raise its error; Busy if it waits for too long."""
        result = asyncio.wrap_future(turn.result)
        try:
            while not result.done():
                await asyncio.wait({result}, timeout=None if turn.begun else self.stalled_s)
                if not result.done() and self._is_stalled(turn) and self._withdraw(turn):
                    raise Busy("the cluster is slow: no search has ended for a while")
            return result.result()
        finally:
            result.add_done_callback(asyncio.Future.exception)  # marks an error as read: no caller may wait

    def _enter(self, work: Callable[[], Any] | None) -> Turn:
        """Queue a call and return its turn. Raises Busy if too many calls wait."""
        turn = Turn(CLIENT.get(), work, copy_context())  # the context holds the client's X-Opaque-Id
        with self._lock:
            calls = self._calls[turn.client]
            if self._calls.total() >= self.limit or (turn.client and calls >= max(1, SHARE * self.limit)):
                raise Busy(f"{self._calls.total()} searches run or wait, {calls} of them yours")
            self._calls[turn.client] += 1
            self._waiting.append(turn)
            self._begin()
        return turn

    def _begin(self) -> None:
        """Start waiting calls on free threads, in order of arrival. The caller holds the lock."""
        for turn in self._waiting.copy():
            if self._running.total() >= self.size:
                return
            if turn.client and self._running[turn.client] >= self.share:
                continue
            self._waiting.remove(turn)
            turn.begun = turn.result.set_running_or_notify_cancel()
            self._running[turn.client] += 1
            self._last_change[None] = self._last_change[turn.client] = time.monotonic()
            if turn.work is None:
                turn.result.set_result(None)
            else:
                self._pool.submit(turn.context.run, self._work, turn, turn.work)

    def _work(self, turn: Turn, work: Callable[[], Any]) -> None:
        """Run a turn's work in a thread, and set its result or error."""
        try:
            value = work()
        except BaseException as error:
            self._end(turn)
            turn.result.set_exception(error)
        else:
            self._end(turn)
            turn.result.set_result(value)

    def _end(self, turn: Turn) -> None:
        """Note that a turn's work has ended, and begin waiting turns."""
        with self._lock:
            self._running[turn.client] -= 1
            self._last_change[None] = self._last_change[turn.client] = time.monotonic()
            self._leave(turn)
            self._begin()

    def _leave(self, turn: Turn) -> None:
        """Forget a turn that has ended or was withdrawn."""
        self._calls[turn.client] -= 1
        if not self._calls[turn.client]:
            del self._calls[turn.client], self._running[turn.client]
            self._last_change.pop(turn.client, None)

    def _withdraw(self, turn: Turn) -> bool:
        """Remove a waiting call; return False if it has begun."""
        with self._lock:
            if turn not in self._waiting:
                return False
            self._waiting.remove(turn)
            self._leave(turn)
        return True

    def _is_stalled(self, turn: Turn) -> bool:
        """Return whether a call waits and no thread that it may use became free for `stalled_s`."""
        with self._lock:
            if turn.begun or self.stalled_s is None:
                return False
            last_change = self._last_change[None if self._running.total() >= self.size else turn.client]
        return time.monotonic() - last_change >= self.stalled_s


async def client_result(request: Request, work: Awaitable[T], timeout_s: float | None = None) -> T:
    """Return the result of `work`; cancel it and raise Refused if the client leaves or time is up before.

    `timeout_s` counts from the arrival of the request. A thread that has started its work finishes it.
    """
    task = asyncio.ensure_future(work)
    departure = asyncio.ensure_future(client_departure(request))
    remaining_s = None if timeout_s is None else timeout_s - (time.perf_counter() - request.scope[ARRIVED])
    try:
        await asyncio.wait((task, departure), timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not departure.done():
            raise Busy(f"the request took longer than {timeout_s} s")
        if not task.done():
            raise Refused(CLIENT_GONE, "the client went away")
        return task.result()
    finally:
        task.cancel()
        departure.cancel()


async def client_departure(request: Request) -> None:
    """Return when the client of a fully read request closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
