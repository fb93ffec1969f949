"""A share of the work of filling an index: what it has to know, and what it counts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Event, Lock
from typing import NamedTuple, TypeAlias

import numpy as np

from .cluster import Cluster
from .encoder import Encoder
from .pacing import Pace, search_load
from .passages import Span, Windows, chosen_windows
from .progress import Progress
from .reading import Position, SourceDocument
from .settings import ReindexSettings
from .stored import Stored
from .writing import Rejects


@dataclass
class Filling:
    """Counts of documents: encoded or copied without text, found current, refused, deleted again.

    `shortened` are those of the encoded that have more text than the most passages reach.
    `until` is how far the source was read to the end; `settled` says that nothing can appear before it.
    """

    encoded: int = 0
    without_text: int = 0
    skipped: int = 0
    rejected: int = 0
    deleted: int = 0
    shortened: int = 0
    until: Position = field(default_factory=Position)
    settled: bool = False

    def add(self, other: Filling) -> None:
        """Add the counts of another share."""
        self.encoded += other.encoded
        self.without_text += other.without_text
        self.skipped += other.skipped
        self.rejected += other.rejected
        self.deleted += other.deleted
        self.shortened += other.shortened

    def book(self, page: list[Pending]) -> None:
        """Count a page that was written."""
        texts = sum(pending.vector is not None for pending in page)
        self.encoded += texts
        self.without_text += len(page) - texts
        self.shortened += sum(not pending.whole for pending in page)


class Pending(NamedTuple):
    """A document to write, what stands in its place, and its vector (None without text).

    One split into passages has a vector `(n, dim)` for its n `spans`; `whole` says that they reach its end.
    """

    document: SourceDocument
    stored: Stored | None
    vector: np.ndarray | None
    spans: tuple[Span, ...] = ()
    whole: bool = True


@dataclass(frozen=True)
class Job:
    """Everything a share of the work needs to know."""

    cluster: Cluster
    source: str
    destination: str
    encoder: Encoder
    text_fields: tuple[str, ...]
    settings: ReindexSettings
    rejects: Rejects
    stop: Event = field(default_factory=Event)

    @cached_property
    def windows(self) -> Windows | None:
        """Give how documents are split into passages, None for one vector a document."""
        return chosen_windows(self.settings, self.encoder)

    @cached_property
    def pace(self) -> Pace:
        """Give the pace that all workers share."""
        settings = self.settings
        return Pace(
            settings.max_docs_per_second, settings.slow_search_ms, partial(search_load, self.cluster),
            sleep=self.stop.wait,
        )  # fmt: skip


class Meter:
    """Adds up the progress of all workers."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done, self._lock = progress, total, 0, Lock()

    def add(self, documents: int) -> None:
        """Book documents as done."""
        with self._lock:
            self._done += documents
            self._progress("reindex", self._done, max(self._total, self._done))


Work: TypeAlias = Callable[[Job, tuple[int, int], Position, Position | None, Meter], Filling]
"""Reads one share from a position to another and writes what is not current."""
