"""Writes an encoder's vectors into a new index beside the old one, and moves an alias when all is there.

In place there is one index, and no alias: see the package `in_place`.

The destination is the checkpoint: beside every vector stand the encoder's fingerprint and the source's
`_seq_no`, so a restart asks the destination what it has and encodes only the rest.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..cluster.connection import Cluster, path_of
from ..cluster.default_pipeline import DEFAULT, asked_through, found_pipeline, pipeline_path
from ..cluster.destinations import MAX_REFUSED, alias_target, put_record, record_event, switch, write_record
from ..cluster.reading import count_missing, settled_position
from ..cluster.record import Deployment, IndexInfo
from ..cluster.writing import Rejects, rejects_of
from ..encoding.contract import Encoder
from ..encoding.opening import load_encoder
from ..errors import ClusterError
from ..files.remembered import remember_encoder
from ..progress import Progress, silent
from .job import Filling, Job
from .planning import Plan, plan
from .settings import ReindexSettings
from .syncing import catch_up
from .targets.beside import fill, renew
from .targets.in_place import fill_in_place, place_changes
from .targets.in_place_checks import plan_in_place
from .verification import Verification, verify, verify_in_place

EXISTS = "resource_already_exists_exception"


@dataclass(frozen=True)
class Succession:
    """What became of the deployment of an index whose alias moves to another: it was taken over into
    `pipeline`, or `command` deploys the new index."""

    way: str
    pipeline: str | None
    command: str | None


@dataclass(frozen=True)
class Reindexing:
    """What a reindex did: counts of documents, and whether the alias was switched; in place there is none.

    `shortened` have more text than `max_passages` reach. `deployment` is what became of the deployment of the
    index that had the alias before, `tuned_before` names it if `tune` found something for it.
    """

    source: str
    destination: str
    alias: str | None
    documents: int
    encoded: int
    skipped: int
    without_text: int
    rejected: int
    deleted: int
    rejects_file: Path | None
    switched: bool
    seconds: float
    shortened: int = 0
    deployment: Succession | None = None
    tuned_before: str | None = None

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
    With the setting `in_place` the vectors go into `source` itself.
    """
    started = time.monotonic()
    settings = settings or ReindexSettings()
    cluster = cluster.patient(settings.patience_s)
    encoder = encoder if not isinstance(encoder, (str, Path)) else opened(encoder, settings)
    if settings.in_place:
        return reindex_in_place(cluster, source, encoder, settings, progress)
    todo = prepare(cluster, source, encoder, settings)
    rejects = rejects_of(todo.destination)
    rejects.clear()
    remember_encoder(encoder.fingerprint, getattr(encoder, "folder", None))
    job = Job(cluster, todo.source, todo.destination, encoder, todo.fields, settings, rejects)
    filling = fill(job, progress=progress)
    whole = settings.slice is None
    if whole:
        filling.add(renew(job))
        finish(cluster, todo, rejects, filling, settings)
        require_verified(
            verify(
                cluster,
                todo.destination,
                encoder,
                rejected=rejects.ids(),
                until=filling.until,
                progress=progress,
            )
        )
    switched = whole and (filling.rejected == 0 or settings.accept_rejects)
    tuned_before = tuned_predecessor(cluster, todo) if switched else None
    deployment = take_over(cluster, todo, job, filling) if switched else None
    if whole:
        rejects.save()
    return Reindexing(
        todo.source,
        todo.destination,
        todo.alias,
        cluster.count(todo.destination),
        filling.encoded,
        filling.skipped,
        filling.without_text,
        filling.rejected,
        filling.deleted,
        rejects.file if filling.rejected else None,
        switched,
        time.monotonic() - started,
        filling.shortened,
        deployment,
        tuned_before,
    )


def opened(folder: Path | str, settings: ReindexSettings) -> Encoder:
    """Load the encoder of a folder as the settings want documents to be encoded."""
    return load_encoder(folder, precision=settings.precision, backend=settings.backend)


def reindex_in_place(
    cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings, progress: Progress
) -> Reindexing:
    """Write vectors into the documents of the index itself, and verify them.

    Its record says complete only when every document has its vector, or the refused ones were accepted.
    Raises the errors of `plan_in_place`, and ClusterError when something differs at the end.
    """
    started = time.monotonic()
    todo = plan_in_place(cluster, name, encoder, settings)
    rejects = rejects_of(todo.index)
    rejects.clear()
    first = todo.requests[0]
    cluster.request(first["method"], first["path"], first["body"])
    remember_encoder(encoder.fingerprint, getattr(encoder, "folder", None))
    job = Job(cluster, todo.index, todo.index, encoder, todo.fields, settings, rejects)
    filling = fill_in_place(job, progress=progress)
    refused, info = rejects.ids(), cluster.index_info(todo.index)
    require_verified(
        verify_in_place(cluster, info, encoder, rejected=refused, until=filling.until, progress=progress)
    )
    complete = not refused or settings.accept_rejects
    changes = place_changes(info, filling) | {
        "state": "complete" if complete else "filling",
        "rejected": len(refused),
        "refused": refused[:MAX_REFUSED],
    }
    documents = cluster.count(todo.index)
    details = {"documents": documents, "encoded": filling.encoded}
    record_event(cluster, todo.index, "filled in place", details, **changes)
    rejects.save()
    return Reindexing(
        todo.index,
        todo.index,
        None,
        documents,
        filling.encoded,
        filling.skipped,
        filling.without_text,
        len(refused),
        0,
        rejects.file if refused else None,
        False,
        time.monotonic() - started,
    )


