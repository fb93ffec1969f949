"""`hybridr bench`: measure on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr_bench.encoding import Contest
    from hybridr_bench.masked_lm import Race
    from hybridr_bench.reindexing import ReindexRace


def register(app: typer.Typer) -> None:
    """Add the verbs to the app."""
    bench = typer.Typer(name="bench", no_args_is_help=True, help="Measure hybridr on this machine.")
    app.add_typer(bench)
    register_adapt(bench)
    register_reindex(bench)
    register_encode(bench)
    register_search(bench)
    register_serve(bench)


def register_adapt(bench: typer.Typer) -> None:
    """Add `hybridr bench adapt`."""

    @verb(bench, "adapt")
    def adapt(
        session: Session,
        file: Annotated[
            Path | None, typer.Argument(help="Also write the figures into this JSON file.")
        ] = None,
        beir: Annotated[Path | None, typer.Option(help="BEIR folder (default: Python's docs).")] = None,
        size: Annotated[str, typer.Option(help="Model sizes, as a,b.")] = "MiniLM,bert-base",
        batch_size: Annotated[int, typer.Option(min=2, help="Documents per step.")] = 16,
        max_tokens: Annotated[int, typer.Option(min=8, help="Longest window of a document.")] = 190,
        seconds: Annotated[float, typer.Option(min=1, help="About how long for each size.")] = 120.0,
    ) -> None:
        """Train a DAM in turns with a plain transformers Trainer: real tokens per second, and the loss."""
        from hybridr.adaptation.corpus import CorpusFile
        from hybridr.files.pydocs import read_pydocs
        from hybridr_bench.masked_lm import race

        documents = CorpusFile(beir, "beir") if beir else read_pydocs()[0]
        races = race(
            documents,
            sizes=tuple(size.split(",")),
            batch_size=batch_size,
            max_tokens=max_tokens,
            seconds=seconds,
            progress=session.output.progress,
        )
        values = {
            "batch_size": batch_size,
            "max_tokens": max_tokens,
            "corpus": beir.name if beir else "pydocs",
        }
        render(session, races, values, file)


def register_reindex(bench: typer.Typer) -> None:
    """Add `hybridr bench reindex`."""

    @verb(bench, "reindex", cluster=True)
    def reindex(
        session: Session,
        file: Annotated[
            Path | None, typer.Argument(help="Also write the figures into this JSON file.")
        ] = None,
        beir: Annotated[Path | None, typer.Option(help="BEIR folder (default: Python's docs).")] = None,
        documents: Annotated[int, typer.Option(min=100, help="How many, spread over the folder.")] = 20_000,
        encoder: Annotated[Path | None, typer.Option(help="Encoder folder (default: MiniLM).")] = None,
        server_batches: Annotated[
            str, typer.Option(help="Batch sizes of the server's own `_reindex`, as 1,32; none: not run.")
        ] = "",
        server_documents: Annotated[
            int, typer.Option(min=100, help="Documents of each `_reindex`, which is slow.")
        ] = 2000,
    ) -> None:
        """Reindex documents in an index made for it: against encoding alone, and the server's own way.

        With `--server-batches` three settings of ml-commons are changed on the cluster while it runs.
        """
        from hybridr.encoding.opening import load_encoder
        from hybridr.exporting.exporting import minilm_encoder
        from hybridr_bench.corpora import spread_records
        from hybridr_bench.reindexing import race_reindex

        model = load_encoder(encoder or minilm_encoder(progress=session.output.progress))
        found = race_reindex(
            session.connect(),
            model,
            spread_records(beir, documents),
            server_batches=[int(size) for size in server_batches.split(",") if size],
            server_documents=server_documents,
            progress=session.output.progress,
        )
        render_reindex(session, found, beir.name if beir else "pydocs", file)


def render_reindex(session: Session, race: ReindexRace, corpus: str, file: Path | None) -> None:
    """Show the table; write the figures."""
    from hybridr.files.atomic import write_json
    from hybridr.machine import machine_record
    from hybridr_bench.reindexing import times

    rows = [
        (
            lane.name,
            f"{lane.documents:,}",
            f"{lane.seconds:.1f}",
            f"{lane.documents_per_second:.1f}",
            f"{times(lane, race.alone):.3f}",
            "" if lane.busy is None else f"{lane.busy:.1%}",
        )
        for lane in (race.alone, race.ours, *race.server)
    ]
    columns = ("way", "documents", "seconds", "documents/s", "of encoding alone", "encoder busy")
    session.output.table(columns, rows)
    if race.not_run:
        session.output.note(f"the server's own way was not run: {race.not_run}")
    for lane in race.server:
        if lane.failure:
            session.output.note(f"{lane.name} failed: {lane.failure}")
    found = {"machine": machine_record("onnxruntime"), "corpus": corpus, **race.record()}
    if file is not None:
        write_json(file, found)
    session.output.result(found)


def render(session: Session, races: list[Race], values: dict[str, Any], file: Path | None) -> None:
    """Show the table; write the figures."""
    from hybridr.files.atomic import write_json
    from hybridr_bench.masked_lm import machine_record

    columns = ("size", "training", "tokens/s", "times", "least", "most", "unseen loss", "steps")
    rows = [
        (
            race.size,
            lane.name,
            round(lane.tokens_per_second),
            f"{race.times(lane):.2f}",
            f"{min(lane.ratios):.2f}",
            f"{max(lane.ratios):.2f}",
            f"{lane.unseen_loss or 0:.3f}",
            race.steps,
        )
        for race in races
        for lane in race.lanes
    ]
    session.output.table(columns, rows)
    found = {"machine": machine_record(), "settings": values, "races": [race.record() for race in races]}
    if file is not None:
        write_json(file, found)
    session.output.result(found)


def register_encode(bench: typer.Typer) -> None:
    """Add `hybridr bench encode`."""

    @verb(bench, "encode")
    def encode(
        session: Session,
        file: Annotated[
            Path | None, typer.Argument(help="Also write the figures into this JSON file.")
        ] = None,
        beir: Annotated[
            list[Path] | None, typer.Option(help="BEIR folder; again for more (default: Python's docs).")
        ] = None,
        encoder: Annotated[
            Path | None, typer.Option(help="Encoder folder with int8 (default: packaged MiniLM).")
        ] = None,
        documents: Annotated[int, typer.Option(min=1, help="Of each, a random choice of more.")] = 1000,
        rounds: Annotated[int, typer.Option(min=1, help="Turns that count.")] = 3,
        peers: Annotated[
            Path | None, typer.Option(help="Python that has sentence-transformers[onnx] and fastembed.")
        ] = None,
        contenders: Annotated[str | None, typer.Option(help="Only those, as a,b.")] = None,
    ) -> None:
        """Encode in turns with sentence-transformers (default, ONNX int8) and fastembed: CPU seconds."""
        import tempfile

        from hybridr.encoding.packaged import minilm
        from hybridr.exporting.exporting import export
        from hybridr.machine import machine_record
        from hybridr_bench.contender import OPENERS
        from hybridr_bench.encoding import compare_encoders, read_texts

        texts = read_texts(beir or [], documents)
        progress = session.output.progress
        with tempfile.TemporaryDirectory() as scratch:
            folder = encoder or export(minilm(progress=progress), Path(scratch) / "encoder", precision="int8")
            contests = compare_encoders(
                folder,
                texts,
                names=tuple(contenders.split(",")) if contenders else tuple(OPENERS),
                rounds=rounds,
                peers=peers,
                progress=progress,
            )
        values = {"documents": documents, "rounds": rounds, "encoder": encoder.name if encoder else "minilm"}
        found = {"machine": machine_record(), "settings": values, "sets": [one.record() for one in contests]}
        if file is not None:
            from hybridr.files.atomic import write_json

            write_json(file, found)
        show_contests(session, contests)
        session.output.result(found)


def show_contests(session: Session, contests: list[Contest]) -> None:
    """Show a table for each set of texts."""
    columns = ("encoder", "CPU s", "times", "wall s", "documents/s", "tokens/s", "peak MB", "least cosine")
    for contest in contests:
        session.output.line(f"{contest.name}: {contest.documents:,} texts, {contest.tokens:,} tokens")
        rows: list[tuple[Any, ...]] = []
        for row in contest.record()["contenders"]:
            if "not_run" in row:
                rows.append((row["name"], "not run", "", "", "", "", "", row["not_run"]))
                continue
            cosine = f"{row['cosine']['least']:.4f}" if row["cosine"] else ""
            rows.append(
                (
                    row["name"],
                    f"{row['cpu_s']:.2f}",
                    f"{row['ratio']:.2f}",
                    f"{row['wall_s']:.2f}",
                    f"{row['documents_per_s']:,.0f}",
                    f"{row['tokens_per_s']:,.0f}",
                    row["peak_mb"],
                    cosine,
                )
            )
        session.output.table(columns, rows)


def register_search(bench: typer.Typer) -> None:
    """Add `hybridr bench search`."""

    @verb(bench, "search", cluster=True)
    def search(
        session: Session,
        beir: Annotated[Path, typer.Option(help="BEIR folder whose queries are asked.")],
        index: Annotated[list[str], typer.Option(help="Index with vectors; again for more.")],
        file: Annotated[
            Path | None, typer.Argument(help="Also write the figures into this JSON file.")
        ] = None,
        queries: Annotated[int, typer.Option(min=1, help="Different queries, spread over the folder.")] = 200,
        requests: Annotated[int, typer.Option(min=1, help="Of each way in each turn.")] = 200,
        rounds: Annotated[int, typer.Option(min=1, help="Turns that count.")] = 5,
        clients: Annotated[str, typer.Option(help="How many ask at once, as a,b.")] = "1,8",
        warm_up: Annotated[int, typer.Option(min=0, help="Turns of each way before any counts.")] = 5,
        ways: Annotated[
            str, typer.Option(help="Ways to deploy, of client,neural,transparent,local.")
        ] = "client,neural,transparent",
    ) -> None:
        """Search in turns by each mode and each way of deploying: p50, p95, p99, searches per second.

        The ways are deployed on the index for their time; three settings of ml-commons are changed for it.
        """
        from hybridr_bench.asking import Times
        from hybridr_bench.corpora import spread_queries
        from hybridr_bench.searching import race_indices

        times = Times(requests, rounds, tuple(int(many) for many in clients.split(",")), warm_up)
        found = race_indices(
            session.connect(),
            index,
            spread_queries(beir, queries),
            times=times,
            ways=known_ways(ways),
            progress=session.output.progress,
        )
        for one in found["indices"]:
            session.output.line(f"{one['index']}: {one['documents']:,} documents")
            show_lanes(session, one["lanes"])
            if one["not_run"]:
                session.output.note(f"the deployed ways were not run: {one['not_run']}")
        finish(session, found | {"corpus": beir.name}, file)


def known_ways(text: str) -> list[Any]:
    """Read names of ways. Raises SettingsError for any other."""
    from typing import get_args

    from hybridr.errors import SettingsError
    from hybridr.serving.settings import Way

    ways = text.split(",")
    if unknown := set(ways) - set(get_args(Way)):
        raise SettingsError(f"no way is called '{unknown.pop()}'", hint=f"--ways {','.join(get_args(Way))}")
    return ways


def register_serve(bench: typer.Typer) -> None:
    """Add `hybridr bench serve`."""

    @verb(bench, "serve")
    def serve(
        session: Session,
        beir: Annotated[Path, typer.Option(help="BEIR folder: its documents and its queries are sent.")],
        file: Annotated[
            Path | None, typer.Argument(help="Also write the figures into this JSON file.")
        ] = None,
        encoder: Annotated[Path | None, typer.Option(help="Encoder folder (default: MiniLM).")] = None,
        passages: Annotated[int, typer.Option(min=32, help="Documents, in requests of 32.")] = 640,
        queries: Annotated[int, typer.Option(min=16, help="Queries, one a request.")] = 1000,
        rounds: Annotated[int, typer.Option(min=1, help="Turns that count.")] = 5,
    ) -> None:
        """Encode through `hybridr serve` in turns with the encoder alone: texts per second."""
        from hybridr.exporting.exporting import minilm_encoder
        from hybridr_bench.serving import race_serving

        progress = session.output.progress
        found = race_serving(
            encoder or minilm_encoder(progress=progress),
            beir,
            passages=passages,
            queries=queries,
            rounds=rounds,
            progress=progress,
        )
        show_lanes(session, found["lanes"])
        for one in found["shares"]:
            session.output.line(
                f"{one['side']}: {one['served_per_second']:.0f} texts/s served, "
                f"{one['alone_per_second']:.0f} by the encoder alone: {one['share']['median']:.2f}"
            )
        finish(session, found | {"corpus": beir.name}, file)


def show_lanes(session: Session, lanes: list[dict[str, Any]]) -> None:
    """Show latencies and throughput."""
    columns = ("way", "clients", "p50 ms", "p95 ms", "p99 ms", "per second")
    rows = [
        (
            lane["name"],
            lane["clients"],
            *(f"{lane[f'p{p}_ms']:.1f}" for p in (50, 95, 99)),
            f"{lane['per_second']:.1f}",
        )
        for lane in lanes
    ]
    session.output.table(columns, rows)


def finish(session: Session, figures: dict[str, Any], file: Path | None) -> None:
    """Write the figures with the machine they were measured on."""
    from hybridr.files.atomic import write_json
    from hybridr.machine import machine_record

    found = {"machine": machine_record("onnxruntime"), **figures}
    if file is not None:
        write_json(file, found)
    session.output.result(found)
