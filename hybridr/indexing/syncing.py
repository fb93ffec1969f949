"""Keeps an index with vectors up to date after the switch: brings in changes of its source and encodes writes
of clients.

Both indices may be written. A document that only one of them changed since the last round gets that state;
one that both changed gets the source's state, unless clients changed it more often.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ..cluster.connection import Cluster, path_of
from ..cluster.destinations import (
    check_fingerprint,
    destinations,
    is_copy,
    is_restored,
    live,
    name_destination,
    require_belonging,
    resolve_complete,
    write_record,
)
from ..cluster.failures import is_busy
from ..cluster.known_problems import require_no_loss
from ..cluster.mappings import unlike
from ..cluster.reading import Position
from ..cluster.record import IndexInfo
from ..cluster.writing import accepted_ids, refusals, refused_ids, rejects_of, with_room
from ..encoders.contract import Encoder
from ..errors import ClusterError, DataError, SettingsError, Unreachable
from ..records import Progress, Reported, silent
from .job import Filling, Job
from .lag import Lag
from .recipe import TextRecipe
from .settings import ReindexSettings
from .targets import target_of

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class SyncResult(Reported):
    """What a round of sync did: counts of documents copied from the source, deleted, and encoded after writes
    of clients.

    `waiting` documents were changed again while being encoded; the next round takes them. `rejected` were
    refused by the engine; every round tries them again. `unlike` names fields that the index lacks or maps
    differently from its source, which only a new index can mend. `others` are indices that clients search by
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

    Of `settings` only those count that do not change the vectors. With `dry_run` nothing is written: the
    counts are those of a round that began now. Raises DataError if `name` has no complete index with
    vectors, NotFound if its source is gone, FingerprintMismatch for another encoder.
    """
    started, clock = datetime.now(timezone.utc), time.monotonic()
    settings = settings or ReindexSettings()
    cluster = cluster.patient(settings.patience_s)
    info = resolve_complete(cluster, name)
    target = target_of(info.record)
    if target.apart:
        source = require_belonging(cluster, info)
        if is_restored(info, source):
            raise DataError(
                f"'{source.name}' was restored from a snapshot since '{info.name}' was made of it",
                hint=f"hybridr reindex {source.name}   makes another index; searches go on meanwhile",
            )
        require_no_loss(cluster, source)
    check_fingerprint(encoder.fingerprint, info)
    if dry_run:
        return counted(cluster, info, started)
    if target.apart:
        name_destination(cluster, info)  # the reindex may not have been allowed to
    source_name = info.record.source if target.apart else info.name
    recipe = TextRecipe.of(info.record, encoder, settings)
    job = Job(cluster, source_name, info.name, recipe, rejects_of(info.name), seen=(info,))
    job.rejects.clear()
    done = target.sync(job, info, progress)
    job.rejects.save()
    there = cluster.index_info(job.source)
    others = (searched.name for searched in live(destinations(cluster, there)) if searched.uuid != info.uuid)
    differing = unlike(there, cluster.index_info(job.destination))
    at, seconds = started.isoformat(timespec="seconds"), time.monotonic() - clock
    return SyncResult(job.source, job.destination, *done, at, seconds, differing, tuple(others))


def counted(cluster: Cluster, info: IndexInfo, started: datetime) -> SyncResult:
    """Return what a round of sync would do to an index with vectors, without a write."""
    target = target_of(info.record)
    state = target.state(cluster, info)
    lag = state.lag or Lag(0, 0, 0)
    source = info.record.source if target.apart else info.name
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
        unlike=unlike(cluster.index_info(source), info),
    )


def catch_up(job: Job, info: IndexInfo, *, progress: Progress = silent) -> tuple[Filling, IndexInfo]:
    """Bring in changes of the source since the synced position, and advance that position in the record.

    `info` describes the index; its new description is returned with the counts.
    """
    with unchanged_writes(job.cluster, info):
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
    target, before = target_of(info.record), set(job.rejects.ids())
    filling = target.fill(job, since=synced_position(info), once=True, progress=progress)
    anew = set(job.rejects.ids())
    filling.add(target.retry(job, [doc_id for doc_id in refused_ids(info) if doc_id not in anew]))
    refused = set(job.rejects.ids())
    # What changed since it was accepted as missing, and was refused again, is no longer accepted.
    changes = refusals(info, refused, (accepted_ids(info) & refused) - (anew - before))
    if len(refused) > len(with_room(refused)):
        stays = synced_position(info)
        changes["synced"] = stays.seq_no if stays else None
    elif filling.settled:
        changes["synced"] = filling.until.seq_no
        changes |= {"taken": {}} if info.record.taken else {}
    return filling, changes


def rounds(
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
    worked = time.monotonic()
    while True:
        began = time.monotonic()
        try:
            done = sync(cluster, name, encoder, settings)
            worked = time.monotonic()
            yield done
        except ClusterError as failure:
            away = isinstance(failure, Unreachable) or is_busy(failure)
            if not away or time.monotonic() - worked > patience_s:
                raise
            missed(failure)
        time.sleep(max(0.0, every_s - (time.monotonic() - began)))


def seconds_of(text: str) -> float:
    """Return the seconds of a duration such as `30s`, `5m`, `1h`, or a plain number. Raises SettingsError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or not float(match[1]):
        raise SettingsError(f"'{text}' is not a length of time", hint="it looks like 30s, 5m or 1h")
    return float(match[1]) * UNITS_S[match[2] or "s"]


def synced_position(info: IndexInfo) -> Position | None:
    """Return the position up to which the source was brought in; None if unknown, or if the record is that of
    another index.
    """
    synced = info.record.synced
    return Position(dict(synced)) if synced and not is_copy(info) else None


@contextmanager
def unchanged_writes(cluster: Cluster, info: IndexInfo) -> Iterator[None]:
    """Remove the index's final pipeline for the block, so that it does not change copied documents."""
    setting, path = "final_pipeline", path_of(info.name, "_settings")
    before = info.settings.get(f"index.{setting}") or info.record.original.get(setting)
    if before is None:
        yield
        return
    cluster.request("PUT", path, {"index": {setting: None}})
    try:
        yield
    finally:
        cluster.request("PUT", path, {"index": {setting: before}})
