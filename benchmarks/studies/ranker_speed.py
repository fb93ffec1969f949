"""What does each ranker add to a search, as an index grows?

    python benchmarks/run.py ranker-speed CORPUS --work DIR [--documents 10000] [--url URL] [--json FILE]

CORPUS is a corpus.jsonl in BEIR layout, DIR holds the encoders of the study `rankers`. The first thousand
documents, 60 words each, are indexed as `reindex` does, with weights and vectors of tokens. The index then
grows by made documents: the words of real ones in another order, drawn vectors, a drawn weight for each of
their tokens, drawn vectors of as many tokens. Searches are the library's own. Queries are the first words of
real documents, 5 to 12. All ways are asked in turns, ten hits each.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tokenizers import Tokenizer

import hybridr
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.cluster.loading import load
from hybridr.cluster.retrievers.sparse import SparseRetriever
from hybridr.cluster.settings import LoadSettings
from hybridr.cluster.token_field import TokenState, tokens_value
from hybridr.cluster.writing import Action, index_action
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.encoders.graph_folders import PairScorer
from hybridr.encoders.packaged import minilm
from hybridr.encoders.tokens import TOKENIZER_FILE
from hybridr.files.formats import write_beir
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import Document
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from indices import write_all
from studies.rankers import UNHURRIED_S, milliseconds
from study import Record, Section, add_json, current, machine_of, machine_record, table, write_result

REAL, QUERIES_TIMED, UNTIMED, PAIRS_READ = 1_000, 45, 15, 20
WORDS, SHAPE, SCALE_OF_WEIGHTS = 60, 2.0, 0.5
WAYS = ("bm25", "sparse", "hybrid", "tokens", "cross", "forward")


def options(parser: argparse.ArgumentParser) -> None:
    """Take the documents, how many, the encoders, and the cluster."""
    parser.add_argument("corpus", type=Path, metavar="CORPUS")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--url")
    add_json(parser, "ranker-speed")


def measure(given: argparse.Namespace) -> None:
    """Fill an index of the size, unless it is there, and time all ways."""
    cluster, name = hybridr.connect(given.url), f"ranker-speed-{given.documents}"
    real = list(texts(given.corpus, REAL))
    if not cluster.indices(name):
        folder = given.work / "ranker-speed"
        write_beir(folder, [Document(str(number), text) for number, text in enumerate(real)], [], {})
        load(cluster, folder / "corpus.jsonl", LoadSettings(index=name))
        encoders = {kind: given.work / f"{kind}-encoder" for kind in ("unicoil", "colbert")}
        wanted = ReindexSettings(
            sparse_encoder=encoders["unicoil"], token_encoder=encoders["colbert"], term_table=False
        )
        reindex(cluster, name, minilm_encoder(), wanted)
        grow(cluster, name, real, given.documents)
    record: Record = current(given.json) or {"sizes": {}}
    record["sizes"][str(given.documents)] = timed(cluster, name, real, given.work / "rerank-encoder")
    write_result(given.json, record | {"machine": machine_record()})


def grow(cluster: Cluster, name: str, real: list[str], documents: int) -> None:
    """Add made documents to the index with vectors."""
    info = resolve(cluster, name)
    state, tokens = TokenState.of(info.record), Tokenizer.from_file(str(minilm() / TOKENIZER_FILE))
    assert state
    dim = info.record.dim
    write_all(cluster, info.name, made(real, documents, dim, state, tokens))


def made(real: list[str], documents: int, dim: int, state: TokenState, tokens: Tokenizer) -> Iterator[Action]:
    """Make documents of the words of real ones."""
    drawn, leg = np.random.default_rng(0), SparseRetriever()
    assert state.dim
    for number in range(REAL, documents):
        words = real[int(drawn.integers(len(real)))].split()
        text = " ".join(words[place] for place in drawn.permutation(len(words)))
        weights = weighed(text, tokens, drawn)
        vector = drawn.standard_normal(dim)
        states = drawn.standard_normal((len(tokens.encode(text).ids), state.dim)).astype(np.float32)
        held = {"hybridr_vector": (vector / np.linalg.norm(vector)).round(6).tolist()}
        yield index_action(
            f"m{number}",
            {
                "contents": text,
                "text": text,
                **held,
                **leg.value(weights),
                **tokens_value(states, state.values),
            },
        )


def timed(cluster: Cluster, name: str, real: list[str], scorer: Path) -> Record:
    """Ask each query in all ways, the first in rotation: medians in ms, of ratios and of differences."""
    model, settings = hybridr.load_encoder(minilm_encoder()), SearchSettings(tuned=False)
    hybrid = Search(cluster, name, model, settings=settings)
    pairs_of = PairScorer(scorer)
    ways: dict[str, Any] = {
        "bm25": hybrid.using("lexical"),
        "sparse": hybrid.using("sparse"),
        "hybrid": hybrid,
        "tokens": hybrid.reranked("tokens"),
        "cross": hybrid.reranked("cross", folder=scorer, budget_s=UNHURRIED_S, candidates=PAIRS_READ),
    }
    took: list[dict[str, float]] = []
    for number, text in enumerate(real[: QUERIES_TIMED + UNTIMED]):
        asked = " ".join(text.split()[: 5 + number % 8])
        contents = hybrid._pages.contents([hybrid(asked, PAIRS_READ)])
        pairs = [(asked, one) for one in contents.values()]
        calls = [(way, partial(search, asked, 10)) for way, search in ways.items()]
        calls.append(("forward", partial(pairs_of.score, pairs)))
        turn = number % len(calls)
        took.append({way: milliseconds(call) for way, call in [*calls[turn:], *calls[:turn]]})
    took = took[UNTIMED:]
    told: Record = {way: round(median(one[way] for one in took), 1) for way in WAYS}
    return told | {
        "sparse_ratio": round(median(one["sparse"] / one["bm25"] for one in took), 2),
        "tokens_more": round(median(one["tokens"] - one["hybrid"] for one in took), 1),
        "cross_ratio": round(median((one["cross"] - one["hybrid"]) / one["forward"] for one in took), 2),
        "load": round(os.getloadavg()[0], 1),
        "at": time.strftime("%H:%M", time.gmtime()),
    }


def render(record: Record) -> str:
    """Render a row a size."""
    names = (*WAYS, "sparse_ratio", "tokens_more", "cross_ratio", "load")
    rows = [
        [f"{int(size):,}", *(f"{one[part]:g}" for part in names)] for size, one in record["sizes"].items()
    ]
    said = (
        f"Medians in ms over {QUERIES_TIMED} queries, in turns, queries encoded too; all documents "
        f"but {REAL:,} are made, one shard. {machine_of(record['machine'])}."
    )
    shown = ("sparse / BM25", "tokens more by", "cross added / alone", "load")
    return f"{said}\n\n{table(['documents', *WAYS, *shown], rows)}"


def texts(corpus: Path, most: int) -> Iterator[str]:
    """Read the first texts."""
    with corpus.open(encoding="utf-8") as lines:
        for line in itertools.islice(lines, most):
            one = json.loads(line)
            yield " ".join(f"{one.get('title', '')} {one['text']}".split()[:WORDS])


def weighed(text: str, tokens: Tokenizer, drawn: np.random.Generator) -> dict[str, float]:
    """Draw a weight for each token of a text."""
    found = sorted(set(tokens.encode(text, add_special_tokens=False).tokens))
    weights = drawn.gamma(SHAPE, SCALE_OF_WEIGHTS, len(found)) + 1e-3
    return dict(zip(found, weights.round(4).tolist(), strict=True))


SECTIONS = [
    Section(
        95,
        "What each ranker adds, by size",
        "ranker-speed",
        "python benchmarks/run.py ranker-speed CORPUS --work DIR",
        render,
    )
]
