"""Works on several shares at once, in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

from ..settings import ReindexSettings
from . import Runner, Task

T = TypeVar("T")


class Threads(Runner):
    """As many threads as workers; one alone is that of the caller."""

    name = "threads"
    help = "in this process"

    def __init__(self, settings: ReindexSettings) -> None:
        self.workers = settings.workers

    def run(self, task: Task, shares: Sequence[Any]) -> list[Any]:
        """Do the task with every share; see `Runner`."""
        return in_threads(task, shares, self.workers, task.stop)


def in_threads(work: Callable[[Any], T], shares: Sequence[Any], workers: int, stop: Event) -> list[T]:
    """Do the work with every share, in as many threads as workers; one alone is that of the caller.

    When one fails, `stop` is set, and those that have not begun are left out.
    """

    def done(share: Any) -> Any:
        return None if stop.is_set() else work(share)

    if workers == 1 or len(shares) < 2:
        return [work(share) for share in shares]
    with ThreadPoolExecutor(min(workers, len(shares))) as pool:
        try:
            return list(pool.map(done, shares))
        except BaseException:
            stop.set()
            raise
