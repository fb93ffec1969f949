"""Runner that works on several shares at once in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

from ..settings import ReindexSettings
from . import Runner, Task

T = TypeVar("T")


class Threads(Runner):
    """Runs shares in as many threads as there are workers; a single worker uses the caller's thread."""

    name = "threads"
    help = "in this process"

    def __init__(self, settings: ReindexSettings) -> None:
        self.workers = settings.workers

    def run(self, task: Task, shares: Sequence[Any]) -> list[Any]:
        """Call the task with every share; see `Runner`."""
        return in_threads(task, shares, self.workers, task.stop)


def in_threads(work: Callable[[Any], T], shares: Sequence[Any], workers: int, stop: Event) -> list[T]:
    """Call `work` with every share in `workers` threads (one: the caller's thread); return the results in
    order.

    If one fails, `stop` is set and shares that have not begun are skipped.
    """

    def done(share: Any) -> Any:
        """Work on a share, unless a stop was requested."""
        return None if stop.is_set() else work(share)

    if workers == 1 or len(shares) < 2:
        return [work(share) for share in shares]
    with ThreadPoolExecutor(min(workers, len(shares))) as pool:
        try:
            return list(pool.map(done, shares))
        except BaseException:
            stop.set()
            raise
