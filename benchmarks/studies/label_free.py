"""How well does each label-free statistic predict the true change of nDCG@10?

    python benchmarks/run.py label-free FOLDER [--sets cranfield,npl] [--json FILE]

FOLDER holds collections in BEIR layout. Each must be an index with vectors on the cluster (`HYBRIDR_URL`,
else the running node); what is not there is loaded and reindexed with the packaged MiniLM. Every variant
changes the plain hybrid: min_max of both top 100, .5 and .5, exact dense search, BM25 in this process
(S-stemmer, k1 1.2, b .75). Its true change is that of the hybrid on at most 300 judged queries; the
statistics see no labels.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

import hybridr
from conditions import the_twelve
from hybridr import Document, Encoder, Query
from hybridr.cluster.connection import Cluster
from hybridr.cluster.reading import read_documents
from hybridr.cluster.settings import LoadSettings
from hybridr.evaluation.bm25 import best
from hybridr.evaluation.evaluation import parse_measure, values_of
from hybridr.evaluation.label_free import (
    KINDS,
    Probe,
    Rankings,
    draw_probes,
    kept_share,
    lexical_overlap,
    make_probes,
    own_document,
)
from hybridr.exporting.exporting import minilm_encoder
from hybridr.files.formats import read_beir
from hybridr.files.manifest import versions
from hybridr.records import Qrels
from hybridr.search.fusions.pipeline import fuse, ranking
from rankings import Arena, Array, completed
from study import (
    LEAD,
    Record,
    Section,
    add_asked,
    machine_of,
    table,
    write_result,
)

QUERIES, HELD_OUT, DRAWN, DEPTH, SEED = 300, 100, 300, 100, 13
DISASTER, SMALL = -0.02, 0.02
Scores = dict[str, float]


Fusion = Callable[[Scores, Scores, Array, Array, float], Scores]
"""Both top lists, both true scores of all texts, the most BM25 could be -> fused scores."""


@dataclass(frozen=True)
class Variant:
    """A change of the plain hybrid: of the vectors, of BM25, or of how they are fused."""

    name: str
    group: str
    fusion: Fusion
    vectors: Callable[[Arena], tuple[Array, Array]] = lambda arena: (arena.queries, arena.documents)
    bm25: tuple[float, float] = (1.2, 0.75)

    def rank(self, arena: Arena) -> Rankings:
        """Rank every query of the arena."""
        queries, documents = self.vectors(arena)
        words, near = arena.lexical(*self.bm25), queries @ documents.T
        lexical = [best(row, DEPTH) for row in words]
        dense = [best(row + 2.0, DEPTH) for row in near]
        fused = [self.fusion(*lists) for lists in zip(lexical, dense, words, near, arena.most, strict=True)]
        orders = ([list(found) for found in lists] for lists in (lexical, dense))
        return Rankings(*orders, [ranking(found)[:DEPTH] for found in fused])


def weighted(weight: float, normalization: str = "min_max") -> Fusion:
    """Fuse the two top lists, the dense one with `weight`."""
    weights = [1 - weight, weight]
    return lambda lexical, dense, *_: fuse([lexical, dense], normalization=normalization, weights=weights)


def complete(lexical: Scores, dense: Scores, words: Array, near: Array, _: float) -> Scores:
    """Fuse the z-scores of both true scores over the union."""
    union = [int(one) for one in {**lexical, **dense}]
    return completed({str(i): float(words[i]) for i in union}, {str(i): float(near[i]) for i in union})


def absolute(lexical: Scores, dense: Scores, words: Array, near: Array, most: float) -> Scores:
    """Fuse true scores as they are: .5 BM25 / (the most it could be) + .5 cosine."""
    union = [int(one) for one in {**lexical, **dense}]
    return {str(i): 0.5 * float(words[i]) / (most or 1.0) + 0.5 * float(near[i]) for i in union}


def noisy(dose: float) -> Callable[[Arena], tuple[Array, Array]]:
    """Add noise of `dose` times a document vector's length, the same in every arena."""

    def change(arena: Arena) -> tuple[Array, Array]:
        noise = np.random.default_rng(SEED).standard_normal(arena.documents.shape, dtype=np.float32)
        noise *= dose / np.linalg.norm(noise, axis=1, keepdims=True)
        return arena.queries, unit(arena.documents + noise)

    return change


