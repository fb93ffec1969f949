"""Estimates how long a reindex will take, from measurements that write nothing.

Encoder, term table and calibration are timed on the index itself, because a node's speed depends on its
machine, its load and the index. The constants are processor seconds for one document on this project's bench
machine (Xeon, 2.8 GHz), fitted to what `benchmarks/run.py scale` measured at 10,000 and 100,000 documents;
docs/measured/scale.md explains each term.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from math import log2
from typing import Any

import numpy as np

from ..cluster.connection import Cluster
from ..cluster.mappings import clause_limit, rescore_window
from ..cluster.reading import sample_documents
from ..cluster.record import IndexInfo
from ..cluster.vector_forms import is_embedded
from ..encoders.contract import Encoder, of_length_one, offers_of, reads_tokens
from ..errors import AccessDenied, DataError
from ..indexing.filling import mapped
from ..indexing.planning import Plan, Proposal
from ..indexing.recipe import COMPARED
from ..indexing.reindexing import plan
from ..indexing.settings import ReindexSettings
from ..indexing.targets import target_of
from ..indexing.terms.fitting import (
    LEAST_HEARD,
    MOST_TERMS,
    MOST_TOKENS,
    READ_TOGETHER,
    SAMPLE,
    StateSums,
    laid_out,
    table_obstacle,
)
from ..indexing.terms.storage import TermTable
from ..indexing.terms.terms import Analysis
from ..languages import WORD, word_count
from ..relevance.answering import ASKED, DRAWN, LONGEST
from ..relevance.unanswerable_queries import unanswerable_queries
from ..search.calibration import is_unit
from ..search.fusions import SPARE_CLAUSES
from ..search.fusions.absolute import WINDOW
from ..search.settings import SearchSettings
from ..search.signals.soft_terms import KEPT, MOST_CLAUSES, NEAREST

PROBED_DOCUMENTS, PROBED_QUERIES = 64, 32
SEED = 13
WIDTH = 384  # of states, where an encoder shows none


def table_document_s(proposal: Proposal) -> float:
    """Return the measured seconds that the term table takes for a document whose token states are known."""
    cluster, info, encoder = proposal.cluster, proposal.info, proposal.encoder
    if not reads_tokens(encoder):
        return 0.0
    documents = sample_documents(cluster, info, PROBED_DOCUMENTS, fields=proposal.fields, seed=SEED)
    texts = [laid_out(document.source, proposal.fields, proposal.lexical_fields) for document in documents]
    texts = [text for text in texts if text.text][:PROBED_DOCUMENTS]
    if not texts:
        return 0.0
    readings = encoder.read_documents([text.text for text in texts], max_tokens=proposal.settings.max_tokens)
    sums = StateSums(encoder.width)
    sums.add_all(cluster, info.name, texts[:2], readings[:2])  # the first request also makes things ready
    started = time.perf_counter()
    for first in range(0, len(texts), READ_TOGETHER):
        part = slice(first, first + READ_TOGETHER)
        sums.add_all(cluster, info.name, texts[part], readings[part])
    return (time.perf_counter() - started) / len(texts)


def calibration_s(proposal: Proposal, texts: Sequence[str]) -> float:
    """Return the estimated seconds of a calibration, measured with some unanswerable queries.

    Each query is encoded, expanded to near terms, and sent as a search like those of the new index. There are
    no vectors yet; their share of a search is small. A term is looked up in the table once, however many
    queries contain it.
    """
    cluster, info, fields = proposal.cluster, proposal.info, proposal.lexical_fields
    queries = unanswerable_queries(PROBED_QUERIES)
    length = mean_words([text[:LONGEST] for text in texts]) / mean_words(queries)
    questions = ASKED + min(DRAWN, proposal.documents) * max(1.0, length)  # a search takes time by its words
    analysis = Analysis(cluster, info, fields)
    proposal.encoder.encode_queries(queries[:1])  # the first calls also make things ready
    cluster.msearch(info, [probe_body(info, fields, queries[0], [])])
    started = time.perf_counter()
    proposal.encoder.encode_queries(queries)
    words = [
        dict.fromkeys(word.term for word in analysed.words if word.idf) for analysed in analysis.of(queries)
    ]
    reading_s = time.perf_counter() - started
    near: dict[str, list[str]] = {}
    if proposal.settings.term_table:
        there = (word for text in texts for word in text.lower().split() if word.isalnum())
        queried = (term for part in words for term in part)
        terms = tuple(islice(dict.fromkeys((*queried, *there)), MOST_TERMS)) or ("",)
        width = proposal.encoder.width if reads_tokens(proposal.encoder) else WIDTH
        # Of the words that such a table would have; its vectors mean nothing.
        vectors = np.random.default_rng(SEED).standard_normal((len(terms), width), dtype=np.float32)
        table = TermTable(terms, of_length_one(vectors).astype(np.float16), 1.0, "", {})
        table.near(table.terms[0], NEAREST)
        started = time.perf_counter()
        for term in {term for part in words for term in part}:
            near[term] = [neighbour for neighbour, _ in table.near(term, NEAREST)[:KEPT]]
    lookups_s = (time.perf_counter() - started) if near else 0.0
    expanded = min(MOST_CLAUSES, clause_limit(cluster) - SPARE_CLAUSES) // ((KEPT + 1) * len(fields))
    bodies = [
        probe_body(info, fields, query, [near[term] for term in part if term in near][: max(0, expanded)])
        for query, part in zip(queries, words, strict=True)
    ]
    started = time.perf_counter()
    cluster.msearch(info, bodies)
    searching_s = time.perf_counter() - started
    more = distinct_words(unanswerable_queries(ASKED)) / distinct_words(queries)
    return (reading_s + searching_s) / len(queries) * questions + lookups_s * more


def mean_words(texts: Sequence[str]) -> float:
    """Return the mean number of words of a text, at least 1."""
    return max(1.0, sum(map(word_count, texts)) / max(1, len(texts)))


def distinct_words(queries: Sequence[str]) -> int:
    """Return the number of different words in queries."""
    return len({word for query in queries for word in WORD.findall(query.lower())})


def probe_body(
    info: IndexInfo, fields: Sequence[str], query: str, groups: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Return a search body like those of an index with vectors: a query, and the near terms of its words."""
    lexical = {"multi_match": {"query": query, "fields": list(fields)}}
    near = []
    for terms in groups:
        pairs = ({"term": {field: term}} for term in terms for field in fields)
        scores = [{"constant_score": {"filter": pair, "boost": 0.1}} for pair in pairs]
        near.append({"dis_max": {"queries": scores}})
    window = min(WINDOW * SearchSettings().depth, rescore_window(info))
    rescored = {"rescore_query": {"bool": {"should": [lexical, *near]}}}
    rescore = {"window_size": window, "query": rescored}
    return {"size": 1, "_source": False, "query": lexical, "rescore": rescore}


