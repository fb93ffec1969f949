"""Runners: how the shares of a reindex are worked on, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Any, ClassVar, Protocol

from ...families import member_of
from ..job import Meter
from ..settings import ReindexSettings


class PackedTask(Protocol):
    """A task as it travels to another process, by pickle."""

    def open(self, threads: int) -> Task:
        """Get ready there, with `threads` of the processor for the encoder. Raises HybridrError."""


class Task(Protocol):
    """What is done with every share of a job, and what all who do it must know."""

    @property
    def stop(self) -> Event:
        """Return what asks all in this process to end soon after what is at hand."""

    @property
    def meter(self) -> Meter:
        """Count documents."""

    def __call__(self, share: Any) -> Any:
        """Work on one share and give what came of it."""

    def packed(self, workers: int) -> PackedTask:
        """Get ready to travel to each of so many workers."""


class Runner(Protocol):
    """Works on shares at once, wherever that is."""

    name: ClassVar[str]

    def __init__(self, settings: ReindexSettings) -> None:
        """Read from the settings how many workers there are, and on which machines."""

    def check(self) -> None:
        """Raise SettingsError for what it lacks on this machine, before anything is written."""

    def run(self, task: Task, shares: Sequence[Any]) -> list[Any]:
        """Do the task with every share; give what came of each, in their order.

        When one fails, or Ctrl-C is pressed, the others are asked to end after what they are at; then this
        is raised.
        """


def runner(settings: ReindexSettings) -> Runner:
    """Return what shares are run by."""
    member: Runner = member_of("indexing.runners", settings.runner)(settings)
    return member
