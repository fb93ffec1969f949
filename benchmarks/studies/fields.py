"""Does it matter into how many fields a text is cut, and how should its words be searched then?

    python benchmarks/run.py fields FOLDER [--sets cranfield,...] [--url URL] [--json FILE]

FOLDER holds collections in BEIR layout. Each becomes an index of three uneven shards that holds its texts
joined and cut into two, four and six fields: title, lead, body and rest (examples and commands, or index
terms, where there are such). Every document is encoded once, as the joined text. Each way to ask for the
words is asked for its best 100 and for the scores of the candidates; what follows is the arithmetic of the
fusions. At most QUERIES judged queries of each. What is measured stays in the file: the same command goes on.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import nlargest
from operator import itemgetter
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np

import hybridr
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.legs import among
from hybridr.cluster.legs.lexical import lexical_root
from hybridr.cluster.reading import read_documents, sample_documents
from hybridr.cluster.routing import routing_values
from hybridr.cluster.writing import BULK_BYTES, Action, by_bytes, index_action, rejects_of, write
from hybridr.encoding.contract import Reading
from hybridr.encoding.passages import middle_of
from hybridr.evaluation.evaluation import checked_qrels, parse_measure, values_of
from hybridr.exporting.exporting import minilm_encoder
from hybridr.files.formats import read_beir
from hybridr.records import Document, Qrels, Query
from hybridr.reindexing.settings import ReindexSettings
from hybridr.search.candidates import Candidates
from hybridr.search.fusions.pipeline import fuse
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from hybridr.search.signals import QueryReading
from studies.fusion import judged_sample
from study import LEAD, Record, Section, add_asked, machine_of, measure_sets, table

CHOSEN_ON = ("cranfield", "fiqa_mini", "nq_oracle", "tldr_cmd")
CONFIRMED_ON = ("cisi", "cacm", "scifact", "stackfaq", "squadshifts_amazon", "lisa")
QUERIES, DEPTH, PROBED = 150, 100, 50
CUTS, JOINED = (2, 4, 6), "joined"
UNEVEN = (0, 0, 0, 0, 0, 1, 1, 1, 2, 2)  # shards, of ten documents
FORMS = ("bm25", "stock", "plain", "hybrid", "hybrid, each phrase")
Scores = Mapping[str, float]
Asks = Callable[[Search, str], dict[str, Any]]
"""A search of some fields and a text -> what asks for its words."""


def multi(kind: str, **options: Any) -> Asks:
    """Ask by `multi_match`."""
    return lambda search, text: {
        "multi_match": {"query": text, "fields": list(search.lexical_fields), "type": kind, **options}
    }


def combined(search: Search, text: str) -> dict[str, Any]:
    """Ask as if the fields were one."""
    return {"combined_fields": {"query": text, "fields": list(search.lexical_fields)}}


def title_twice(search: Search, text: str) -> dict[str, Any]:
    """Ask as if the fields were one that has the title twice."""
    first, *others = search.lexical_fields
    return {"combined_fields": {"query": text, "fields": [f"{first}^2", *others]}}


def both(*ways: Asks) -> Asks:
    """Add ways up, each by the same share."""
    return lambda search, text: {
        "bool": {"should": [{"bool": {"must": [way(search, text)], "boost": 1 / len(ways)}} for way in ways]}
    }


def built(search: Search, text: str) -> dict[str, Any]:
    """Ask as `Search` does: as if the fields were one, each word by the documents that hold it in any."""
    return search.opened.plain([text])[0]


FEW: dict[str, Asks] = {
    "most": multi("most_fields"),
    "cross .3": multi("cross_fields", tie_breaker=0.3),
    "combined": combined,
    "built": built,
}
WAYS: dict[str, Asks] = {
    "best": multi("best_fields"),
    "best .3": multi("best_fields", tie_breaker=0.3),
    "cross": multi("cross_fields"),
    **FEW,
    "combined + most": both(combined, FEW["most"]),
    "cross + most": both(multi("cross_fields"), FEW["most"]),
    "combined, title^2": title_twice,
}


def fields_of(cut: int) -> list[str]:
    """Name the fields of a cut."""
    return [f"in{cut}_{name}" for name in ("title", "lead", "body", "rest", "more", "end")[:cut]]


def sentences(text: str) -> list[str]:
    """Cut a text into sentences."""
    return [one for one in re.split(r"(?<=[.!?])\s+", text) if one]


def parts_of(document: Document, name: str) -> tuple[str, str, list[str], list[str]]:
    """Give title, lead, sentences of the body, and of the rest where a collection tells it from the body."""
    title, text = document.title, document.text
    text, _, terms = text.partition("Index terms:") if name == "cacm" else (text, "", "")
    told = sentences(text)
    if not title:
        title, told = " ".join(told[:1]), told[1:]
    lead, told = " ".join(told[:1]), told[1:]
    if name == "tldr_cmd":
        pairs = [one.partition(": ") for one in told]
        return title, lead, [first for first, _, _ in pairs], [last for _, _, last in pairs]
    if terms:
        return title, lead, told, terms.split(",")
    middle = (2 * len(told) + 2) // 3
    return title, lead, told[:middle], told[middle:]


def cut_up(document: Document, name: str) -> dict[str, str]:
    """Give all fields of a document: the joined text, and every cut of it."""
    title, lead, body, rest = parts_of(document, name)
    halves = [
        one for part in (body, rest) for one in (part[: len(part) * 2 // 3], part[len(part) * 2 // 3 :])
    ]
    first = [" ".join(one) for one in (body, rest)]
    cuts = {
        2: [title, " ".join(filter(None, [lead, *first]))],
        4: [title, lead, *first],
        6: [title, lead, *(" ".join(one) for one in halves)],
    }
    found = {
        field: text for cut, texts in cuts.items() for field, text in zip(fields_of(cut), texts, strict=True)
    }
    return {JOINED: " ".join(filter(None, [title, lead, *first])), **{k: v for k, v in found.items() if v}}


@dataclass(frozen=True)
class Ground:
    """A collection in its index: the cosines of all documents for each query and the nearest of them, the
    searches of each cut, and words of documents to compare scores by."""

    cluster: Cluster
    doc_ids: list[str]
    queries: list[Query]
    qrels: Qrels
    readings: list[Reading]
    cosines: list[dict[str, float]]
    searches: Mapping[int, Search]
    probes: list[str]

    @cached_property
    def near(self) -> list[dict[str, float]]:
        """Give the nearest documents of each query."""
        return [dict(nlargest(DEPTH, one.items(), key=itemgetter(1))) for one in self.cosines]

    def asked(self, bodies: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
        """Send searches in groups."""
        candidates = Candidates(self.cluster, self.searches[1].info, {})
        groups = (bodies[start : start + 25] for start in range(0, len(bodies), 25))
        return [one for group in groups for one in candidates.scores(group)]

    def listed(self, clauses: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
        """Give the best of each clause."""
        return self.asked([{"size": DEPTH, "query": one} for one in clauses])

    def scored(self, clauses: Sequence[dict[str, Any]], ids: Sequence[list[str]]) -> list[dict[str, float]]:
        """Give what each clause gives its documents."""
        bodies = [{"size": len(few), "query": among(few, one)} for one, few in zip(clauses, ids, strict=True)]
        return self.asked(bodies)

    def value(self, ranked: Sequence[Scores]) -> float:
        """Give the mean of the measure."""
        run = {query.query_id: dict(one) for query, one in zip(self.queries, ranked, strict=True)}
        ids = [one.query_id for one in self.queries]
        values = values_of(run, checked_qrels(self.qrels), [parse_measure(LEAD)], ids)
        return float(np.mean(list(values[LEAD].values())))


def prepared(cluster: Cluster, folder: Path) -> Ground:
    """Make the index where it is missing, and read its vectors."""
    name, encoder = f"fields-{folder.name}", hybridr.load_encoder(minilm_encoder())
    corpus, _, _ = read_beir(folder)
    if not cluster.indices(name):
        filled(cluster, name, folder.name, corpus)
    if not cluster.indices(f"{name}-hybridr"):
        hybridr.reindex(cluster, name, encoder, ReindexSettings(fields=(JOINED,)))
    queries, qrels = judged_sample(folder)
    queries = queries[:: max(1, -(-len(queries) // QUERIES))]
    held = {
        one.doc_id: one.source.get("hybridr_vector") or [0.0] * encoder.dim
        for one in read_documents(cluster, f"{name}-hybridr", fields=["hybridr_vector"])
    }
    searches = {
        cut: Search(
            cluster, name, encoder, settings=SearchSettings(tuned=False, lexical_fields=tuple(fields))
        )
        for cut, fields in {1: [JOINED], **{cut: fields_of(cut) for cut in CUTS}}.items()
    }
    readings = searches[1].signals.read(encoder, [one.text for one in queries])
    products = np.stack([one.vector for one in readings]) @ np.array(list(held.values()), dtype=np.float32).T
    cosines = [dict(zip(held, map(float, row), strict=True)) for row in products]
    sampled = sample_documents(cluster, searches[1].info, PROBED, fields=[JOINED])
    probes = [middle_of(one.source[JOINED]) for one in sampled]
    return Ground(cluster, list(held), queries, qrels, readings, cosines, searches, probes)


def filled(cluster: Cluster, name: str, collection: str, corpus: Sequence[Document]) -> None:
    """Load a collection, its documents spread over the shards unevenly."""
    names = [JOINED, *(field for cut in CUTS for field in fields_of(cut))]
    mapped = {one: {"type": "text", "analyzer": "english"} for one in names}
    create(cluster, name, mapped)
    values = routing_values(cluster.index_info(name))
    shards = (values[UNEVEN[number % len(UNEVEN)]] for number in range(len(corpus)))
    both = zip(corpus, shards, strict=True)
    write_all(
        cluster, name, (index_action(one.doc_id, cut_up(one, collection), routing=at) for one, at in both)
    )


def create(cluster: Cluster, name: str, mapped: Mapping[str, Any]) -> None:
    """Make an index of three shards."""
    settings = {"number_of_shards": 3, "number_of_replicas": 0}
    cluster.request("PUT", path_of(name), {"settings": settings, "mappings": {"properties": mapped}})


def write_all(cluster: Cluster, name: str, actions: Iterable[Action]) -> None:
    """Write documents; none is refused."""
    for group in by_bytes(actions, BULK_BYTES):
        assert not write(cluster, name, group, rejects=rejects_of(name)).rejected
    cluster.refresh(name)


def measured(ground: Ground, name: str) -> Record:
    """Measure every cut in every way; where nothing is chosen, in a few."""
    asks = {(1, JOINED): built} | {
        (cut, way): asking for cut in CUTS for way, asking in (WAYS if name in CHOSEN_ON else FEW).items()
    }
    clauses = {
        key: [asking(ground.searches[key[0]], one.text) for one in ground.queries]
        for key, asking in asks.items()
    }
    lists = {key: ground.listed(asked) for key, asked in clauses.items()}
    union = [
        list(dict.fromkeys(doc for found in (ground.near, *lists.values()) for doc in found[place]))
        for place in range(len(ground.queries))
    ]
    told = {cut: signals(ground, cut, union) for cut in (1, *CUTS)}
    rows = {}
    for (cut, way), asking in asks.items():
        listed = lists[cut, way]
        words = ground.scored(
            clauses[cut, way], [list({**a, **b}) for a, b in zip(listed, ground.near, strict=True)]
        )
        factor = factor_of(ground, cut, asking)
        rows[f"{cut} {way}"] = {
            "factor": round(factor, 3),
            **values(ground, listed, words, factor, told[cut]),
        }
        print(name, cut, way, rows[f"{cut} {way}"], flush=True)
    return {"documents": len(ground.doc_ids), "queries": len(ground.queries), "ways": rows}


class Told(NamedTuple):
    """What BM25 is divided by for each query, and what each form of the signals gives the candidates."""

    roots: list[float]
    signals: dict[str, list[dict[str, float]]]


def signals(ground: Ground, cut: int, union: Sequence[list[str]]) -> Told:
    """Ask for the signals of a cut, phrases in the best field and in each."""
    search, texts = ground.searches[cut], [one.text for one in ground.queries]
    read = search.analysis.of(texts)
    roots = [lexical_root(one.idf_sum) for one in read]
    asked = [QueryReading(*one) for one in zip(texts, read, ground.readings, roots, strict=True)]
    parts = search.signals.of(asked)
    phrases, soft = ([list(one[name].clauses) for one in parts] for name in ("phrases", "soft_terms"))
    forms = {"phrases": phrases, "each phrase": [each_of(one) for one in phrases], "soft terms": soft}
    found = {
        name: ground.scored([{"bool": {"should": one}} for one in asking], union)
        for name, asking in forms.items()
    }
    return Told(roots, found)


def each_of(clauses: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add phrases up over fields."""
    return [one for clause in clauses for one in clause.get("dis_max", {"queries": [clause]})["queries"]]


