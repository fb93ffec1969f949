"""Deadlines: what waits for another machine ends in time, whatever that machine sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as StillRunning
from threading import Thread
from typing import NamedTuple, TypeVar

import urllib3

MOST_ANSWER = 1_000_000  # bytes
T = TypeVar("T")


class WebAnswer(NamedTuple):
    """The status of an answer, and its whole content."""

    status: int
    content: bytes


class BoundedRetry(urllib3.Retry):
    """Tries again, and waits as long as an answer asks for, but not for longer than `MOST_WAIT_S`."""

    MOST_WAIT_S = 10.0

    def parse_retry_after(self, retry_after: str) -> float:
        """Return the seconds that a `Retry-After` asks for, within the bound."""
        return min(float(super().parse_retry_after(retry_after)), self.MOST_WAIT_S)


def ask_web(
    method: str,
    url: str,
    seconds: float,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    retries: urllib3.Retry | bool = False,
) -> WebAnswer:
    """Send a request and return its whole answer. No redirect is followed.

    Raises urllib3's HTTPError, and TimeoutError where not all of it is there in time, retries included.
    """

    def ask() -> WebAnswer:
        with urllib3.PoolManager() as pool:
            response = pool.request(
                method,
                url,
                body=body,
                headers=dict(headers),
                timeout=seconds,
                retries=retries,
                redirect=False,
                preload_content=False,
            )
            return WebAnswer(response.status, response.read(MOST_ANSWER))

    return finished_within(seconds, ask)


def finished_within(seconds: float, work: Callable[[], T]) -> T:
    """Return what `work` returns. Raises what it raises, and TimeoutError once its time is over.

    The time-out of a socket counts anew for each byte, so the work has a thread of its own. It is left there
    when its time is over: no process waits for it.
    """
    outcome = started(work)
    try:
        return outcome.result(seconds)
    except StillRunning:
        if outcome.done():
            raise
        raise TimeoutError(f"no whole answer within {seconds:.0f} s") from None


def started(work: Callable[[], T]) -> Future[T]:
    """Start `work` in a thread that no process waits for, and return what will come of it."""
    outcome = Future[T]()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=run, name="hybridr-deadline", daemon=True).start()
    return outcome