READ_S = 2.5e-4  # by the clock: a page is searched, and looked up where it goes
INDEX_S = 3.7e-4  # of the node's processors: a document is read, written without its vector, verified
STEP_S = 8.6e-5  # of the node's processors: one of log2(n) steps into a graph of 384 values each
DIMENSIONS = 384  # of the vectors that were measured
VERIFY_S = 6e-5  # by the clock: its state is read on both sides, by four at once
ENCODED_AGAIN = 64  # documents whose vectors are compared with their text encoded again
START_S = 2.5
"""Seconds that do not depend on the size: starting the process, opening the encoder, creating the index,
moving the alias."""
STREAMS = 2  # of a node's threads that one reindex keeps busy: its requests, and the merges behind them


@dataclass(frozen=True)
class Quantity:
    """The amount of work: documents, their vectors, and the dimension of a vector."""

    documents: int
    vectors: int
    dim: int


@dataclass(frozen=True)
class Housing:
    """The data nodes that are written to, and the number of their processors together."""

    nodes: int
    processors: int


@dataclass(frozen=True)
class Speed:
    """Documents that the encoder encodes per second.

    `beside` says that encoder and node share their processors. `most_per_second` limits what is written, not
    what is verified.
    """

    documents_per_second: float
    beside: bool = False
    most_per_second: float | None = None


@dataclass(frozen=True)
class Duration:
    """The estimated seconds of a reindex by the clock; the first three overlap.

    `total` includes the start and the end of a run. `table` is the time of the term table, `calibrating` that
    of the calibration.
    """

    reading: float
    encoding: float
    writing: float
    verifying: float
    total: float
    table: float = 0.0
    calibrating: float = 0.0

    @property
    def stages(self) -> dict[str, float]:
        """Return the seconds of each stage, by the name under which its progress is shown."""
        rest = self.table + self.verifying + self.calibrating + START_S
        return {
            "start and switch": START_S,
            "encode and write": self.total - rest,
            "term table": self.table,
            "verify": self.verifying,
            "calibrate": self.calibrating,
        }


def duration_of(
    quantity: Quantity,
    housing: Housing,
    speed: Speed,
    shards: int,
    done: int = 0,
    table: float = 0.0,
    calibrating: float = 0.0,
) -> Duration:
    """Return the estimated duration of filling an index with so many primary shards.

    `done` documents are there already: they are only read and verified. The index has no replicas meanwhile,
    so nodes without a primary shard have nothing to do. `table` and `calibrating` are as in `Duration`.
    """
    left = max(0, quantity.documents - done)
    reading = quantity.documents * READ_S
    fastest = speed.documents_per_second
    encoding = left / min(fastest, speed.most_per_second or fastest)
    work = node_s(quantity, shards) * left / max(1, quantity.documents)
    busy = min(1.0, shards / housing.nodes)
    writing = work / min(housing.processors * busy, STREAMS)
    shared = work / housing.processors if speed.beside else 0.0
    again = min(ENCODED_AGAIN, quantity.documents) / fastest
    verifying = quantity.documents * VERIFY_S + again
    total = max(reading, encoding + shared, writing) + table + verifying + calibrating + START_S
    return Duration(reading, encoding, writing, verifying, total, table, calibrating)


