"""`hybridr reindex`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.reindexing.planning import Plan
    from hybridr.reindexing.reindexing import Reindexing


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "reindex", cluster=True)
    def reindex(
        session: Session,
        name: Annotated[str, typer.Argument(help="Index to read; it stays as it is, unless --in-place.")],
        encoder: Annotated[
            Path | None, typer.Option(help="Encoder folder (default: the one `adapt` made, else MiniLM).")
        ] = None,
        alias: Annotated[str | None, typer.Option(help="Alias to switch (NAME-hybridr).")] = None,
        fields: Annotated[str | None, typer.Option(help="Text fields for the encoder.")] = None,
        vector_field: Annotated[str | None, typer.Option(help="Name of the k-NN field.")] = None,
        engine: Annotated[str | None, typer.Option(help="lucene (default) or faiss.")] = None,
        vectors: Annotated[
            str | None, typer.Option(help="float (default), byte, sq or on_disk; --dry-run shows their cost.")
        ] = None,
        compression: Annotated[
            str | None, typer.Option(help="Level of on_disk (4x with lucene, 32x with faiss).")
        ] = None,
        max_tokens: Annotated[int | None, typer.Option(help="Input limit, with [CLS] and [SEP].")] = None,
        passages: Annotated[
            bool | None,
            typer.Option("--passages", help="A vector for each window of a document; search takes the best."),
        ] = None,
        passage_overlap: Annotated[
            int | None, typer.Option(help="Tokens that neighbouring passages share (32).")
        ] = None,
        max_passages: Annotated[
            int | None, typer.Option(help="Passages of a document; what follows has no vector (64).")
        ] = None,
        precision: Annotated[
            str | None, typer.Option(help="Of documents: fp32, bf16 or int8 (default: as exported).")
        ] = None,
        backend: Annotated[
            str | None, typer.Option(help="onnx (default), openvino, torch; auto: the fastest here.")
        ] = None,
        workers: Annotated[
            int | None, typer.Option(help="Shares worked on at once, on this machine.")
        ] = None,
        slice: Annotated[
            str | None, typer.Option(help="I/N: do only this share, on one of N machines.")
        ] = None,
        in_place: Annotated[
            bool | None,
            typer.Option("--in-place", help="Into the index itself, where it has index.knn already."),
        ] = None,
        accept_rejects: Annotated[
            bool | None,
            typer.Option("--accept-rejects", help="Switch the alias although documents were refused."),
        ] = None,
        patience: Annotated[
            float | None, typer.Option(help="Seconds to wait for a cluster that is away (300).")
        ] = None,
        max_docs_per_second: Annotated[
            float | None, typer.Option(help="Leave the cluster room (default: as fast as it goes).")
        ] = None,
        slow_search_ms: Annotated[
            float | None, typer.Option(help="Pause while searches take longer (200; 0 never does).")
        ] = None,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the requests, send none.")] = False,
    ) -> None:
        """Write vectors into a new index beside the old one, verify it, switch an alias."""
        from hybridr.reindexing.planning import source_of
        from hybridr.reindexing.reindexing import preview, reindex
        from hybridr.reindexing.settings import ReindexSettings
        from hybridr.search.encoders import encoder_for

        settings = session.settings(
            ReindexSettings,
            alias=alias,
            fields=fields,
            vector_field=vector_field,
            engine=engine,
            vectors=vectors,
            compression=compression,
            max_tokens=max_tokens,
            workers=workers,
            slice=slice,
            in_place=in_place,
            accept_rejects=accept_rejects,
            passages=passages,
            passage_overlap=passage_overlap,
            max_passages=max_passages,
            precision=precision,
            backend=backend,
            patience_s=patience,
            max_docs_per_second=max_docs_per_second,
            slow_search_ms=slow_search_ms,
        )
        cluster = session.connect().patient(settings.patience_s)
        model = encoder_for(
            cluster,
            source_of(cluster, name),
            encoder,
            precision=settings.precision,
            backend=settings.backend,
            progress=session.output.progress,
        )
        if dry_run:
            return show_plan(session, preview(cluster, name, model, settings))
        done = reindex(cluster, name, model, settings, progress=session.output.progress)
        if settings.in_place:
            return show_in_place(session, done, settings.accept_rejects)
        show_result(session, done)


def show_plan(session: Session, todo: Plan) -> None:
    """Print what would be sent, and what its owner should know."""
    out, record, wanted = session.output, todo.record, todo.wanted
    out.result(todo.to_json() | {"dry_run": True})
    place = f"'{record.source}'" + (" itself" if record.in_place else "")
    out.line(f"{wanted.documents:,} documents of {place}, text from {', '.join(record.fields)}")
    out.line(
        f"vectors and graph: about {todo.vector_bytes / 1e6:,.0f} MB a copy, encoder {record.encoder[:12]}"
    )
    if record.passages:
        windows = record.passages
        out.line(
            f"passages: about {wanted.vectors:,}, of {windows.tokens} tokens, {windows.overlap} of them "
            f"shared, at most {windows.most} a document"
        )
    show_estimates(session, todo)
    for remark in todo.remarks:
        out.line(remark)
    show_requests(session, todo)


def show_estimates(session: Session, todo: Plan) -> None:
    """Print memory, disk and time."""
    out = session.output
    show_costs(session, todo)
    if todo.disk:
        out.line(
            f"disk: about {todo.disk.needed_bytes / 1e6:,.0f} MB with replicas, "
            f"{todo.disk.usable_bytes / 1e6:,.0f} MB usable below the flood stage ({todo.disk.flood_stage})"
        )
    if todo.seconds is not None:
        out.line(f"time: about {todo.seconds:,.0f} s at this encoder's speed on documents of the index")


def show_requests(session: Session, todo: Plan) -> None:
    """Print the exact requests."""
    import json

    out = session.output
    for request in todo.requests:
        out.line(f"{request['method']} {request['path']}")
        if "body" in request:
            out.line(json.dumps(request["body"], indent=2))
    out.line("nothing was sent")


def show_costs(session: Session, todo: Plan) -> None:
    """Print what each form of vectors takes, the chosen one first."""
    from hybridr.cluster.legs.dense import ESTIMATE

    out = session.output
    out.line(f"memory of a copy: {ESTIMATE}")
    for cost in todo.wanted.costs:
        name = f"{cost.engine} {cost.vectors} {cost.compression or ''}".rstrip()
        out.line(
            f"{'*' if cost.chosen else ' '} {name:<20} {cost.bytes_per_vector:>6,} bytes a vector, "
            f"memory {cost.memory_bytes / 1e6:,.1f} MB, disk {cost.disk_bytes / 1e6:,.1f} MB"
        )


def show_result(session: Session, done: Reindexing) -> None:
    """Print what was done and what to do next; exit 3 when documents were refused."""
    out = session.output
    out.result(done.to_json())
    out.line(
        f"{done.destination}: {done.documents:,} documents, {done.encoded:,} encoded, {done.skipped:,} were "
        f"there already, {done.without_text:,} without text, in {done.seconds:.0f} s"
    )
    if done.shortened:
        out.line(
            f"{done.shortened:,} documents go on behind their last passage, found there by words only; "
            "--max-passages takes more"
        )
    if done.deleted:
        out.line(f"{done.deleted:,} deleted that are no longer in '{done.source}'")
    if done.switched:
        out.line(f"alias {done.alias} -> {done.destination}; undo: hybridr rollback {done.source}")
        show_succession(session, done)
        show_tuning(session, done)
    elif not done.rejected:
        out.line(
            "this share is done; when all are, run the same command without --slice to verify and switch"
        )
    if done.rejected:
        out.line(f"{done.rejected:,} refused by the index, reasons in {done.rejects_file}")
        if not done.switched:
            out.line("the alias was not switched; --accept-rejects does it all the same")
        raise typer.Exit(3)


def show_succession(session: Session, done: Reindexing) -> None:
    """Say whether the new index is deployed as the one before it was."""
    if (found := done.deployment) is None:
        return
    if found.command is None:
        session.output.line(f"deployed as before: --way {found.way}, pipeline {found.pipeline}")
    else:
        session.output.line(
            f"NOT deployed: the index before answers --way {found.way}, '{done.destination}' does not; "
            f"run: {found.command}"
        )


def show_tuning(session: Session, done: Reindexing) -> None:
    """Say that what was tuned for the index before does not come along."""
    if done.tuned_before:
        session.output.line(
            f"NOT tuned: what `hybridr tune` found for '{done.tuned_before}', k1 and b too, stays with that "
            f"index; run: hybridr tune {done.source}"
        )


def show_in_place(session: Session, done: Reindexing, accepted: bool) -> None:
    """Print what was written into the index itself; exit 3 when documents were refused."""
    out = session.output
    out.result(done.to_json())
    out.line(
        f"{done.source}: {done.documents:,} documents, {done.encoded:,} encoded, {done.skipped:,} were "
        f"current already, {done.without_text:,} without text, in {done.seconds:.0f} s"
    )
    out.line(f"what clients write from now on: hybridr sync {done.source} --every 30s")
    if done.rejected:
        out.line(f"{done.rejected:,} refused by the index, reasons in {done.rejects_file}")
        if not accepted:
            out.line("searches wait until all is there; --accept-rejects goes without the refused ones")
        raise typer.Exit(3)
