"""Targets: where vectors go, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ...cluster.connection import Cluster
from ...cluster.reading import Position
from ...cluster.record import IndexInfo, Record
from ...encoders.contract import Encoder
from ...families import member_of
from ...records import Progress, silent
from ..job import Filling, Job
from ..lag import Lag
from ..planning import Plan
from ..settings import ReindexSettings

SAMPLE = 64  # documents


@dataclass(frozen=True)
class Succession:
    """What became of the deployment of an index whose alias moves to another: it was taken over into
    `pipeline`, or `command` deploys the new index."""

    way: str
    pipeline: str | None
    command: str | None


class Ending(NamedTuple):
    """How a reindex ended: documents refused for good, whether the alias moved, and what that brought along.

    `tuned_before` names the index that had the alias before if `tune` or `learn` found something for
    it, `along` the aliases that moved with it. `carried` counts what clients wrote into other indices with
    vectors: documents `changed` and `deleted`, and `conflicts`, which the source changed as well.
    `info` is the index as its record was written last.
    """

    rejected: int
    switched: bool = False
    deployment: Succession | None = None
    tuned_before: str | None = None
    along: tuple[str, ...] = ()
    carried: dict[str, int] | None = None
    info: IndexInfo | None = None


class Round(NamedTuple):
    """What a round of syncing did, in documents: see `SyncResult`."""

    copied: int
    deleted: int
    renewed: int
    waiting: int
    rejected: int


@dataclass(frozen=True)
class Extent:
    """How much a verification compares: `sample` documents whole, nothing that was written after `until`.

    `rejected` are the ids that the engine refused, which may be missing. `source` is the index to compare
    with, where it was described just now.
    """

    rejected: frozenset[str] = frozenset()
    until: Position | None = None
    sample: int = SAMPLE
    seed: int | None = None
    progress: Progress = silent
    source: IndexInfo | None = None


@dataclass(frozen=True)
class Finding:
    """One comparison: how many documents, or what it is `of`, were looked at, and those that differ."""

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
    """How an index with vectors stands: documents that its encoder looked at in their present state, what of
    its source it lacks, and what clients did here that the source lacks (None: cannot be told)."""

    current: int
    lag: Lag | None = None
    writes: dict[str, Any] | None = None


class Target(Protocol):
    """Where the vectors of an index go; `apart`: that is an index of its own, with a way back."""

    name: str
    apart: bool

    def plan(self, cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
        """Check everything that can be checked before the first write, and say what would be sent.

        Raises SettingsError, ClusterError, DataError, ModelError, NotFound for what stands in the way.
        """

    def begin(self, cluster: Cluster, todo: Plan) -> IndexInfo:
        """Make ready to take vectors, and return the index. One that another process made meanwhile is a
        ClusterError."""

    def fill(
        self, job: Job, *, since: Position | None = None, once: bool = False, progress: Progress = silent
    ) -> Filling:
        """Write the vectors of all documents of the source behind `since`; give the counts.

        Passes go on until one finds nothing new, unless the source shall be read but `once`.
        """

    def retry(self, job: Job, doc_ids: Sequence[str]) -> Filling:
        """Write documents once more that the engine refused, those of them that are there and not current."""

    def complete(self, job: Job, todo: Plan, filling: Filling, progress: Progress) -> Ending:
        """Verify what was filled, record it and let searches ask it. Raises ClusterError when it differs."""

    def sync(self, job: Job, info: IndexInfo, progress: Progress) -> Round:
        """Bring in what happened since the settled position on record, and move that on."""

    def findings(
        self, cluster: Cluster, info: IndexInfo, encoder: Encoder | None, extent: Extent
    ) -> list[Finding]:
        """Compare vectors with the documents they stand for; without an encoder no text is encoded again."""

    def state(self, cluster: Cluster, info: IndexInfo) -> State:
        """Look how an index stands; nothing is changed."""

    def remove(
        self, cluster: Cluster, source: str, generations: Sequence[IndexInfo], *, dry_run: bool = False
    ) -> dict[str, Any]:
        """Take all vectors away; give `indices` and alias `actions`, and other JSON values of its own."""


def target_of(chosen: ReindexSettings | Record) -> Target:
    """Return the target that settings or a record name: `target`, else `in_place`, else beside the source.

    Raises SettingsError for an unknown one.
    """
    name = chosen.target or ("in_place" if chosen.in_place else "beside")
    target: Target = member_of("indexing.targets", name)()
    return target
