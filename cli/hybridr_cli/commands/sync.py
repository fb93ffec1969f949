"""The verb `hybridr sync`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from ..options import DryRun, EncoderFolder, Only, ReindexedName
from ..session import NOTHING, Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.errors import ClusterError
    from hybridr.indexing.reindexing import SyncResult
    from hybridr.indexing.settings import ReindexSettings

OPTIONS = Only("max_docs_per_second")
END_S = 30


@verb(app, "sync", cluster=True)
def sync(
    session: Session,
    name: ReindexedName,
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
    from hybridr.indexing.reindexing import parse_duration

    every_s = parse_duration(every) if every else None
    if metrics and not every:
        raise SettingsError("--metrics needs --every", hint="--every 30s --metrics 9109")
    if dry_run and every:
        raise SettingsError("--dry-run and --every exclude each other", hint="leave --every out")
    index, progress = session.index(name), session.output.progress
    if every_s is None:
        result = index.sync(encoder=encoder, settings=settings, dry_run=dry_run, progress=progress)
        show_round(session, result, dry_run=dry_run)
        raise typer.Exit(3 if result.rejected and not dry_run else 0)
    signals = stop_by_signals()
    gauges = None
    if metrics:
        from hybridr.serving.gauges import SyncGauges

        gauges = SyncGauges(name)
        port = gauges.serve(metrics)
        session.output.note(f"metrics on port {port}")
        session.output.result({"event": "started", "metrics_port": port})
        index.cluster.watch = gauges.calls
    missed = partial(show_failure, session)
    for result in index.sync_every(
        every_s, encoder=encoder, settings=settings, missed=missed, progress=progress
    ):
        if gauges:
            gauges.count(result)
        show_round(session, result, {"event": "round"})
        sys.stdout.flush()
        if signals:
            raise KeyboardInterrupt


def stop_by_signals() -> list[int]:
    """Make SIGTERM and SIGINT raise KeyboardInterrupt; return a list to which received signals are added.

    A service manager stops a process by SIGTERM, and a background process may ignore SIGINT. The exception of
    a handler is lost inside a finalizer or a callback, and a lock may delay the end. Therefore the caller
    also looks at the list, and an alarm ends the process after `END_S` seconds: written data are always safe.
    """
    signals: list[int] = []

    def stop(number: int, _frame: object) -> NoReturn:
        if not signals:
            signal.alarm(END_S)
        signals.append(number)
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return signals


def show_failure(session: Session, failure: ClusterError) -> None:
    """Print why a round failed."""
    from hybridr.cluster.failures import failure_word

    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    session.output.result(
        {"event": "missed", "started": at, "kind": failure_word(failure), "error": failure.message}
    )
    session.output.warning(f"{at} a round failed, the next one tries again: {failure.message}")
    sys.stdout.flush()


def show_round(
    session: Session, result: SyncResult, extra: Mapping[str, str] = NOTHING, *, dry_run: bool = False
) -> None:
    """Print the result of one round of sync; `extra` is added to its JSON."""
    session.output.result({**extra, **result.to_json()})
    prefix, would = ("dry run, ", "would be ") if dry_run else ("", "")
    session.output.line(
        f"{prefix}{result.started} {result.destination}: {result.copied:,} {would}copied, "
        f"{result.deleted:,} deleted, {result.renewed:,} encoded that were written here, "
        f"{result.rejected:,} refused, in {result.seconds:.1f} s"
    )
    if result.unlike:
        session.output.line(
            f"mapped otherwise than in {result.source}: {', '.join(result.unlike)}; "
            f"hybridr reindex {quote(result.source)} makes a new index"
        )
    for index in result.others:
        session.output.line(f"{index} is searched too and was not updated: hybridr sync {quote(index)}")
