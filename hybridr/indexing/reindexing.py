"""Reindexing: writes an encoder's vectors into an index, verifies them, and switches the alias; and
syncing, which keeps an index with vectors up to date after the switch.

By default a new index is made beside the old one, and an alias moves when all documents are there. The
index is the checkpoint: each document stores the encoder's fingerprint and the source's state beside its
vector, so a restart encodes only what is missing.

A sync brings in changes of the source and encodes writes of clients. Both indices may be written. A
document that only one of them changed since the last round gets that state; one that both changed gets the
source's state. Only where the position of the last round is unknown, versions decide.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote
from typing import Any

from ..cluster.aliases import require_no_rollover, resolve_complete
from ..cluster.connection import Cluster
from ..cluster.destinations import (
    check_fingerprint,
    destinations,
    indices_in_use,
    is_copy,
    is_restored,
    register_destination,
    require_source_index,
    view_of,
    write_record,
)
from ..cluster.failures import EXISTS, is_busy
from ..cluster.known_problems import require_no_loss
from ..cluster.mappings import differing_fields
from ..cluster.reading import Position
from ..cluster.record import IndexInfo
from ..cluster.writing import accepted_ids, cut_to_room, refusal_changes, refused_ids, rejects_of
from ..encoders.contract import Encoder, offers_of, reads_tokens
from ..encoders.opening import load_encoder
from ..errors import ClusterError, DataError, SettingsError, Unreachable
from ..files.remembered import remember_encoder
from ..records import Progress, Reported, silent
from .job import Filling, Job
from .lag import Lag
from .planning import Plan, answer_size_note
from .recipe import TextRecipe
from .representations import fitted_states
from .settings import ReindexSettings
from .targets import Succession, target_of
from .terms.fitting import Provision, TermTableBuilder, provide_term_table

COUNTED = ("encoded", "skipped", "without_text", "deleted", "shortened", "from_clients")
"""Counts of a filling that a result repeats."""


@dataclass(frozen=True)
class ReindexResult(Reported):
    """Result of a reindex: counts of documents, and whether the alias was switched (in place there is none).

    `from_clients` counts encoded documents that clients wrote into an index with vectors; `shortened` those
    with more text than `max_passages` cover. `deployment` says what became of the deployment of the index
    that had the alias before; `tuned_before` names that index if it was tuned; `along` are filtered aliases
    that moved too. `term_table` is None if none was requested. `cautions` say who may read more in the new
    index than in its source; `notes` say which fields changed, where words are searched, and how to keep
    responses small. `carried` counts writes of clients in other indices with vectors: `changed`, `deleted`,
    `conflicts`. `confidence` says what scores mean here, if `Index.reindex` measured that; `seconds` are
    those of the whole call.
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
    from_clients: int = 0
    deployment: Succession | None = None
    tuned_before: str | None = None
    along: tuple[str, ...] = ()
    term_table: Provision | None = None
    cautions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    carried: dict[str, int] | None = None
    confidence: str | None = None


def reindex(
    cluster: Cluster,
    source: str,
    encoder: Encoder | Path | str,
    settings: ReindexSettings | None = None,
    *,
    progress: Progress = silent,
) -> ReindexResult:
    """Fill an index with the documents of `source` and their vectors, verify it, then switch the alias.

    An encoder folder is opened in the number format of the setting `precision`. A second run continues
    where the first stopped, or brings in what changed. Documents without text are copied
    without a vector. Documents that the engine refuses go to a rejects file, and the alias is switched only
    with `accept_rejects`. Raises the errors of `plan`, and ClusterError when the count is wrong at the end.
    With the setting `in_place` the vectors go into `source` itself. At the end the index gets a term table.
    """
    settings = settings or ReindexSettings()
    cluster = cluster.with_patience(settings.patience_s)
    if isinstance(encoder, (str, Path)):
        precision = settings.chosen_precision or "fp32"
        encoder = load_encoder(encoder, precision=precision, backend=settings.backend)
    else:
        settings = settings.model_copy(update={"precision": None})
    return reindex_planned(prepare(cluster, source, encoder, settings), progress=progress)