def shuffled(share: float) -> Callable[[Arena], tuple[Array, Array]]:
    """Exchange a share of the values of every query vector, always the same ones."""

    def change(arena: Arena) -> tuple[Array, Array]:
        draw = np.random.default_rng(SEED)
        chosen = draw.permutation(arena.queries.shape[1])[: round(share * arena.queries.shape[1])]
        queries = arena.queries.copy()
        queries[:, chosen] = queries[:, draw.permutation(chosen)]
        return queries, arena.documents

    return change


def shortened(dim: int) -> Callable[[Arena], tuple[Array, Array]]:
    """Keep the first values of every vector."""
    return lambda arena: (unit(arena.queries[:, :dim]), unit(arena.documents[:, :dim]))


def unit(vectors: Array) -> Array:
    """Bring vectors to length 1."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


PLAIN = weighted(0.5)
VARIANTS = [
    *(Variant(f"dense weight {w:g}", "fusion", weighted(w)) for w in (0.2, 0.3, 0.4, 0.6, 0.7, 0.8)),
    Variant("rrf", "fusion", weighted(0.5, "rrf")),
    Variant("completed z .6", "fusion", complete),
    Variant("absolute .5", "fusion", absolute),
    *(Variant(f"document noise {d:g}", "encoder", PLAIN, noisy(d)) for d in (0.3, 0.6, 1, 2)),
    *(Variant(f"query values shuffled {s:g}", "encoder", PLAIN, shuffled(s)) for s in (0.1, 0.3, 1)),
    *(Variant(f"first {d} values", "encoder", PLAIN, shortened(d)) for d in (192, 64)),
    *(
        Variant(f"BM25 k1 {k1:g} b {b:g}", "lexical", PLAIN, bm25=(k1, b))
        for k1, b in ((0.9, 0.4), (2.0, 0.75), (1.2, 0.0), (0.0, 0.0))
    ),
]


@dataclass(frozen=True)
class Arenas:
    """One collection: judged queries, queries made of documents that lost that text, and drawn ones."""

    queries: list[Query]
    qrels: Qrels
    doc_ids: list[str]
    real: Arena
    made: Arena
    probes: list[Probe]
    left: Arena
    drawn: list[Probe]

    def true(self, rankings: Rankings) -> float:
        """Give nDCG@10 of the hybrid."""
        run = {
            query.query_id: {self.doc_ids[int(one)]: -float(place) for place, one in enumerate(found)}
            for query, found in zip(self.queries, rankings.fused, strict=True)
        }
        values = values_of(run, self.qrels, [parse_measure(LEAD)], [one.query_id for one in self.queries])
        return float(np.mean(list(values[LEAD].values())))

    def rows(self) -> Iterator[Record]:
        """Yield the true change and those of the statistics for every variant."""
        arenas = (self.real, self.made, self.left)
        before = [Variant("", "", PLAIN).rank(arena) for arena in arenas]
        start, first = self.true(before[0]), self.statistics(before, before)
        for variant in VARIANTS:
            after = [variant.rank(arena) for arena in arenas]
            found = self.statistics(before, after)
            yield {
                "variant": variant.name,
                "group": variant.group,
                "true": self.true(after[0]) - start,
                "statistics": {name: found[name] - first[name] for name in found},
            }

    def statistics(self, before: list[Rankings], after: list[Rankings]) -> dict[str, float]:
        """Give the mean of every statistic of `after`."""
        real, made, left = after
        own = {"dense": own_document(made.dense, answers(self.probes))}
        own["hybrid"] = own_document(made.fused, answers(self.probes))
        found = {f"own document, {name}": values for name, values in own.items()}
        for kind in KINDS:
            chosen = np.array([probe.kind == kind for probe in self.probes])
            if chosen.any():
                found[f"own document, hybrid, {kind}"] = own["hybrid"][chosen]
        found["own document, hybrid, text left in"] = own_document(left.fused, answers(self.drawn))
        for where, old, new in (("made", before[1], made), ("real", before[0], real)):
            found[f"dense in BM25 top 20, {where} queries"] = lexical_overlap(new.dense, new.lexical)
            found[f"hybrid in BM25 top 20, {where} queries"] = lexical_overlap(new.fused, new.lexical)
            found[f"hybrid top 10 kept, {where} queries"] = kept_share(old.fused, new.fused)
        return {name: float(values.mean()) for name, values in found.items()}


def answers(probes: list[Probe]) -> list[str]:
    """Name each probe's own document as the rankings do."""
    return [str(probe.position) for probe in probes]


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections and the file."""
    add_asked(parser, the_twelve(), "label-free")


def measure(given: argparse.Namespace) -> None:
    """Measure every collection, write the JSON and print what each statistic tells."""
    cluster, encoder = hybridr.connect(given.url), hybridr.load_encoder(minilm_encoder())
    record: Record = {
        "versions": versions(),
        "disaster": DISASTER,
        "small": SMALL,
        "rows": [],
    }
    for name in given.sets:
        started = time.process_time()
        arenas = prepare(cluster, encoder, given.folder / name)
        record["rows"] += [{"set": name, **row} for row in arenas.rows()]
        record["statistics"] = summary(record["rows"])
        # After each set: an interrupted run keeps what it measured.
        write_result(given.json, record)
        print(f"{name}: {time.process_time() - started:.0f} CPU seconds", flush=True)
    for found in record["statistics"]:
        print(found)


def prepare(cluster: Cluster, encoder: Encoder, folder: Path) -> Arenas:
    """Read one collection and its vectors, and make queries."""
    corpus, queries, qrels = read_beir(folder)
    draw = random.Random(SEED)
    queries = draw.sample(queries, QUERIES) if len(queries) > QUERIES else queries
    vectors = read_vectors(cluster, encoder, folder, corpus)
    texts = [document.contents for document in corpus]
    chosen = draw.sample(range(len(corpus)), min(HELD_OUT, len(corpus)))
    probes, rests = make_probes([corpus[i] for i in chosen], SEED)
    probes = [probe._replace(position=chosen[probe.position]) for probe in probes]
    changed, moved = list(texts), vectors.copy()
    moved[chosen] = encoder.encode_documents(rests)
    for i, rest in zip(chosen, rests, strict=True):
        changed[i] = rest
    drawn = draw_probes(corpus, DRAWN, SEED)

    def arena(texts: list[str], documents: Array, asked: list[str]) -> Arena:
        return Arena(texts, documents, asked, encoder.encode_queries(asked))

    return Arenas(
        queries,
        qrels,
        [document.doc_id for document in corpus],
        arena(texts, vectors, [query.text for query in queries]),
        arena(changed, moved, [probe.text for probe in probes]),
        probes,
        arena(texts, vectors, [probe.text for probe in drawn]),
        drawn,
    )


def read_vectors(cluster: Cluster, encoder: Encoder, folder: Path, corpus: list[Document]) -> Array:
    """Read the documents' vectors `(n, dim)` from the index, which is made where it is missing."""
    name = folder.name
    if not cluster.indices(name):
        hybridr.load(cluster, folder, LoadSettings(index=name))
    if not cluster.indices(f"{name}-hybridr"):
        hybridr.reindex(cluster, name, encoder)
    place = {document.doc_id: i for i, document in enumerate(corpus)}
    vectors = np.zeros((len(corpus), encoder.dim), dtype=np.float32)
    for found in read_documents(cluster, f"{name}-hybridr", fields=["hybridr_vector"]):
        if value := found.source.get("hybridr_vector"):
            vectors[place[found.doc_id]] = value
    return unit(vectors)


