"""Shows how far the benchmarks are: a line for all collections, one for the stage at work."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

PLAIN_INTERVAL_S = 5.0


class Bar:
    """A progress callable of hybridr's; on a terminal two bars with the time left, else plain lines.

    `weights` are the sizes of the collections: the first bar moves by them.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._total, self._finished = sum(weights.values()), 0.0
        self._name, self._share = "", (0.0, 1.0)
        self._told: dict[str, float] = {}
        columns = [TextColumn("{task.description:<44}"), BarColumn(), TaskProgressColumn()]
        self._bars = Progress(
            *columns,
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(file=sys.stderr),
            disable=not sys.stderr.isatty(),
        )
        self._all = self._bars.add_task("all collections", total=self._total or 1, note="")
        self._stage = self._bars.add_task("", total=None, note="")

    def __enter__(self) -> Bar:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, name: str) -> None:
        """Turn to another collection."""
        self._name, self._share = name, (0.0, 0.0)

    def step(self, number: int, steps: int) -> None:
        """Begin step `number` (from 0) of this collection's `steps`."""
        self._share = (number / steps, 1 / steps)
        self._advance(0.0)

    def end(self) -> None:
        """Count this collection as done, whatever came of it."""
        self._finished += self._weights[self._name]
        self._share = (0.0, 0.0)
        self._advance(0.0)

    def __call__(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Show the state of a stage."""
        title = f"{self._name}: {stage}"
        if self._bars.disable:
            self._tell(title, done, total, note)
            return
        self._bars.update(self._stage, description=title, completed=done, total=total, note=note)
        self._advance(done / total if total else 0.0)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _tell(self, title: str, done: int, total: int | None, note: str) -> None:
        """Print a line every few seconds, and one when a stage ends."""
        now = time.monotonic()
        if done == total or now - self._told.get(title, 0.0) >= PLAIN_INTERVAL_S:
            self._told[title] = now
            of = f"/{total:,}" if total else ""
            print(f"{title}: {done:,}{of}  {note}".rstrip(), file=sys.stderr, flush=True)

    def _advance(self, fraction: float) -> None:
        before, share = self._share
        within = self._weights.get(self._name, 0.0) * (before + share * min(fraction, 1.0))
        self._bars.update(self._all, completed=self._finished + within)
