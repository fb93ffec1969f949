"""The callable that long functions report to, and the silent default."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")


class Progress(Protocol):
    """Receive the state of one stage: `done` of `total` units, `total` None while unknown."""

    def __call__(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Report that `stage` has finished `done` units; `note` is a short text such as a loss."""


def silent(stage: str, done: int, total: int | None = None, note: str = "") -> None:
    """Report nothing."""


def counted(items: Iterable[T], progress: Progress, stage: str, total: int | None = None) -> Iterator[T]:
    """Yield `items`, reporting each one as a unit of `stage`."""
    done = 0
    progress(stage, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        progress(stage, done, total)
    progress(stage, done, done)
