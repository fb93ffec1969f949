"""Targets: where vectors go, one file each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from ...cluster.connection import Cluster
from ...cluster.reading import Position
from ...cluster.record import IndexInfo, Record
from ...encoders.contract import Encoder
from ...families import load_member
from ...records import Progress, silent
from ..job import Filling, Job
from ..lag import Lag
from ..planning import Plan
from ..settings import ReindexSettings

SAMPLE = 64  # documents
LastLook: TypeAlias = Callable[[], None]
"""A last check right before a deletion; it raises if something would be lost."""


@dataclass(frozen=True)
class Succession:
    """The fate of the old index's deployment when its alias moves: copied as `pipeline`, or `command` deploys
    the new index.
    """

    way: str
    pipeline: str | None
    command: str | None


class Ending(NamedTuple):
    """End of a reindex: count of rejected documents, whether the alias moved, and what moved with it.

    `tuned_before` names the index that had the alias before, if it was tuned; `along` the filtered aliases
    that moved too. `carried` counts writes of clients in other indices with vectors: `changed`, `deleted`,
    `conflicts`. `info` is the last description of the index.
    """

    rejected: int
    switched: bool = False
    deployment: Succession | None = None
    tuned_before: str | None = None
    along: tuple[str, ...] = ()
    carried: dict[str, int] | None = None
    info: IndexInfo | None = None


class Round(NamedTuple):
    """Counts of documents of one round of sync: see `SyncResult`."""

    copied: int
    deleted: int
    renewed: int
    waiting: int
    rejected: int


@dataclass(frozen=True)
class Extent:
    """Extent of a verification: a `sample` of whole documents, and no operation after `until`.

    `rejected` are ids that the engine refused, which may be missing. `source` is a recent description of the
    index to compare with.
    """

    rejected: frozenset[str] = frozenset()
    until: Position | None = None
    sample: int = SAMPLE
    seed: int | None = None
    progress: Progress = silent
    source: IndexInfo | None = None


@dataclass(frozen=True)
class Finding:
    """A check of a verification: how many documents (or `of`) were checked, and the ids that differ."""

    name: str
    looked_at: int
    differing: list[str] = field(default_factory=list)
    detail: str = ""
    of: str = "documents"

    @property
    def ok(self) -> bool:
        """Return whether nothing differs."""
        return not self.differing and not self.detail


class State(NamedTuple):
    """Progress of an index with vectors: count of documents with a current vector, its lag behind the source,
    and writes of clients that the source lacks (None if unknown).
    """

    current: int
    lag: Lag | None = None
    writes: dict[str, Any] | None = None


class Target(Protocol):
    """Place of an index's vectors; `is_separate` if it is another index, which allows a rollback."""

    name: str
    is_separate: bool

    def plan(self, cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
        """Return what a reindex would do, after all checks that need no write.

        Raises SettingsError, ClusterError, DataError, ModelError, NotFound for what prevents it.
        """

    def begin(self, cluster: Cluster, todo: Plan) -> IndexInfo:
        """Create the index or get it ready to take vectors; return its description. Raises ClusterError if
        another process created it meanwhile.
        """

    def fill(
        self, job: Job, *, since: Position | None = None, once: bool = False, progress: Progress = silent
    ) -> Filling:
        """Write the vectors of all documents of the source with operations after `since`; return the counts.

        Passes repeat until one finds nothing new; with `once` there is a single pass.
        """

    def retry(self, job: Job, doc_ids: Sequence[str]) -> Filling:
        """Write documents again that the engine rejected before; return the counts."""

    def complete(self, job: Job, todo: Plan, filling: Filling, progress: Progress) -> Ending:
        """Verify the filled index, record that, and let searches use it. Raises ClusterError if it fails."""

    def sync(self, job: Job, info: IndexInfo, progress: Progress) -> Round:
        """Bring in what happened since the synced position, and advance the position; return the counts."""

    def findings(
        self, cluster: Cluster, info: IndexInfo, encoder: Encoder | None, extent: Extent
    ) -> list[Finding]:
        """Compare the vectors with their documents; without an encoder no text is encoded again."""

    def state(self, cluster: Cluster, info: IndexInfo) -> State:
        """Return how far the index is behind its source, without changing anything."""

    def remove(
        self, cluster: Cluster, source: str, infos: Sequence[IndexInfo], last_look: LastLook, *, dry_run: bool
    ) -> dict[str, Any]:
        """Remove all vectors; return `indices`, alias `actions`, and further JSON values of this target.

        `last_look` is called right before the deletion, once no alias leads to the indices. If it raises,
        they are kept.
        """


def target_of(named: ReindexSettings | Record) -> Target:
    """Return the target that settings or a record name: `target`, else `in_place`, else beside the source.

    Raises SettingsError for an unknown name.
    """
    name = named.target or ("in_place" if named.in_place else "beside")
    target: Target = load_member("indexing.targets", name)()
    return target
