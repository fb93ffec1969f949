"""`hybridr bench`: measure on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session
from ..verbs import group, verb

if TYPE_CHECKING:
    from hybridr_bench.encoding import Contest
    from hybridr_bench.masked_lm import Race
    from hybridr_bench.reindexing import ReindexRace

bench = group("bench", "Measure hybridr on this machine.")

FiguresFile = Annotated[Path | None, typer.Argument(help="Also write the figures into this JSON file.")]
Corpus = Annotated[Path | None, typer.Option(help="BEIR folder.", show_default="Python's docs")]
Model = Annotated[Path | None, typer.Option(help="Encoder folder.", show_default="packaged MiniLM")]
Rounds = Annotated[int, typer.Option(min=1, help="Turns that count.")]


@verb(bench, "adapt")
def adapt(
    session: Session,
    file: FiguresFile = None,
    beir: Corpus = None,
    size: Annotated[str, typer.Option(help="Model sizes, as a,b.")] = "MiniLM,bert-base",
    batch_size: Annotated[int, typer.Option(min=2, help="Documents per step.")] = 16,
    max_tokens: Annotated[int, typer.Option(min=8, help="Longest window of a document.")] = 190,
    seconds: Annotated[float, typer.Option(min=1, help="About how long for each size.")] = 120.0,
) -> None:
    """Train a DAM in turns with a plain transformers Trainer: real tokens per second, and the loss."""
    from hybridr.adaptation.corpus import CorpusFile
    from hybridr.files.pydocs import read_pydocs
    from hybridr_bench.masked_lm import machine_record, race

    documents = CorpusFile(beir, "beir") if beir else read_pydocs()[0]
    settings: dict[str, Any] = {"batch_size": batch_size, "max_tokens": max_tokens}
    turns: dict[str, Any] = {
        "sizes": tuple(size.split(",")),
        "seconds": seconds,
        "progress": session.output.progress,
    }
    races = race(documents, **settings, **turns)
    show_races(session, races)
    settings |= {"corpus": name_of(beir)}
    figures = {"settings": settings, "races": [race.record() for race in races]}
    finish(session, figures, file, machine_record())


def show_races(session: Session, races: list[Race]) -> None:
    """Show how fast each way of training was."""
    columns = ("size", "training", "tokens/s", "times", "least", "most", "unseen loss", "steps")
    rows: list[tuple[Any, ...]] = []
    for race in races:
        for lane in race.lanes:
            times = (f"{value:.2f}" for value in (race.times(lane), min(lane.ratios), max(lane.ratios)))
            speed = round(lane.tokens_per_second)
            rows.append((race.size, lane.name, speed, *times, f"{lane.unseen_loss or 0:.3f}", race.steps))
    session.output.table(columns, rows)


@verb(bench, "reindex", cluster=True)
def reindex(
    session: Session,
    file: FiguresFile = None,
    beir: Corpus = None,
    documents: Annotated[int, typer.Option(min=100, help="How many, spread over the folder.")] = 20_000,
    encoder: Model = None,
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

    progress = session.output.progress
    model = load_encoder(encoder or minilm_encoder(progress=progress))
    cluster, records = session.connect(), spread_records(beir, documents)
    found = race_reindex(
        *(cluster, model, records),
        server_batches=[int(size) for size in server_batches.split(",") if size],
        server_documents=server_documents,
        progress=progress,
    )
    show_reindexing(session, found)
    finish(session, {"corpus": name_of(beir), **found.record()}, file)


def show_reindexing(session: Session, race: ReindexRace) -> None:
    """Show how fast each way of reindexing was."""
    from hybridr_bench.reindexing import times

    columns = ("way", "documents", "seconds", "documents/s", "of encoding alone", "encoder busy")
    rows = []
    for lane in (race.alone, race.ours, *race.server):
        speed = (f"{lane.seconds:.1f}", f"{lane.documents_per_second:.1f}", f"{times(lane, race.alone):.3f}")
        busy = "" if lane.busy is None else f"{lane.busy:.1%}"
        rows.append((lane.name, f"{lane.documents:,}", *speed, busy))
    session.output.table(columns, rows)
    if race.not_run:
        session.output.note(f"the server's own way was not run: {race.not_run}")
    for lane in race.server:
        if lane.failure:
            session.output.note(f"{lane.name} failed: {lane.failure}")


@verb(bench, "encode")
def encode(
    session: Session,
    file: FiguresFile = None,
    beir: Annotated[
        list[Path] | None,
        typer.Option(help="BEIR folder; again for more.", show_default="Python's docs"),
    ] = None,
    encoder: Annotated[
        Path | None, typer.Option(help="Encoder folder with int8.", show_default="packaged MiniLM")
    ] = None,
    documents: Annotated[int, typer.Option(min=1, help="Of each, a random choice of more.")] = 1000,
    rounds: Rounds = 3,
    peers: Annotated[
        Path | None, typer.Option(help="Python that has sentence-transformers[onnx] and fastembed.")
    ] = None,
    contenders: Annotated[
        str | None, typer.Option(help="Only those, as a,b; gpu: those that use one, and fp32 beside them.")
    ] = None,
) -> None:
    """Encode in turns with sentence-transformers (default, ONNX int8) and fastembed: CPU seconds."""
    from hybridr.machine import machine_record
    from hybridr_bench.contender import ON_GPU, OPENERS
    from hybridr_bench.encoding import REFERENCE, compare_encoders, read_texts

    texts, progress = read_texts(beir or [], documents), session.output.progress
    names = tuple(contenders.split(",")) if contenders else tuple(OPENERS)
    if contenders == "gpu":
        names = (*ON_GPU, REFERENCE)
    with with_int8(session, encoder) as folder:
        contests = compare_encoders(folder, texts, names=names, rounds=rounds, peers=peers, progress=progress)
    settings = {"documents": documents, "rounds": rounds, "encoder": encoder.name if encoder else "minilm"}
    show_contests(session, contests)
    figures = {"settings": settings, "sets": [one.record() for one in contests]}
    finish(session, figures, file, machine_record())


@contextmanager
def with_int8(session: Session, encoder: Path | None) -> Iterator[Path]:
    """Give the folder, or export the packaged MiniLM into one that goes afterwards."""
    import tempfile

    from hybridr.encoding.packaged import minilm
    from hybridr.exporting.exporting import export

    progress = session.output.progress
    with tempfile.TemporaryDirectory() as scratch:
        yield encoder or export(minilm(progress=progress), Path(scratch) / "encoder", precision="int8")


def show_contests(session: Session, contests: list[Contest]) -> None:
    """Show a table for each set of texts."""
    columns = ("encoder", "CPU s", "times", "wall s", "documents/s", "tokens/s", "peak MB", "least cosine")
    for contest in contests:
        session.output.line(f"{contest.name}: {contest.documents:,} texts, {contest.tokens:,} tokens")
        session.output.table(columns, [contest_row(row) for row in contest.record()["contenders"]])


def contest_row(row: dict[str, Any]) -> tuple[Any, ...]:
    """Give the cells of one contender."""
    if "not_run" in row:
        return (row["name"], "not run", "", "", "", "", "", row["not_run"])
    cosine = f"{row['cosine']['least']:.4f}" if row["cosine"] else ""
    seconds = (f"{row[name]:.2f}" for name in ("cpu_s", "ratio", "wall_s"))
    speed = (f"{row[name]:,.0f}" for name in ("documents_per_s", "tokens_per_s"))
    return (row["name"], *seconds, *speed, row["peak_mb"], cosine)


@dataclass(frozen=True)
class Turns:
    """How often is asked."""

    queries: Annotated[int, typer.Option(min=1, help="Different queries, spread over the folder.")] = 200
    requests: Annotated[int, typer.Option(min=1, help="Of each way in each turn.")] = 200
    rounds: Rounds = 5
    clients: Annotated[str, typer.Option(help="How many ask at once, as a,b.")] = "1,8"
    warm_up: Annotated[int, typer.Option(min=0, help="Turns of each way before any counts.")] = 5


@verb(bench, "search", cluster=True)
def search(
    session: Session,
    beir: Annotated[Path, typer.Option(help="BEIR folder whose queries are asked.")],
    index: Annotated[list[str], typer.Option(help="Index with vectors; again for more.")],
    turns: Turns,
    file: FiguresFile = None,
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

    clients = tuple(int(many) for many in turns.clients.split(","))
    times = Times(turns.requests, turns.rounds, clients, turns.warm_up)
    queries, wanted, progress = spread_queries(beir, turns.queries), known_ways(ways), session.output.progress
    found = race_indices(session.connect(), index, queries, times=times, ways=wanted, progress=progress)
    for one in found["indices"]:
        session.output.line(f"{one['index']}: {one['documents']:,} documents")
        show_lanes(session, one["lanes"])
        if one["not_run"]:
            session.output.note(f"the deployed ways were not run: {one['not_run']}")
    finish(session, found | {"corpus": beir.name}, file)


def known_ways(text: str) -> list[Any]:
    """Read names of ways. Raises SettingsError for any other."""
    from typing import get_args

    from hybridr.deploying.settings import Way
    from hybridr.errors import SettingsError

    ways = text.split(",")
    if unknown := set(ways) - set(get_args(Way)):
        raise SettingsError(f"no way is called '{unknown.pop()}'", hint=f"--ways {','.join(get_args(Way))}")
    return ways


@verb(bench, "serve")
def serve(
    session: Session,
    beir: Annotated[Path, typer.Option(help="BEIR folder: its documents and its queries are sent.")],
    file: FiguresFile = None,
    encoder: Model = None,
    passages: Annotated[int, typer.Option(min=32, help="Documents, in requests of 32.")] = 640,
    queries: Annotated[int, typer.Option(min=16, help="Queries, one a request.")] = 1000,
    rounds: Rounds = 5,
) -> None:
    """Encode through `hybridr serve` in turns with the encoder alone: texts per second."""
    from hybridr.exporting.exporting import minilm_encoder
    from hybridr_bench.serving import race_serving

    progress = session.output.progress
    folder = encoder or minilm_encoder(progress=progress)
    found = race_serving(folder, beir, passages=passages, queries=queries, rounds=rounds, progress=progress)
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
    numbers = ("p50_ms", "p95_ms", "p99_ms", "per_second")
    rows = [(lane["name"], lane["clients"], *(f"{lane[number]:.1f}" for number in numbers)) for lane in lanes]
    session.output.table(columns, rows)


def name_of(beir: Path | None) -> str:
    """Name the corpus that was measured on."""
    return beir.name if beir else "pydocs"


def finish(
    session: Session, figures: dict[str, Any], file: Path | None, machine: dict[str, Any] | None = None
) -> None:
    """Write the figures with the machine they were measured on."""
    from hybridr.files.atomic import write_json
    from hybridr.machine import machine_record

    found = {"machine": machine or machine_record("onnxruntime"), **figures}
    if file is not None:
        write_json(file, found)
    session.output.result(found)