def reindex_planned(
    todo: Plan, *, fill: Callable[[Job, Plan], Filling] | None = None, progress: Progress = silent
) -> ReindexResult:
    """Carry out a plan from `prepare`: fill the index, verify it, switch the alias, build the term table.

    Documents are written by the function `fill` if given, else by the target.
    """
    proposal, record = todo.proposal, todo.record
    encoder, cluster = proposal.encoder, proposal.cluster
    info = todo.begun or cluster.index_info(todo.destination)
    rejects = rejects_of(info)
    remember_encoder(encoder.fingerprint, offers_of(encoder).folder)
    rejects.clear()
    recipe = TextRecipe(encoder, proposal.settings, record.fields, fitted_states(record))
    listener = None
    if recipe.settings.term_table and recipe.shows_states and reads_tokens(encoder) and not record.passages:
        listener = TermTableBuilder(cluster, info, encoder, proposal.documents)
    names, infos = (record.source, todo.destination), (info, proposal.info)
    job = Job(cluster, *names, recipe, rejects, listener=listener, initial_infos=infos)
    job = replace(job, documents=proposal.documents)
    filling = fill(job, todo) if fill else target_of(job.settings).fill(job, progress=progress)
    ending, table = target_of(job.settings).complete(job, todo, filling, progress), None
    job.rejects.save()
    if job.settings.term_table:
        index = ending.info or job.destination
        table = provide_term_table(job.cluster, index, job.encoder, listener=job.listener, progress=progress)
    counts = {name: getattr(filling, name) for name in COUNTED}
    outcome = ending._asdict()
    del outcome["info"]
    notes = (*todo.proposal.notes, answer_size_note(job.cluster, job.destination_before, todo.record))
    return ReindexResult(
        source=job.source,
        destination=job.destination,
        alias=todo.record.alias or None,
        documents=job.cluster.count(job.destination),
        rejects_file=job.rejects.file if ending.rejected else None,
        seconds=time.monotonic() - todo.started,
        term_table=table,
        cautions=tuple(todo.cautions),
        notes=notes,
        **outcome,
        **counts,
    )


