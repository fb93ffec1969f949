"""Writes an encoder's vectors into a new index beside the old one, and moves an alias when all is there.

The destination is the checkpoint: beside every vector stand the encoder's fingerprint and the source's
`_seq_no`, so a restart asks the destination what it has and encodes only the rest.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .cluster import Cluster, path_of
from .destinations import MAX_REFUSED, alias_target, record_event, switch, write_meta
from .encoder import Encoder, load_encoder
from .errors import ClusterError
from .filling import Filling, Job, fill
from .known_encoders import remember_encoder
from .planning import Plan, plan
from .progress import Progress, silent
from .reading import settled_position
from .renewal import renew
from .returning import rollback
from .settings import ReindexSettings
from .stored import count_missing
from .syncing import catch_up
from .verification import Verification, verify
from .writing import Rejects, rejects_of

__all__ = ["Reindexing", "plan", "reindex", "rollback"]


@dataclass(frozen=True)
class Reindexing:
    """What a reindex did: counts of documents, and whether the alias was switched."""

    source: str
    destination: str
    alias: str
    documents: int
    encoded: int
    skipped: int
    without_text: int
    rejected: int
    deleted: int
    rejects_file: Path | None
    switched: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return {**asdict(self), "rejects_file": str(self.rejects_file) if self.rejects_file else None}


def reindex(
    cluster: Cluster,
    source: str,
    encoder: Encoder | Path | str,
    settings: ReindexSettings | None = None,
    *,
    progress: Progress = silent,
) -> Reindexing:
    """Fill an index with the documents of `source` and their vectors, verify it, then switch the alias.

    Running it again goes on where it stopped, or brings in what changed. Documents without text are copied
    without a vector. Documents that the engine refuses go to a rejects file, and the alias is switched only
    with `accept_rejects`. Raises the errors of `plan`, and ClusterError when the count is wrong at the end.
    """
    started = time.monotonic()
    settings = settings or ReindexSettings()
    encoder = encoder if not isinstance(encoder, (str, Path)) else opened(encoder, settings)
    todo = plan(cluster, source, encoder, settings)
    rejects = rejects_of(todo.destination)
    rejects.clear()
    create(cluster, todo, settings.patience_s)
    remember_encoder(encoder)
    job = Job(cluster, todo.source, todo.destination, encoder, todo.fields, settings, rejects)
    filling = fill(job, progress=progress)
    whole = settings.slice is None
    if whole:
        filling.add(renew(job))
        finish(cluster, todo, rejects, filling, settings)
        require_verified(verify(
            cluster, todo.destination, encoder, rejected=rejects.ids(), until=filling.until, progress=progress
        ))  # fmt: skip
    switched = whole and (filling.rejected == 0 or settings.accept_rejects)
    if switched:
        take_over(cluster, todo, job, filling)
    return Reindexing(
        todo.source, todo.destination, todo.alias, cluster.count(todo.destination), filling.encoded,
        filling.skipped, filling.without_text, filling.rejected, filling.deleted,
        rejects.file if filling.rejected else None, switched, time.monotonic() - started,
    )  # fmt: skip


def opened(folder: Path | str, settings: ReindexSettings) -> Encoder:
    """Load the encoder of a folder as the settings want documents to be encoded."""
    return load_encoder(folder, precision=settings.precision, backend=settings.backend)


def create(cluster: Cluster, todo: Plan, patience_s: float) -> None:
    """Create the destination, or make the one from an earlier run ready to take documents."""
    first = todo.requests[0]
    cluster.request(first["method"], first["path"], first["body"], patience_s=patience_s)
    if todo.exists:
        known = cluster.index_info(todo.destination).meta.get("aliases", {})
        aliases = {todo.alias: "made" if todo.alias_made else "moved", **known}
        changes = {"alias": todo.alias, "previous": todo.previous, "aliases": aliases} | todo.arithmetic
        write_meta(cluster, todo.destination, changes, patience_s=patience_s)
    cluster.wait_until_usable(todo.destination)


def take_over(cluster: Cluster, todo: Plan, job: Job, filling: Filling) -> None:
    """Move the alias to the destination, and record it when it moved.

    What was written since the last pass comes in right before, and what is under way right after.
    """
    target = alias_target(cluster, todo.alias)
    if filling.settled:
        filling.add(catch_up(job))
    switch(cluster, todo.alias, target, todo.destination)
    if filling.settled:
        filling.add(catch_up(job))
    if target is None or target.name != todo.destination:
        origin = target.name if target else None
        record_event(cluster, todo.destination, "switched", details={"alias": todo.alias, "from": origin})


def require_verified(found: Verification) -> None:
    """Raise ClusterError unless source and destination agree; the alias then stays where it is."""
    if not found.ok:
        raise ClusterError(
            f"'{found.destination}' differs from '{found.source}', the alias was not switched: "
            + "; ".join(found.problems()),
            hint="run the same command again; if it stays so, start anew: delete the destination first",
        )


def finish(
    cluster: Cluster, todo: Plan, rejects: Rejects, filling: Filling, settings: ReindexSettings
) -> None:
    """Restore the original settings, check that every document is there, and record how far the source is in.

    Raises ClusterError when the counts differ; the alias then stays where it is.
    """
    patience_s = settings.patience_s
    path = path_of(todo.destination, "_settings")
    cluster.request("PUT", path, {"index": todo.after}, patience_s=patience_s)
    cluster.refresh(todo.destination, patience_s=patience_s)
    expected, found = cluster.count(todo.source), cluster.count(todo.destination)
    refused = rejects.ids()
    differs = found + count_missing(cluster, todo.destination, refused, patience_s=patience_s) != expected
    if differs and not (filling.settled and settled_position(cluster, todo.source) != filling.until):
        raise ClusterError(
            f"'{todo.destination}' holds {found} documents and {len(refused)} were refused, but "
            f"'{todo.source}' holds {expected}: the alias was not switched",
            hint="documents written into it are kept by: hybridr sync; else run the same command again",
        )
    changes = {
        "state": "complete", "rejected": len(refused), "refused": refused[:MAX_REFUSED],
        "synced": filling.until.seq_no if filling.settled else None,
    }  # fmt: skip
    details = {"documents": found, "encoded": filling.encoded, "deleted": filling.deleted}
    record_event(cluster, todo.destination, "filled", changes, details=details, patience_s=patience_s)
