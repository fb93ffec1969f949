"""The verb `hybridr sync`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ..arguments import DryRun, EncoderFolder, Reindexed
from ..options import Only
from ..session import NOTHING, Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.errors import ClusterError
    from hybridr.indexing.reindexing import SyncResult
    from hybridr.indexing.settings import ReindexSettings
    from hybridr.serving.gauges import SyncGauges

OPTIONS = Only("max_docs_per_second")
END_S = 30


@verb(app, "sync", cluster=True)
def sync(
    session: Session,
    name: Reindexed,
    settings: Annotated[ReindexSettings, OPTIONS],
    encoder: EncoderFolder = None,
    every: Annotated[
        str | None, typer.Option(help="Repeat at this interval: 30s, 5m, 1h; Ctrl-C ends it.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(help="[HOST:]PORT for Prometheus metrics of the rounds of --every.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Update the index with vectors: changes of its source, and vectors for documents that clients wrote."""
    from hybridr.errors import SettingsError
    from hybridr.indexing.reindexing import seconds_of

    every_s = seconds_of(every) if every else None
    if metrics and not every:
        raise SettingsError("--metrics tells of rounds", hint="--every 30s --metrics 9109")
    if dry_run and every:
        raise SettingsError("--dry-run tells of one round", hint="without --every")
    index, progress = session.index(name), session.output.progress
    if every_s is None:
        done = index.sync(encoder=encoder, settings=settings, dry_run=dry_run, progress=progress)
        show_round(session, done, dry_run=dry_run)
        raise typer.Exit(3 if done.rejected and not dry_run else 0)
    stops = signals_that_stop()
    gauges = opened(session, name, metrics) if metrics else None
    index.cluster.watch = gauges.calls if gauges else None
    missed = partial(show_missed, session)
    for done in index.sync_every(
        every_s, encoder=encoder, settings=settings, missed=missed, progress=progress
    ):
        if gauges:
            gauges.count(done)
        show_round(session, done, {"event": "round"})
        sys.stdout.flush()
        if stops:
            raise KeyboardInterrupt


def signals_that_stop() -> list[int]:
    """Make SIGTERM end the process like Ctrl-C, and return the list of the signals that came.

    A service manager stops by SIGTERM, and a process in the background does not hear SIGINT. An exception
    that a handler raises is lost if it meets a finalizer or a callback, and a lock may hold up the end. So
    the list tells too, and `END_S` later the system ends the process: what is written is safe at any time.
    """
    came: list[int] = []

    def stop(number: int, _frame: object) -> NoReturn:
        if not came:
            signal.alarm(END_S)
        came.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return came


def opened(session: Session, name: str, place: str) -> SyncGauges:
    """Start the port where Prometheus reads the metrics of the rounds, and return the gauges."""
    from hybridr.serving.gauges import SyncGauges

    gauges = SyncGauges(name)
    port = gauges.serve(place)
    session.output.note(f"metrics on port {port}")
    session.output.result({"event": "started", "metrics_port": port})
    return gauges


def show_missed(session: Session, failure: ClusterError) -> None:
    """Print why a round failed."""
    from hybridr.cluster.failures import kind_of

    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    session.output.result(
        {"event": "missed", "started": at, "kind": kind_of(failure), "error": failure.message}
    )
    session.output.warning(f"{at} a round failed, the next one goes on: {failure.message}")
    sys.stdout.flush()


def show_round(
    session: Session, done: SyncResult, more: Mapping[str, str] = NOTHING, *, dry_run: bool = False
) -> None:
    """Print the result of one round of sync."""
    session.output.result({**more, **done.to_json()})
    tried, would = ("dry run, ", "would be ") if dry_run else ("", "")
    session.output.line(
        f"{tried}{done.started} {done.destination}: {done.copied:,} {would}copied, {done.deleted:,} deleted, "
        f"{done.renewed:,} encoded that were written here, {done.rejected:,} refused, in {done.seconds:.1f} s"
    )
    if done.unlike:
        session.output.line(
            f"mapped otherwise than in {done.source}: {', '.join(done.unlike)}; "
            f"hybridr reindex {done.source} makes another index"
        )
    for index in done.others:
        session.output.line(f"{index} is searched too, and is not kept up by this: hybridr sync {index}")