def summary(rows: list[Record]) -> list[Record]:
    """Say of every statistic how its change goes with the true one; best prediction of disasters first."""
    names = list(dict.fromkeys(name for row in rows for name in row["statistics"]))
    found = [{"statistic": name, **agreement(name, rows)} for name in names]
    return sorted(found, key=lambda one: -(one["disaster_auc"] or 0.0))


def agreement(name: str, rows: list[Record]) -> Record:
    """Correlate one statistic with the truth, pooled and within each set, and tell disasters by it."""
    rows = [row for row in rows if name in row["statistics"]]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    within = [correlations([row for row in rows if row["set"] == one], name) for one in sets]
    small = [row for row in rows if abs(row["true"]) < SMALL]
    return {
        "sets": len(sets),
        "spearman_within": float(np.mean([one[0] for one in within])),
        "kendall_within": float(np.mean([one[1] for one in within])),
        "spearman_pooled": correlations(rows, name)[0],
        "spearman_small": correlations(small, name)[0],
        "disaster_auc": area(rows, name),
    }


def correlations(rows: list[Record], name: str) -> tuple[float, float]:
    """Give Spearman's and Kendall's rank correlation; 0 where one side never changes."""
    true, told = ([row["true"] for row in rows], [row["statistics"][name] for row in rows])
    if len(set(true)) < 2 or len(set(told)) < 2:
        return 0.0, 0.0
    return float(stats.spearmanr(true, told).statistic), float(stats.kendalltau(true, told).statistic)