def node_s(quantity: Quantity, shards: int) -> float:
    """Return the processor seconds of all nodes for writing documents, and vectors into their graphs."""
    steps = log2(max(2.0, quantity.vectors / shards)) * quantity.dim / DIMENSIONS
    return quantity.documents * INDEX_S + quantity.vectors * STEP_S * steps


TIMED = 512  # documents that are counted and timed
TIMED_S = 10.0  # after so many seconds no more of them are encoded
LEAST_S = 1.0  # a GPU is through a sample before its clock is up


def preview(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Return the plan of a reindex with the estimated seconds of each stage, without sending anything.

    Raises the errors of `plan`.
    """
    todo = plan(cluster, name, encoder, settings)
    proposal = todo.proposal
    texts = [text for text in proposal.sample(TIMED) if text]
    if not texts:
        raise DataError(
            f"no text in a sample of '{proposal.info.name}'", hint=f"hybridr inspect {proposal.info.name}"
        )
    done, has_table, has_cosines = 0, False, is_unit(proposal.encoder)
    if todo.exists:
        target = cluster.index_info(todo.destination)
        done = target_of(settings).state(cluster, target).current
        has_table = target.record.term_table is not None
        has_cosines = has_cosines or target.record.cosines is not None
    measured = documents_a_second(proposal, texts)
    speed = Speed(measured, is_embedded(cluster), settings.max_docs_per_second)
    table = 0.0 if has_table else table_seconds(proposal, speed, texts, done)
    calibrating = permitted(partial(calibration_s, proposal, texts))
    if not has_cosines:
        calibrating += min(COMPARED, proposal.documents) / measured
    quantity = Quantity(proposal.documents, proposal.vectors, proposal.encoder.dim)
    try:
        nodes = cluster.request("GET", "/_nodes/os")["nodes"].values()
    except AccessDenied:
        nodes = []
    data = [node for node in nodes if any("data" in role for role in node["roles"])]
    processors = sum(node["os"]["allocated_processors"] for node in data)
    shards, housing = proposal.info.shards, Housing(max(1, len(data)), max(1, processors))
    duration = duration_of(quantity, housing, speed, shards, done, table, calibrating)
    stages = {stage: round(seconds, 3) for stage, seconds in duration.stages.items()}
    return replace(todo, seconds=round(duration.total, 3), stages=stages)


def table_seconds(proposal: Proposal, speed: Speed, texts: Sequence[str], done: int = 0) -> float:
    """Return the estimated seconds of the term table; `done` documents of the index are filled already.

    If states cannot come from the filling, the encoder reads a sample again, up to a number of tokens.
    """
    recipe, settings = proposal.recipe, proposal.settings
    if not settings.term_table or table_obstacle(recipe.windows, proposal.encoder):
        return 0.0
    sampled, late = min(SAMPLE, proposal.documents), done > (1 - LEAST_HEARD) * proposal.documents
    document_s = permitted(partial(table_document_s, proposal))
    if not (late or settings.runner != "threads" or not recipe.shows_states):
        return sampled * document_s
    read = min(sampled, MOST_TOKENS / encoded_tokens(proposal, texts))
    return read * (document_s + 1 / speed.documents_per_second)


def permitted(measure: Callable[[], float]) -> float:
    """Return what `measure` returns; 0 if this user lacks the rights."""
    try:
        return measure()
    except AccessDenied:
        return 0.0


def documents_a_second(proposal: Proposal, texts: Sequence[str]) -> float:
    """Return the measured speed of encoding whole documents as a reindex does, timed for TIMED_S at most."""
    encode, offers = proposal.recipe.encode, offers_of(proposal.encoder)
    together = offers.documents_at_once
    ordered = sorted([*texts] * -(-together // len(texts)), key=len)
    count = -(-len(ordered) // together)
    parts = [ordered[number::count] for number in range(count)]  # each has texts of all lengths
    encode(ordered[:1])  # the first call also makes things ready
    started, encoded = time.perf_counter(), 0

    def begun() -> Iterator[list[str]]:
        """Yield parts of the texts again and again until enough time was measured."""
        nonlocal encoded
        for part in cycle(parts):
            took = time.perf_counter() - started
            if took > TIMED_S or (encoded >= len(ordered) and took > LEAST_S):
                return
            encoded += len(part)
            yield part

    done = sum(map(len, mapped(lambda part: encode(part)[0], begun(), offers.calls_at_once)))
    took = time.perf_counter() - started
    return proposal.documents * done / (took * proposal.vectors)


def encoded_tokens(proposal: Proposal, texts: Sequence[str]) -> float:
    """Return the mean number of tokens that are encoded of a document; 1 if the encoder cannot count."""
    if (counts := offers_of(proposal.encoder).counts) is None:
        return 1.0
    lengths = counts(texts)
    limit = min(proposal.settings.max_tokens or proposal.encoder.max_tokens, proposal.encoder.max_tokens)
    most_tokens = limit * (proposal.recipe.windows.most if proposal.recipe.windows else 1)
    return round(sum(min(tokens, most_tokens) for tokens in lengths) / len(texts), 1)
