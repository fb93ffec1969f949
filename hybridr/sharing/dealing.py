"""Dealing: how shares come to the workers of a driver, who take them by lease."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .board import Lease
from .leases import Ledger

LOOK_S, IDLE_LOOK_S = 2.0, 1.0
"""Between two looks at the leases; more often while a worker waits."""
BEGIN_A_SECOND = 10
"""Workers, that they do not all ask the cluster at once: now, and each time that equal shares end."""


class Done(NamedTuple):
    """What a worker says of a share that is done: its result, lines of its own, how many documents."""

    number: int
    result: Any
    refused: tuple[str, ...] = ()
    documents: int = 0


class Leased:
    """Shares that workers take by lease; the driver finds lost ones, and tells idle workers of open ones."""

    def __init__(self, ledger: Ledger, workers: int, count: Callable[[int], object]) -> None:
        self._ledger, self._count = ledger, count
        leases = self._ledger.leases()
        self._before = {one.number for one in leases if is_done(one) and not refused_by(one)}
        self._refused: dict[int, tuple[str, ...]] = {}
        self._ledger.reopen([one for one in leases if is_done(one) and refused_by(one)])
        self._near = runs_of([one for one in leases if one.state["state"] == "open"], workers)
        self._pauses = (number / BEGIN_A_SECOND for number in range(workers))
        self._busy: set[Any] = set()
        self._idle: set[Any] = set()
        self._counted = 0
        self._looked_at = 0.0
        self._missing: list[Lease] = []

    def ask(self, worker: Any) -> tuple[list[Lease], float] | None:
        """Say near which leases an idle worker is to look, and after how many seconds; None when there is
        nothing for it that is known of."""
        if worker not in self._busy and not self._near:
            self._idle.add(worker)
            return None
        if worker in self._busy:
            return [], 0.0
        self._busy.add(worker)
        return self._near.pop(), next(self._pauses, 0.0)

    def heard(self, worker: Any, done: Done | None) -> None:
        """Take the answer of a worker; None when it died, or knew of no open lease."""
        if done is None:
            self._busy.discard(worker)
        else:
            self._refused[done.number] = done.refused

    def finished(self) -> bool:
        """Look how far all is, now and then, and tell whether every share is done."""
        if time.monotonic() - self._looked_at < (IDLE_LOOK_S if self._idle else LOOK_S):
            return False
        idle, self._idle = self._idle, set()
        tally = self._ledger.look()
        self._looked_at = time.monotonic()
        if tally is None:
            return False
        self._count(max(0, tally.documents - self._counted))
        self._counted = max(self._counted, tally.documents)
        if idle and tally.open and not self._near:
            self._near = [[one] for one in self._ledger.find("open", len(idle))[0]]
        return tally.done and not self._unheard()

    def _unheard(self) -> bool:
        """Open shares again of which documents were refused, but nobody lives who knows which."""
        leases = [one for one in self._ledger.leases() if refused_by(one)]
        before, self._missing = self._missing, [one for one in leases if one.number not in self._refused]
        self._ledger.reopen([one for one in self._missing if one in before])  # its answer may be under way
        return bool(self._missing)

    def results(self) -> list[Done]:
        """Give what came of the shares, in their order; an earlier driver's have no result here.

        The leases are deleted.
        """
        found = [
            Done(
                one.number,
                None if one.number in self._before else one.state["result"],
                self._refused.get(one.number, ()),
                int(one.state["done"]),
            )
            for one in self._ledger.leases()
        ]
        self._ledger.end()
        return found

    def leave(self) -> None:
        """Let the next driver go on at once."""
        self._ledger.leave()


def is_done(lease: Lease) -> bool:
    """Tell whether nobody has to work on a share any more."""
    return bool(lease.state["state"] == "done")


def refused_by(lease: Lease) -> int:
    """Count the documents of a share that is done which the index refused."""
    return int(lease.state["result"]["rejected"]) if is_done(lease) else 0


def runs_of(leases: Sequence[Lease], count: int) -> list[list[Lease]]:
    """Cut leases into runs of neighbours, one a worker, so that no two try the same ones for long."""
    edges = [len(leases) * number // count for number in range(count + 1)]
    return [list(leases[low:high]) for low, high in pairwise(edges) if high > low]
