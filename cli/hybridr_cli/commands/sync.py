"""`hybridr sync`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.reindexing.syncing import Syncing


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "sync", cluster=True)
    def sync(
        session: Session,
        name: Annotated[str, typer.Argument(help="The index that was reindexed.")],
        encoder: Annotated[Path | None, typer.Option(help="Encoder folder.")] = None,
        every: Annotated[
            str | None, typer.Option(help="Again and again: 30s, 5m, 1h; Ctrl-C ends it.")
        ] = None,
        once: Annotated[bool, typer.Option("--once", help="One round (the default).")] = False,
        precision: Annotated[
            str | None, typer.Option(help="Of documents: fp32, bf16 or int8 (default: as reindexed).")
        ] = None,
        backend: Annotated[
            str | None, typer.Option(help="onnx, openvino, torch or auto (default: as reindexed).")
        ] = None,
        workers: Annotated[int | None, typer.Option(help="Shares worked on at once.")] = None,
        patience: Annotated[
            float | None, typer.Option(help="Seconds to wait for a cluster that is away (300).")
        ] = None,
        max_docs_per_second: Annotated[
            float | None, typer.Option(help="Leave the cluster room (default: as fast as it goes).")
        ] = None,
        slow_search_ms: Annotated[
            float | None, typer.Option(help="Pause while searches take longer (200; 0 never does).")
        ] = None,
    ) -> None:
        """Bring what was written since into the index with vectors, from its source and by clients."""
        from hybridr.cluster.destinations import resolve
        from hybridr.errors import SettingsError
        from hybridr.reindexing import syncing
        from hybridr.reindexing.settings import ReindexSettings
        from hybridr.search.encoders import encoder_for

        if every and once:
            raise SettingsError("--every and --once exclude each other")
        every_s = syncing.seconds_of(every) if every else None
        settings = session.settings(
            ReindexSettings,
            workers=workers,
            patience_s=patience,
            max_docs_per_second=max_docs_per_second,
            slow_search_ms=slow_search_ms,
            precision=precision,
            backend=backend,
        )
        cluster = session.connect().patient(settings.patience_s)
        info = resolve(cluster, name)
        model = encoder_for(
            cluster,
            info,
            encoder,
            precision=settings.precision or info.record.precision,
            backend=settings.backend or info.record.backend,
            progress=session.output.progress,
        )
        if every_s is None:
            done = syncing.sync(cluster, name, model, settings, progress=session.output.progress)
            show_round(session, done)
            raise typer.Exit(3 if done.rejected else 0)
        # A service manager stops it by SIGTERM; started in the background, it would not hear SIGINT.
        for stop in (signal.SIGINT, signal.SIGTERM):
            signal.signal(stop, signal.default_int_handler)
        for done in syncing.rounds(cluster, name, model, settings, every_s=every_s):
            show_round(session, done)
            sys.stdout.flush()


def show_round(session: Session, done: Syncing) -> None:
    """Print one line a round."""
    session.output.result(done.to_json())
    session.output.line(
        f"{done.started} {done.destination}: {done.copied:,} copied, {done.deleted:,} deleted, "
        f"{done.renewed:,} encoded that were written here, {done.rejected:,} refused, in {done.seconds:.1f} s"
    )
