"""Works on all shares at once, in threads of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from . import S, T


class Threads:
    """A thread for each share; one alone runs where it is called."""

    name = "threads"

    def run(self, work: Callable[[S], T], shares: Sequence[S], stop: Callable[[], None]) -> list[T]:
        """Give `work` of every share; see `Runner`."""
        if len(shares) == 1:
            return [work(shares[0])]
        with ThreadPoolExecutor(len(shares)) as pool:
            try:
                return list(pool.map(work, shares))
            except BaseException:
                stop()
                raise