def prepare(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Plan the reindex and create its index, ready to take vectors; return the plan."""
    started = time.monotonic()
    while True:
        todo = plan(cluster, name, encoder, settings)
        try:
            return replace(todo, begun=target_of(settings).begin(cluster, todo), started=started)
        except ClusterError as error:
            # Another process was first, or this request was carried out although its answer was lost.
            if error.kind != EXISTS or todo.exists:
                raise


def plan(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Return what a reindex would do, after all checks that need no write.

    Raises SettingsError, ClusterError, DataError, ModelError, NotFound for what prevents it.
    """
    return target_of(settings).plan(cluster, name, encoder, settings)


UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class SyncResult(Reported):
    """Result of a round of sync: counts of documents copied from the source, deleted, and encoded after
    writes of clients.

    `waiting` documents were changed again while being encoded; the next round takes them. `rejected` were
    refused by the engine; every round tries them again. `unlike` names fields that the index lacks or maps
    differently from its source, which only a new index can fix. `others` are indices that clients search by
    other aliases; they were left as they are.
    """

    source: str
    destination: str
    copied: int
    deleted: int
    renewed: int
    waiting: int
    rejected: int
    started: str
    seconds: float
    unlike: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def sync(
    cluster: Cluster,
    name: str,
    encoder: Encoder,
    settings: ReindexSettings | None = None,
    *,
    dry_run: bool = False,
    progress: Progress = silent,
) -> SyncResult:
    """Bring changes of the source since the last round into its index with vectors, and encode documents that
    lack vectors.

    `settings` apply only as far as they do not change the vectors. With `dry_run` nothing is written: the
    counts are those of a round that began now. Raises DataError if `name` has no complete index with
    vectors, NotFound if its source is gone, FingerprintMismatch for another encoder.
    """
    started, clock = datetime.now(timezone.utc), time.monotonic()
    settings = settings or ReindexSettings()
    cluster = cluster.with_patience(settings.patience_s)
    view = view_of(cluster, name)
    info = resolve_complete(view, name)
    require_no_rollover(view, info)
    target, infos = target_of(info.record), [info]
    if target.is_separate:
        source = require_source_index(view, info)
        infos.append(source)
        if is_restored(info, source):
            raise DataError(
                f"'{source.name}' was restored from a snapshot since '{info.name}' was made of it",
                hint=f"hybridr reindex {quote(source.name)}   makes another index; searches go on meanwhile",
            )
        require_no_loss(cluster, source)
    check_fingerprint(encoder.fingerprint, info)
    if dry_run:
        return preview_sync(cluster, info, started)
    if target.is_separate:
        register_destination(cluster, info, view)  # the reindex may have lacked the right to
    source_name = info.record.source if target.is_separate else info.name
    recipe = TextRecipe.of(info.record, encoder, settings)
    job = Job(cluster, source_name, info.name, recipe, rejects_of(info), initial_infos=tuple(infos))
    job.rejects.clear()
    done = target.sync(job, info, progress)
    job.rejects.save()
    view = view_of(cluster, job.source)
    source_info = view.index_info(job.source)
    in_use = indices_in_use(destinations(view, source_info))
    others = (searched.name for searched in in_use if searched.uuid != info.uuid)
    differing = differing_fields(source_info, view.index_info(job.destination))
    started_at, seconds = started.isoformat(timespec="seconds"), time.monotonic() - clock
    return SyncResult(job.source, job.destination, *done, started_at, seconds, differing, tuple(others))


def preview_sync(cluster: Cluster, info: IndexInfo, started: datetime) -> SyncResult:
    """Return what a round of sync would do to an index with vectors, without a write."""
    target = target_of(info.record)
    state = target.state(cluster, info)
    lag = state.lag or Lag(0, 0, 0)
    source = info.record.source if target.is_separate else info.name
    return SyncResult(
        source,
        info.name,
        copied=lag.inserts + lag.updates - lag.refused,
        deleted=lag.deletes,
        renewed=cluster.count(info.name) - state.current - lag.updates,
        waiting=0,
        rejected=lag.refused,
        started=started.isoformat(timespec="seconds"),
        seconds=(datetime.now(timezone.utc) - started).total_seconds(),
        unlike=differing_fields(cluster.index_info(source), info),
    )


def catch_up(job: Job, info: IndexInfo, *, progress: Progress = silent) -> tuple[Filling, IndexInfo]:
    """Bring in changes of the source since the synced position, and advance that position in the record.

    `info` describes the index; its new description is returned with the counts.
    """
    filling, changes = fill_and_retry(job, info, progress)
    if any(getattr(info.record, name) != value for name, value in changes.items()):
        info = write_record(job.cluster, info.name, **changes)
    return filling, info


def fill_and_retry(job: Job, info: IndexInfo, progress: Progress) -> tuple[Filling, dict[str, Any]]:
    """Bring in what the source wrote since the synced position, and retry documents that were rejected
    before.

    Returns the counts and the changes to the record. The position does not advance while more documents are
    rejected than the record can name: the next round reads them all again.
    """
    target, earlier = target_of(info.record), set(job.rejects.ids())
    filling = target.fill(job, since=synced_position(info), once=True, progress=progress)
    new_rejects = set(job.rejects.ids())
    filling.add(target.retry(job, [doc_id for doc_id in refused_ids(info) if doc_id not in new_rejects]))
    refused = set(job.rejects.ids())
    # A document accepted as missing that changed since and was refused again is no longer accepted.
    changes = refusal_changes(info, refused, (accepted_ids(info) & refused) - (new_rejects - earlier))
    if len(refused) > len(cut_to_room(refused)):
        position = synced_position(info)
        changes["synced"] = position.seq_no if position else None
    elif filling.settled:
        changes["synced"] = filling.until.seq_no
        changes |= {"taken": {}} if info.record.taken else {}
    return filling, changes


def sync_rounds(
    cluster: Cluster,
    name: str,
    encoder: Encoder,
    settings: ReindexSettings | None = None,
    *,
    every_s: float,
    missed: Callable[[ClusterError], None] = lambda _: None,
) -> Iterator[SyncResult]:
    """Yield the result of one sync after another, every `every_s` seconds, until the caller stops.

    If the cluster is unreachable or busy, rounds are retried for the settings' `patience_s` after the last
    success; then the error is raised. `missed` is called with the error of each failed round. Progress is
    stored in the index, so stopping is safe at any time.
    """
    patience_s = (settings or ReindexSettings()).patience_s
    last_success = time.monotonic()
    while True:
        round_start = time.monotonic()
        try:
            result = sync(cluster, name, encoder, settings)
            last_success = time.monotonic()
            yield result
        except ClusterError as failure:
            is_away = isinstance(failure, Unreachable) or is_busy(failure)
            if not is_away or time.monotonic() - last_success > patience_s:
                raise
            missed(failure)
        time.sleep(max(0.0, every_s - (time.monotonic() - round_start)))


def parse_duration(text: str) -> float:
    """Return the seconds of a duration such as `30s`, `5m`, `1h`, or a plain number. Raises SettingsError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or not float(match[1]):
        raise SettingsError(f"'{text}' is not a length of time", hint="it looks like 30s, 5m or 1h")
    return float(match[1]) * UNITS_S[match[2] or "s"]


def synced_position(info: IndexInfo) -> Position | None:
    """Return the position up to which the source was brought in; None if unknown, or for a copied record."""
    synced = info.record.synced
    return Position(dict(synced)) if synced and not is_copy(info) else None