def area(rows: list[Record], name: str) -> float | None:
    """Give the chance that a disaster has the lower statistic of it and another variant."""
    bad = [row["statistics"][name] for row in rows if row["true"] < DISASTER]
    good = [row["statistics"][name] for row in rows if row["true"] >= DISASTER]
    if not bad or not good:
        return None
    return float(stats.mannwhitneyu(good, bad).statistic) / (len(bad) * len(good))


COLUMNS = {
    "spearman_within": "Spearman, within a set",
    "kendall_within": "Kendall, within a set",
    "spearman_pooled": "Spearman, pooled",
    "spearman_small": "Spearman, small changes",
    "disaster_auc": "disasters, area",
}


QUERY_MAPS = (
    " Query maps are among what was measured: linear changes of query vectors, which `hybridr tune` fitted "
    "until they went."
)


def render(record: Record) -> str:
    """Render one row per statistic, best at telling disasters first."""
    rows = record["rows"]
    sets = dict.fromkeys(row["set"] for row in rows)
    variants = dict.fromkeys(row["variant"] for row in rows)
    bad = sum(row["true"] < record["disaster"] for row in rows)
    said = (
        f"{len(variants)} variants of the plain hybrid on {len(sets)} collections. A disaster loses more "
        f"than {-record['disaster']:g} nDCG@10 ({bad} of {len(rows)} rows); the area is the chance that a "
        f"statistic is lower for a disaster than for another variant, .5 by guessing. Small changes are "
        f"below {record['small']:g}. {machine_of(record['machine'])}."
    )
    said += QUERY_MAPS if any(row["group"] == "map" for row in rows) else ""
    body = [
        [found["statistic"], str(found["sets"]), *(shown(found[name]) for name in COLUMNS)]
        for found in record["statistics"]
    ]
    told = table(["statistic", "sets", *COLUMNS.values()], body)
    changes = table(
        ["variant", "mean true change", "sets up", "worst"], [by_variant(one, rows) for one in variants]
    )
    return f"{said}\n\n{told}\n\nWhat the variants truly change, nDCG@10 of the hybrid:\n\n{changes}"


def by_variant(name: str, rows: list[Record]) -> list[str]:
    """Render the true changes of one variant over all collections."""
    found = {row["set"]: row["true"] for row in rows if row["variant"] == name}
    worst = min(found, key=lambda one: found[one])
    mean, up = sum(found.values()) / len(found), sum(change > 0 for change in found.values())
    return [name, f"{mean:+.4f}", f"{up} of {len(found)}", f"{found[worst]:+.4f} ({worst})"]


def shown(value: float | None) -> str:
    """Render a correlation or an area."""
    return "" if value is None else f"{value:.2f}"


SECTIONS = [
    Section(
        30,
        "Label-free statistics and the true change",
        "label-free",
        "python benchmarks/run.py label-free FOLDER",
        render,
    )
]