def factor_of(ground: Ground, cut: int, asking: Asks) -> float:
    """Give how the scores of a way compare with those of the joined text, by words of documents."""
    ways = ((ground.searches[cut], asking), (ground.searches[1], built))
    found = [
        ground.asked([{"size": 10, "query": way(search, text)} for text in ground.probes])
        for search, way in ways
    ]
    return median(mean(a.values()) / mean(b.values()) for a, b in zip(*found, strict=True) if a and b)


def values(ground: Ground, listed: Any, words: Sequence[Scores], factor: float, told: Told) -> Record:
    """Give the measure of a way alone, in the stock hybrid, and in true scores without and with signals."""

    def summed(share: float, **weights: float) -> list[Scores]:
        found = []
        for place, (scores, near, cosines) in enumerate(zip(words, ground.near, ground.cosines, strict=True)):
            root = factor * told.roots[place]
            parts = [
                (weight, told.signals[name.replace("_", " ")][place]) for name, weight in weights.items()
            ]
            parts += [(share / root if root else 0.0, scores)]
            found.append(
                {
                    doc: 0.5 * (1 + cosines[doc]) + sum(weight * of.get(doc, 0.0) for weight, of in parts)
                    for doc in {**listed[place], **near}
                }
            )
        return found

    stock = [fuse([a, b], weights=[0.5, 0.5]) for a, b in zip(listed, ground.near, strict=True)]
    whole = summed(0.3, phrases=0.1, soft_terms=0.2)
    each = summed(0.3, each_phrase=0.1, soft_terms=0.2)
    runs = zip(FORMS, (listed, stock, summed(0.5), whole, each), strict=True)
    return {name: round(ground.value(ranked), 5) for name, ranked in runs}


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster and the file."""
    add_asked(parser, [*CHOSEN_ON, *CONFIRMED_ON], "fields")


def measure(given: argparse.Namespace) -> None:
    """Measure what is not in the file yet."""
    cluster = hybridr.connect(given.url)
    measure_sets(given, lambda name: measured(prepared(cluster, given.folder / name), name))


ABOUT = """\
nDCG@10 of the joined text and of the same texts cut into two, four and six fields, by what asks for their
words, means over the collections; at most {queries} queries each, three uneven shards. Stock: min_max of both
top 100, .5 and .5. Built: what `Search` asks, `combined_fields` of each word, weighed by the documents that
hold it in any field; phrases count in the field that has them best.
Chosen on the first collections, confirmed on the others. BM25 of fiqa_mini in four and six fields is .0123
and .0107 below the joined one's by the statistics of words in each shard, 865 documents in three: by those of
the whole index (`dfs_query_then_fetch`, by hand) it was .0062 and .0032, and the joined one .0059 higher. To
ask so always would gain nothing: in the indices of "An application's own query", four fields in three even
shards, BM25 was .4421 by it and .4397 without, mean of eight sets (fiqa_mini .4534 and .4660), the hybrid
.5703 and .5719, and it cost up to 2.4 ms (BM25) and 12 ms (hybrid; the machine was busy)."""


def render(record: Record) -> str:
    """Show the means by way of asking, and the way that was built set by set."""
    sets = record["sets"]
    shown = []
    for names, ways in ((CHOSEN_ON, WAYS), (CONFIRMED_ON, FEW)):
        if found := [sets[name]["ways"] for name in names if name in sets]:
            rows = [[way, *by_cut(found, way)] for way in ways]
            joined = [f"{mean(one[f'1 {JOINED}'][form] for one in found):.4f}" for form in FORMS[:4]]
            header = ["words", *(f"{form}, {cut}" for form in FORMS[:4] for cut in CUTS)]
            told = ", ".join(map(" ".join, zip(FORMS[:4], joined, strict=True)))
            shown += [f"{', '.join(one for one in names if one in sets)}; joined: {told}."]
            shown += [table(header, rows)]
    header = [
        "collection",
        "joined",
        *(f"bm25, {cut}" for cut in CUTS),
        "joined",
        *(f"hybrid, {cut}" for cut in CUTS),
    ]
    header += [f"stock, {cut}" for cut in CUTS]
    rows = [[name, *of_set(found["ways"])] for name, found in sets.items()]
    return "\n\n".join(
        [machine_of(record["machine"]) + ".", ABOUT.format(queries=QUERIES), *shown, table(header, rows)]
    )


def by_cut(found: Sequence[Record], way: str) -> list[str]:
    """Show the means of a way over collections."""
    return [f"{mean(one[f'{cut} {way}'][form] for one in found):.4f}" for form in FORMS[:4] for cut in CUTS]


def of_set(ways: Record) -> list[str]:
    """Show BM25, hybrid and stock hybrid of the way that was built."""
    cuts = [ways[f"{cut} built"] for cut in CUTS]
    joined = ways[f"1 {JOINED}"]
    told = [
        joined["bm25"],
        *(one["bm25"] for one in cuts),
        joined["hybrid"],
        *(one["hybrid"] for one in cuts),
    ]
    return [f"{value:.4f}" for value in [*told, *(one["stock"] for one in cuts)]]


SECTIONS = [
    Section(22, "Texts in several fields", "fields", "python benchmarks/run.py fields FOLDER", render),
]
