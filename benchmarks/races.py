"""The races of `run.py speed`: what each takes, and the figures that it gives."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, get_args

from hybridr import connect
from hybridr.encoders.export.exporting import export, minilm_encoder
from hybridr.encoders.export.fetched_models import minilm
from hybridr.encoders.opening import load_encoder
from hybridr.errors import SettingsError
from hybridr.records import Progress
from hybridr.serving.settings import Way
from hybridr_bench.contender import ON_GPU, OPENERS
from study import Record, listed, machine_record

PYDOCS = "BEIR folder (default: Python's docs)"


class Race(NamedTuple):
    """What a race takes, and what gives its figures."""

    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Progress], Record]


def encode_options(parser: argparse.ArgumentParser, contenders: Sequence[str] = tuple(OPENERS)) -> None:
    """Take texts, the encoder, and who else encodes."""
    parser.add_argument("--beir", type=Path, action="append", default=[], help=f"{PYDOCS}; again for more")
    parser.add_argument("--encoder", type=Path, help="encoder folder with int8 (default: packaged MiniLM)")
    parser.add_argument("--documents", type=int, default=1000, help="of each, a random choice of more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", type=Path, help="Python with sentence-transformers[onnx] and fastembed")
    parser.add_argument("--contenders", type=listed, default=contenders, metavar="A,B", help="only those")


def encode(given: argparse.Namespace, progress: Progress) -> Record:
    """Encode in turns with sentence-transformers (default, ONNX int8) and fastembed: CPU seconds."""
    from hybridr_bench.encoding import compare_encoders, read_texts

    texts, turns = read_texts(given.beir, given.documents), {"rounds": given.rounds, "peers": given.peers}
    with with_int8(given.encoder, progress) as folder:
        sets = compare_encoders(folder, texts, names=given.contenders, **turns, progress=progress)
    named = given.encoder.name if given.encoder else "minilm"
    settings = {"documents": given.documents, "rounds": given.rounds, "encoder": named}
    return {"machine": machine_record(), "settings": settings, "sets": [one.record() for one in sets]}


@contextmanager
def with_int8(encoder: Path | None, progress: Progress) -> Iterator[Path]:
    """Give the folder, or export the packaged MiniLM into one that goes afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        yield encoder or export(minilm(progress=progress), Path(scratch) / "encoder", precision="int8")


def reindex_options(parser: argparse.ArgumentParser) -> None:
    """Take the cluster, documents, and what the server's own way gets."""
    parser.add_argument("--url", help="cluster (default: HYBRIDR_URL, else the embedded node)")
    parser.add_argument("--beir", type=Path, help=PYDOCS)
    parser.add_argument("--documents", type=int, default=20_000, help="how many, spread over the folder")
    parser.add_argument("--encoder", type=Path, help="encoder folder (default: packaged MiniLM)")
    sizes = {"type": listed, "default": [], "metavar": "A,B"}
    parser.add_argument("--server-batches", **sizes, help="of the server's own `_reindex`; none: not run")


def reindex(given: argparse.Namespace, progress: Progress) -> Record:
    """Reindex documents in an index made for it: against encoding alone, and the server's own way.

    With `--server-batches` three settings of ml-commons are changed on the cluster while it runs.
    """
    from hybridr_bench.corpora import spread_records
    from hybridr_bench.reindexing import race_reindex

    model = load_encoder(given.encoder or minilm_encoder(progress=progress))
    records = spread_records(given.beir, given.documents)
    batches = [int(size) for size in given.server_batches]
    found = race_reindex(connect(given.url), model, records, server_batches=batches, progress=progress)
    return {"machine": machine_record("onnxruntime"), "corpus": name_of(given.beir), **found.record()}


def search_options(parser: argparse.ArgumentParser) -> None:
    """Take the cluster, indices and queries, and how often is asked."""
    parser.add_argument("--url", help="cluster (default: HYBRIDR_URL, else the embedded node)")
    parser.add_argument("--beir", type=Path, required=True, help="BEIR folder whose queries are asked")
    parser.add_argument("--index", action="append", required=True, help="index with vectors; again for more")
    parser.add_argument("--ways", type=listed, default=["client", "neural", "transparent"], metavar="A,B")
    parser.add_argument("--queries", type=int, default=200, help="different ones, spread over the folder")
    parser.add_argument("--requests", type=int, default=200, help="of each way in each turn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=listed, default=["1", "8"], metavar="A,B", help="that ask at once")
    parser.add_argument("--warm-up", type=int, default=5, help="turns of each way before any counts")


def search(given: argparse.Namespace, progress: Progress) -> Record:
    """Search in turns by each mode and each way of deploying: p50, p95, p99, searches per second.

    The ways are deployed on the index for their time; three settings of ml-commons are changed for it.
    """
    from hybridr_bench.asking import Times
    from hybridr_bench.corpora import spread_queries
    from hybridr_bench.searching import race_indices

    if unknown := set(given.ways) - set(get_args(Way)):
        raise SettingsError(f"no way is called '{unknown.pop()}'", hint=f"--ways {','.join(get_args(Way))}")
    times = Times(given.requests, given.rounds, tuple(map(int, given.clients)), given.warm_up)
    queries = spread_queries(given.beir, given.queries)
    found = race_indices(
        connect(given.url), given.index, queries, times=times, ways=given.ways, progress=progress
    )
    return {"machine": machine_record("onnxruntime"), **found, "corpus": given.beir.name}


def serve_options(parser: argparse.ArgumentParser) -> None:
    """Take texts, the encoder, and how often is asked."""
    parser.add_argument("--beir", type=Path, required=True, help="BEIR folder: what is sent")
    parser.add_argument("--encoder", type=Path, help="encoder folder (default: packaged MiniLM)")
    parser.add_argument("--passages", type=int, default=640, help="documents, in requests of 32")
    parser.add_argument("--queries", type=int, default=1000, help="one a request")
    parser.add_argument("--rounds", type=int, default=5)


def serve(given: argparse.Namespace, progress: Progress) -> Record:
    """Encode through `hybridr serve` in turns with the encoder alone: texts per second."""
    from hybridr_bench.serving import race_serving

    sizes = {"passages": given.passages, "queries": given.queries, "rounds": given.rounds}
    folder = given.encoder or minilm_encoder(progress=progress)
    found = race_serving(folder, given.beir, **sizes, progress=progress)
    return {"machine": machine_record("onnxruntime"), **found, "corpus": given.beir.name}


def name_of(beir: Path | None) -> str:
    """Name the corpus that was measured on."""
    return beir.name if beir else "pydocs"


GPU = (*ON_GPU, "hybridr onnx fp32")
"""Those that use a GPU, and what their vectors are compared with."""
RACES = {
    "encode": Race(encode_options, encode),
    "encode-gpu": Race(partial(encode_options, contenders=GPU), encode),
    "reindex": Race(reindex_options, reindex),
    "search": Race(search_options, search),
    "serve": Race(serve_options, serve),
}
