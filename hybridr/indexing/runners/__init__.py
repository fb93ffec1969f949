"""Runners: how the shares of a reindex are worked on, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Any, ClassVar, Protocol

from ...families import load_member
from ..job import Meter
from ..settings import ReindexSettings


class Task(Protocol):
    """A function to call with every share of a job, and what all workers share."""

    @property
    def stop(self) -> Event:
        """Return the event that asks all workers in this process to end soon."""

    @property
    def meter(self) -> Meter:
        """Return the counter of documents done."""

    def __call__(self, share: Any) -> Any:
        """Work on one share; return its result."""

    def packed(self, workers: int) -> Any:
        """Return the task in a form that can be pickled and sent to each of `workers` processes.

        Its method `open` returns the task there, with that many `threads` for the encoder.
        """


class Runner(Protocol):
    """Works on several shares at once, in threads or in other processes."""

    name: ClassVar[str]

    def __init__(self, settings: ReindexSettings) -> None:
        """Read from the settings how many workers there are, and on which machines."""

    def check(self) -> None:
        """Raise SettingsError, before anything is written, if the runner lacks something on this machine."""

    def run(self, task: Task, shares: Sequence[Any]) -> list[Any]:
        """Call the task with every share; return the results in the order of the shares.

        If one fails, or Ctrl-C is pressed, the others are asked to end, then the error is raised.
        """


def runner(settings: ReindexSettings) -> Runner:
    """Return the runner that the settings name."""
    member: Runner = load_member("indexing.runners", settings.runner)(settings)
    return member
