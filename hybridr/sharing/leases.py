"""Leases: a driver shares a job out, workers hold a share each, and what a lost one held is found.

No clock is compared with another's: a holder shows that it lives by changing its lease, and the driver counts
by its own clock since it saw the lease change last.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from ..cluster.connection import Cluster, path_of
from ..cluster.failures import is_busy
from ..cluster.side_indices import make_index
from ..errors import ClusterError, NotFound, Unreachable
from .board import (
    BODY_OF_LEASES,
    MOST_HELD,
    RUN,
    WRITTEN_TOGETHER,
    Board,
    Lease,
    Tally,
    opened,
)

EARLIER = 0.2
"""How much of a beat before its lease may be given away a holder stops: a page is written meanwhile."""


class Ledger(Board):
    """The side of who shares the work out: one driver at a time.

    `key` names the job: what a driver that was killed left of the same job is gone on with.
    """

    def __init__(
        self,
        cluster: Cluster,
        destination: str,
        key: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        super().__init__(cluster, destination)
        self.key, self._me, self._clock, self._sleep = key, uuid4().hex, clock, sleep
        self._run: Lease | None = None
        self._beat_at = 0.0
        self._seen: dict[str, tuple[int, float]] = {}

    @property
    def begun(self) -> bool:
        """Tell whether this driver shares a job out now."""
        return self._run is not None

    def left(self) -> dict[str, Any] | None:
        """Take over what a driver of the same job left, and give its plan; None where there is nothing.

        What was left of another job, or before its shares were all there, is deleted. Raises ClusterError
        when its driver lives; a killed one is known after `expiry_s` seconds, one that ended at once.
        """
        if not self.cluster.exists(self.index):
            return None
        run = self._lifeless()
        if run is None or run.state.get("key") != self.key or "plan" not in run.state:
            self.end()
            return None
        self._take_place(run, run.state["plan"])
        return dict(run.state["plan"])

    def _lifeless(self) -> Lease | None:
        since = self._clock()
        first = run = self.read([RUN]).get(RUN)
        while run is None or run.state["driver"]:
            if self._clock() - since >= self.pulse.expiry_s:
                return run
            self._sleep(self.pulse.beat_s / 4)
            run = self.read([RUN]).get(RUN)
            if (run and run.seq_no) != (first and first.seq_no):
                raise self._taken()
        return run

    def _taken(self) -> ClusterError:
        return ClusterError(
            f"another hybridr fills '{self.destination}' at this moment (leases in '{self.index}')",
            hint="wait until it has ended, or stop it; then the same command goes on",
        )

    def _take_place(self, run: Lease, plan: Mapping[str, Any] | None, by: Board | None = None) -> None:
        state = {"driver": self._me, "key": self.key, "beat": uuid4().hex}
        (self._run,) = (by or self).write((run, state if plan is None else {**state, "plan": plan}))
        self._beat_at = self._clock()
        if self._run is None:
            raise self._taken()

    def begin(self, plan: Mapping[str, Any], shares: Sequence[Mapping[str, Any]]) -> None:
        """Make the index with an open lease a share. Raises ClusterError when another driver was faster."""
        body = {**BODY_OF_LEASES, "aliases": {self.alias: {"is_hidden": True}}}
        make_index(self.cluster, self.index, body)
        self._take_place(Lease(RUN, {}, -1, 0), None)
        for start in range(0, len(shares), WRITTEN_TOGETHER):
            part = enumerate(shares[start : start + WRITTEN_TOGETHER], start)
            self.write(*((Lease(str(number), {}, -1, 0), opened(number, share)) for number, share in part))
        assert self._run is not None
        self._take_place(self._run, plan)

    def leases(self) -> list[Lease]:
        """Read every lease, in the order of the shares."""
        self.cluster.refresh(self.index)
        count = self.cluster.count(self.index) - 1
        names = [str(number) for number in range(count)]
        found: dict[str, Lease] = {}
        for start in range(0, count, WRITTEN_TOGETHER):
            found |= self.read(names[start : start + WRITTEN_TOGETHER])
        return [found[name] for name in names]

    def look(self) -> Tally | None:
        """Show that the driver lives, open the leases of lost holders, and say how far all is.

        None when the cluster does not answer: seconds without it count for nobody's silence.
        """
        try:
            self._show_life()
            held, tally = self.quick().find("held", MOST_HELD)
        except ClusterError as error:
            self._seen.clear()
            if isinstance(error, Unreachable) or is_busy(error):
                return None
            raise
        lost = self._lost(held)
        self.reopen(lost)
        return tally._replace(open=tally.open + len(lost), held=tally.held - len(lost))

    def _show_life(self) -> None:
        if self._run is not None and self._clock() - self._beat_at >= self.pulse.beat_s:
            self._take_place(self._run, self._run.state["plan"], self.quick())

    def _lost(self, held: Sequence[Lease]) -> list[Lease]:
        now = self._clock()
        before, self._seen = self._seen, {}
        for lease in held:
            seq_no, since = before.get(lease.name, (-1, now))
            self._seen[lease.name] = (lease.seq_no, since if seq_no == lease.seq_no else now)
        return [lease for lease in held if now - self._seen[lease.name][1] >= self.pulse.expiry_s]

    def reopen(self, leases: Sequence[Lease]) -> None:
        """Open leases again, whose shares are then worked on once more, whole."""
        for start in range(0, len(leases), WRITTEN_TOGETHER):
            part = leases[start : start + WRITTEN_TOGETHER]
            self.write(*((lease, opened(lease.number, lease.state["share"], again=True)) for lease in part))

    def leave(self) -> None:
        """Let another driver take over at once: this one ends before all is done."""
        if self._run is not None:
            with suppress(ClusterError):
                self.write((self._run, {**self._run.state, "driver": None}))

    def clear(self) -> None:
        """Delete what a driver left that ended or was killed; who lives, or lacks the rights, keeps it."""
        with suppress(ClusterError):
            if self.cluster.exists(self.index):
                self._lifeless()
                self.end()

    def end(self) -> None:
        """Delete the index."""
        self._run = None
        with suppress(NotFound):
            self.cluster.request("DELETE", path_of(self.index))


class Holder:
    """The side of a worker: it holds one lease at a time and shows that it lives.

    `count` tells how many documents of the share are done. A lease is `lost` when somebody else changed it,
    or the cluster took no sign of life for so long that somebody may: then nothing of it may be written.
    """

    def __init__(self, board: Board, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._board, self._quick, self._clock = board, board.quick(), clock
        self._near: list[Lease] = []
        self._me, self._lock = uuid4().hex, threading.Lock()
        self._held: Lease | None = None
        self._shown_at = 0.0

    def take(self, near: Sequence[Lease] = ()) -> Lease | None:
        """Take the first open lease of those that it was given, now or before; None when there is none."""
        self._near += near
        while self._held is None and self._near:
            self._swap()
        return self._held

    def finish(self, result: Mapping[str, Any], documents: int) -> bool:
        """Say that the share is done, and take the next in the same request; False when it was lost."""
        lease = self._held
        assert lease is not None
        kept = {name: lease.state[name] for name in ("number", "share", "again")}
        return self._swap({**kept, "state": "done", "done": documents, "result": result})

    def give_back(self) -> None:
        """Let somebody else begin the share anew."""
        if (lease := self._held) is not None:
            with suppress(ClusterError):
                self._board.write((lease, opened(lease.number, lease.state["share"], again=True)))
            self._held = None

    def _swap(self, done: Mapping[str, Any] | None = None) -> bool:
        """Give back what is held, in state `done`, and take the nearest that may be open."""
        with self._lock:
            changes = [(self._held, done)] if self._held is not None and done is not None else []
            if self._near:
                nearest = self._near.pop(0)
                changes.append((nearest, self._mine(nearest, 0)))
            since, self._held = self._clock(), None
            outcome = self._board.write(*changes) if changes else []
            taken = outcome[-1] if outcome and outcome[-1] and outcome[-1].state["state"] == "held" else None
            self._held, self._shown_at = taken, since
            return done is None or outcome[0] is not None

    def _mine(self, lease: Lease, done: int) -> Mapping[str, Any]:
        kept = {name: lease.state[name] for name in ("number", "share", "again")}
        return {**kept, "state": "held", "holder": self._me, "beat": uuid4().hex, "done": done}

    @contextmanager
    def shown(self, count: Callable[[], int], lost: Callable[[], object]) -> Iterator[None]:
        """Show that the holder lives while the block works; call `lost` when the lease no longer is its."""
        end = threading.Event()
        threads = [
            threading.Thread(target=self._show, args=(count, lost, end), daemon=True),
            threading.Thread(target=self._watch, args=(lost, end), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            end.set()
            for thread in threads:
                thread.join()

    def _show(self, count: Callable[[], int], lost: Callable[[], object], end: threading.Event) -> None:
        while not end.wait(self._board.pulse.beat_s * random.uniform(0.8, 1.0)):
            with self._lock:
                self._beat(count())
                if self._held is None:
                    lost()
                    return

    def _watch(self, lost: Callable[[], object], end: threading.Event) -> None:
        """Call `lost` before the driver may give the share away, though a beat that was sent may hang."""
        beat_s, expiry_s = self._board.pulse
        while (left := self._shown_at + expiry_s - EARLIER * beat_s - self._clock()) > 0:
            if end.wait(left):
                return
        lost()

    def _beat(self, done: int) -> None:
        lease, since = self._held, self._clock()
        assert lease is not None
        try:
            (self._held,) = self._quick.write((lease, self._mine(lease, done)))
            self._shown_at = since
        except NotFound:
            self._held = None
        except ClusterError:
            pass  # the next one may arrive