def prepare(cluster: Cluster, source: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Plan, and make the destination ready to take documents; give what was planned."""
    while True:
        todo = plan(cluster, source, encoder, settings)
        try:
            create(cluster, todo)
            return todo
        except ClusterError as error:
            # Another process was first, or this request was carried out although its answer was lost.
            if error.kind != EXISTS or todo.exists:
                raise


def create(cluster: Cluster, todo: Plan) -> None:
    """Create the destination, or make the one from an earlier run ready to take documents."""
    first = todo.requests[0]
    cluster.request(first["method"], first["path"], first["body"])
    if todo.exists:
        info = cluster.index_info(todo.destination)
        aliases = {todo.alias: "made" if todo.alias_made else "moved", **info.record.aliases}
        record = info.record.changed(
            alias=todo.alias, previous=todo.previous, aliases=aliases, **todo.arithmetic
        )
        if record != info.record:  # whatever is written replaces what another process writes now
            put_record(cluster, info, record)
    cluster.wait_until_usable(todo.destination)


def take_over(cluster: Cluster, todo: Plan, job: Job, filling: Filling) -> Succession | None:
    """Move the alias to the destination, with the deployment, and record it when it moved.

    What was written since the last pass comes in right before, and what is under way right after.
    """
    target = alias_target(cluster, todo.alias)
    moves = target is not None and target.name != todo.destination
    deployment = hand_over(cluster, target, todo.destination) if target is not None and moves else None
    if filling.settled:
        filling.add(catch_up(job))
    switch(cluster, todo.alias, target, todo.destination)
    if filling.settled:
        filling.add(catch_up(job))
    if target is None or moves:
        origin = target.name if target else None
        record_event(cluster, todo.destination, "switched", {"alias": todo.alias, "from": origin})
    return deployment


def tuned_predecessor(cluster: Cluster, todo: Plan) -> str | None:
    """Name the index that has the alias now if it is another one and was tuned: that stays with it."""
    target = alias_target(cluster, todo.alias)
    replaced = target is not None and target.name != todo.destination
    return target.name if target is not None and replaced and target.record.tuning else None


def require_verified(found: Verification) -> None:
    """Raise ClusterError unless all agrees; an alias then stays where it is."""
    if found.ok:
        return
    problems = "; ".join(found.problems())
    if found.destination == found.source:
        raise ClusterError(
            f"not every vector in '{found.source}' fits its document: {problems}",
            hint="run the same command again; if it stays so, start anew: hybridr remove " + found.source,
        )
    raise ClusterError(
        f"'{found.destination}' differs from '{found.source}', the alias was not switched: {problems}",
        hint="run the same command again; if it stays so, start anew: delete the destination first",
    )


def finish(
    cluster: Cluster, todo: Plan, rejects: Rejects, filling: Filling, settings: ReindexSettings
) -> None:
    """Restore the original settings, check that every document is there, and record how far the source is in.

    Raises ClusterError when the counts differ; the alias then stays where it is.
    """
    path = path_of(todo.destination, "_settings")
    cluster.request("PUT", path, {"index": todo.after})
    cluster.refresh(todo.destination)
    expected, found = cluster.count(todo.source), cluster.count(todo.destination)
    refused = rejects.ids()
    differs = found + count_missing(cluster, todo.destination, refused) != expected
    if differs and not (filling.settled and settled_position(cluster, todo.source) != filling.until):
        raise ClusterError(
            f"'{todo.destination}' holds {found} documents and {len(refused)} were refused, but "
            f"'{todo.source}' holds {expected}: the alias was not switched",
            hint="documents written into it are kept by: hybridr sync; else run the same command again",
        )
    changes = {
        "state": "complete",
        "rejected": len(refused),
        "refused": refused[:MAX_REFUSED],
        "synced": filling.until.seq_no if filling.settled else None,
    }
    details = {"documents": found, "encoded": filling.encoded, "deleted": filling.deleted}
    record_event(cluster, todo.destination, "filled", details, **changes)


def hand_over(cluster: Cluster, old: IndexInfo, new: str) -> Succession | None:
    """Give an index, before it gets the alias, the deployment of the one that has it now.

    Only what clients alone use can be copied: a model asks for vectors of the old index's encoder. The old
    index keeps its own, for a rollback. None where nothing is deployed, or the new index is already.
    """
    known, target = old.record.deployment, cluster.index_info(new)
    if not known or target.record.deployment:
        return None
    pipeline, body = f"hybridr-{new}", found_pipeline(cluster, known.pipeline)
    taken = target.settings.get(DEFAULT, "_none") not in ("_none", pipeline)
    if known.way != "client" or body is None or taken:
        return Succession(known.way, None, command_of(target, known))
    cluster.request("PUT", pipeline_path(pipeline), body)
    cluster.request("PUT", path_of(new, "_settings"), asked_through(pipeline))
    write_record(cluster, new, deployment=known.model_copy(update={"pipeline": pipeline}))
    return Succession(known.way, pipeline, None)


def command_of(info: IndexInfo, known: Deployment) -> str:
    """Give the command that deploys an index as a record says."""
    server = f" --server {known.server}" if known.server else ""
    return f"hybridr deploy {info.record.source or info.name} --way {known.way}{server}"
