"""Runners: how the shares of a reindex are worked on, one file each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ...files.family import member_of

S = TypeVar("S")
T = TypeVar("T")
CHOSEN = "threads"


class Runner(Protocol):
    """Works on shares at once, wherever that is."""

    name: str

    def run(self, work: Callable[[S], T], shares: Sequence[S], stop: Callable[[], None]) -> list[T]:
        """Give `work` of every share, in their order.

        When one fails, or Ctrl-C is pressed, `stop` asks the others to end after what they are at; then this
        is raised.
        """


def runner() -> Runner:
    """Give what shares are run by."""
    found: Runner = member_of("reindexing.runners", CHOSEN)()
    return found
