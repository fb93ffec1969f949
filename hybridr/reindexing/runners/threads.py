"""Works on several shares at once, in threads of this process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..settings import ReindexSettings
from . import Errand


class Threads:
    """As many threads as workers; one alone is that of the caller."""

    name = "threads"
    leases = False
    help = "in this process"

    def __init__(self, settings: ReindexSettings) -> None:
        self.workers = settings.workers

    def check(self) -> None:
        """Lack nothing."""

    def run(self, errand: Errand, shares: Sequence[Any]) -> list[Any]:
        """Do the errand with every share; see `Runner`."""

        def done(share: Any) -> Any:
            return None if errand.stop.is_set() else errand(share)

        if self.workers == 1 or len(shares) < 2:
            return [errand(share) for share in shares]
        with ThreadPoolExecutor(min(self.workers, len(shares))) as pool:
            try:
                return list(pool.map(done, shares))
            except BaseException:
                errand.stop.set()
                raise
