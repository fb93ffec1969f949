"""Estimates how long a reindex will take, from measurements that write nothing.

Encoder, term table and calibration are timed on the index itself, because a node's speed depends on its
machine, its load and the index. The constants are processor seconds for one document on this project's bench
machine (Xeon, 2.8 GHz), fitted to `benchmarks/run.py scale` at 10,000 and 100,000 documents;
docs/measured/scale.md explains each term.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from math import ceil, log2
from shlex import quote
from typing import Any

import numpy as np

from ..cluster.connection import Cluster
from ..cluster.mappings import clause_limit, rescore_window
from ..cluster.reading import sample_documents
from ..cluster.record import IndexInfo
from ..cluster.vector_forms import is_embedded
from ..encoders.contract import Encoder, offers_of, reads_tokens, unit_length
from ..errors import AccessDenied, DataError
from ..indexing.filling import map_in_threads
from ..indexing.planning import Plan, Proposal
from ..indexing.recipe import COMPARED
from ..indexing.reindexing import plan
from ..indexing.settings import ReindexSettings
from ..indexing.targets import target_of
from ..indexing.terms.fitting import (
    MAX_TERMS,
    MAX_TOKENS,
    MIN_ENCODED_SHARE,
    READ_TOGETHER,
    SAMPLE,
    StateSums,
    lay_out,
    table_obstacle,
)
from ..indexing.terms.storage import TermTable
from ..indexing.terms.terms import Analysis
from ..languages import WORD, word_count
from ..relevance.answering import EXCERPTS, MAX_EXCERPT, SEARCHED_QUERIES, unanswerable_queries
from ..search.calibration import is_reference
from ..search.fusions import SPARE_CLAUSES
from ..search.fusions.absolute import WINDOW
from ..search.settings import SearchSettings
from ..search.signals.soft_terms import MAX_CLAUSES, NEAREST, USED

PROBED_DOCUMENTS, PROBED_QUERIES = 64, 32
SEED = 13
WIDTH = 384  # of token states, if the encoder does not give them


def table_s_per_document(proposal: Proposal) -> float:
    """Return the measured seconds that the term table takes for a document whose token states are known; 0 if
    the encoder gives none, or a sample has no text.
    """
    cluster, info, encoder = proposal.cluster, proposal.info, proposal.encoder
    if not reads_tokens(encoder):
        return 0.0
    documents = sample_documents(cluster, info, PROBED_DOCUMENTS, fields=proposal.fields, seed=SEED)
    texts = [lay_out(document.source, proposal.fields, proposal.lexical_fields) for document in documents]
    texts = [text for text in texts if text.text][:PROBED_DOCUMENTS]
    if not texts:
        return 0.0
    readings = encoder.read_documents([text.text for text in texts], max_tokens=proposal.settings.max_tokens)
    sums = StateSums(encoder.width)
    sums.add_all(cluster, info.name, texts[:2], readings[:2])  # not timed: the first request is slower
    started = time.perf_counter()
    for start in range(0, len(texts), READ_TOGETHER):
        part = slice(start, start + READ_TOGETHER)
        sums.add_all(cluster, info.name, texts[part], readings[part])
    return (time.perf_counter() - started) / len(texts)


def calibration_s(proposal: Proposal, texts: Sequence[str]) -> float:
    """Return the estimated seconds of a calibration, measured with some unanswerable queries.

    Each query is encoded, expanded to near terms, and sent as a search like those of the new index. The
    search has no vectors, whose share of its time is small. A term is looked up in the table once, even if
    several queries contain it. seconds = (reading + searching) per query * queries + lookups.
    """
    cluster, info, fields = proposal.cluster, proposal.info, proposal.lexical_fields
    queries = unanswerable_queries(PROBED_QUERIES)
    length = mean_word_count([text[:MAX_EXCERPT] for text in texts]) / mean_word_count(queries)
    # The time of a search grows with its number of words.
    query_count = SEARCHED_QUERIES + min(EXCERPTS, proposal.documents) * max(1.0, length)
    analysis = Analysis(cluster, info, fields)
    proposal.encoder.encode_queries(queries[:1])  # not timed: the first calls are slower
    cluster.msearch(info, [probe_body(info, fields, queries[0], [])])
    started = time.perf_counter()
    proposal.encoder.encode_queries(queries)
    terms_by_query = [
        dict.fromkeys(word.term for word in analysed.words if word.idf) for analysed in analysis.of(queries)
    ]
    reading_s = time.perf_counter() - started
    near: dict[str, list[str]] = {}
    if proposal.settings.term_table:
        document_words = (word for text in texts for word in text.lower().split() if word.isalnum())
        query_terms = dict.fromkeys(term for terms in terms_by_query for term in terms)
        table_terms = tuple(islice(dict.fromkeys((*query_terms, *document_words)), MAX_TERMS)) or ("",)
        width = proposal.encoder.width if reads_tokens(proposal.encoder) else WIDTH
        # Random vectors: only the size of the table matters for the time.
        vectors = np.random.default_rng(SEED).standard_normal((len(table_terms), width), dtype=np.float32)
        table = TermTable(table_terms, unit_length(vectors).astype(np.float16), 1.0, "", {})
        table.near(table.terms[0], NEAREST)
        started = time.perf_counter()
        for term in query_terms:
            near[term] = [neighbour for neighbour, _ in table.near(term, NEAREST)[:USED]]
    lookups_s = (time.perf_counter() - started) if near else 0.0
    clause_room = min(MAX_CLAUSES, clause_limit(cluster) - SPARE_CLAUSES)
    most_groups = max(0, clause_room // ((USED + 1) * len(fields)))
    bodies = [
        probe_body(info, fields, query, [near[term] for term in terms if term in near][:most_groups])
        for query, terms in zip(queries, terms_by_query, strict=True)
    ]
    started = time.perf_counter()
    cluster.msearch(info, bodies)
    searching_s = time.perf_counter() - started
    word_ratio = distinct_word_count(unanswerable_queries(SEARCHED_QUERIES)) / distinct_word_count(queries)
    return (reading_s + searching_s) / len(queries) * query_count + lookups_s * word_ratio


def mean_word_count(texts: Sequence[str]) -> float:
    """Return the mean number of words of a text, at least 1."""
    return max(1.0, sum(map(word_count, texts)) / max(1, len(texts)))


def distinct_word_count(queries: Sequence[str]) -> int:
    """Return the number of different words in queries."""
    return len({word for query in queries for word in WORD.findall(query.lower())})


def probe_body(
    info: IndexInfo, fields: Sequence[str], query: str, groups: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Return a search body like those of an index with vectors; `groups` are the near terms of each word."""
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


READ_S = 2.5e-4  # wall time per document: reading its page, looking up its state in the target
INDEX_S = 3.7e-4  # processor time per document: reading, writing without its vector, verifying
STEP_S = 8.6e-5  # processor time of each of the log2(n) steps that insert a vector of DIMENSIONS
DIMENSIONS = 384
VERIFY_S = 6e-5  # wall time per document: four threads compare its state on both sides
ENCODED_AGAIN = 64  # documents whose texts are encoded again, to compare the vectors
START_S = 2.5
"""Seconds that do not depend on the size: starting the process, opening the encoder, creating the index,
moving the alias."""
STREAMS = 2  # threads of a node that one reindex keeps busy: its requests, and the merges that follow


@dataclass(frozen=True)
class Quantity:
    """The amount of work: documents, their vectors, and the dimension of a vector."""

    documents: int
    vectors: int
    dim: int


@dataclass(frozen=True)
class DataNodes:
    """The number of data nodes, and of their processors together."""

    nodes: int
    processors: int


@dataclass(frozen=True)
class Speed:
    """Documents that the encoder encodes per second.

    `shares_processors` is whether encoder and node run on the same machine. `limit_per_second` limits
    writing, not verifying.
    """

    documents_per_second: float
    shares_processors: bool = False
    limit_per_second: float | None = None


@dataclass(frozen=True)
class Duration:
    """The estimated wall seconds of filling and verifying an index."""

    reading: float
    encoding: float
    writing: float
    filling: float
    """All three together: they overlap."""
    verifying: float


def estimated_duration(
    quantity: Quantity, data_nodes: DataNodes, speed: Speed, shards: int, done: int = 0
) -> Duration:
    """Return the estimated duration of filling an index that has `shards` primary shards.

    `done` documents are filled already: they are only read and verified. The index has no replicas during the
    run, so nodes without a primary shard have nothing to do.
    """
    unfilled = max(0, quantity.documents - done)
    reading = quantity.documents * READ_S
    fastest = speed.documents_per_second
    encoding = unfilled / min(fastest, speed.limit_per_second or fastest)
    processor_s = writing_processor_s(quantity, shards) * unfilled / max(1, quantity.documents)
    busy_share = min(1.0, shards / data_nodes.nodes)
    writing = processor_s / min(data_nodes.processors * busy_share, STREAMS)
    node_share = processor_s / data_nodes.processors if speed.shares_processors else 0.0
    verifying = quantity.documents * VERIFY_S + min(ENCODED_AGAIN, quantity.documents) / fastest
    return Duration(reading, encoding, writing, max(reading, encoding + node_share, writing), verifying)


def writing_processor_s(quantity: Quantity, shards: int) -> float:
    """Return the processor seconds of all nodes to index the documents and insert the vectors into graphs.

    documents * INDEX_S + vectors * STEP_S * log2(max(2, vectors per shard)) * dim / DIMENSIONS
    """
    scaled_steps = log2(max(2.0, quantity.vectors / shards)) * quantity.dim / DIMENSIONS
    return quantity.documents * INDEX_S + quantity.vectors * STEP_S * scaled_steps


TIMED = 512  # sampled documents whose encoding is timed
TIMED_S = 10.0  # longest time of encoding
MIN_TIMED_S = 1.0  # shortest: a GPU boosts its clock only after some time


def estimated_plan(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Return the plan of a reindex with the estimated seconds of each stage; nothing is written.

    Raises the errors of `plan`, and DataError if a sample of the documents has no text.
    """
    reindex_plan = plan(cluster, name, encoder, settings)
    proposal = reindex_plan.proposal
    texts = [text for text in proposal.sample(TIMED) if text]
    if not texts:
        raise DataError(
            f"no text in a sample of '{proposal.info.name}'",
            hint=f"hybridr inspect {quote(proposal.info.name)}",
        )
    done, has_table, has_cosines = 0, False, is_reference(proposal.encoder)
    if reindex_plan.exists:
        target = cluster.index_info(reindex_plan.destination)
        done = target_of(settings).state(cluster, target).current
        has_table = target.record.term_table is not None
        has_cosines = has_cosines or target.record.cosines is not None
    encoder_speed = encoding_speed(proposal, texts)
    speed = Speed(encoder_speed, is_embedded(cluster), settings.max_docs_per_second)
    table = 0.0 if has_table else table_s(proposal, speed, texts, done)
    calibrating = seconds_or_zero(partial(calibration_s, proposal, texts))
    if not has_cosines:
        calibrating += min(COMPARED, proposal.documents) / encoder_speed
    quantity = Quantity(proposal.documents, proposal.vectors, proposal.encoder.dim)
    try:
        nodes = cluster.request("GET", "/_nodes/os")["nodes"].values()
    except AccessDenied:
        nodes = []
    nodes = [node for node in nodes if any("data" in role for role in node["roles"])]
    processors = sum(node["os"]["allocated_processors"] for node in nodes)
    shards, data_nodes = proposal.info.shards, DataNodes(max(1, len(nodes)), max(1, processors))
    duration = estimated_duration(quantity, data_nodes, speed, shards, done)
    stages = {  # by the names under which their progress is shown
        "start and switch": START_S,
        "encode and write": duration.filling,
        "term table": table,
        "verify": duration.verifying,
        "calibrate": calibrating,
    }
    rounded = {stage: round(seconds, 3) for stage, seconds in stages.items()}
    return replace(reindex_plan, seconds=round(sum(stages.values()), 3), stages=rounded)


def table_s(proposal: Proposal, speed: Speed, texts: Sequence[str], done: int = 0) -> float:
    """Return the estimated seconds of the term table; `done` documents of the index are filled already.

    If filling gives too few token states, the encoder reads up to SAMPLE documents or MAX_TOKENS again.
    """
    recipe, settings = proposal.recipe, proposal.settings
    if not settings.term_table or table_obstacle(recipe.windows, proposal.encoder):
        return 0.0
    sample_size = min(SAMPLE, proposal.documents)
    document_s = seconds_or_zero(partial(table_s_per_document, proposal))
    enough_unfilled = done <= (1 - MIN_ENCODED_SHARE) * proposal.documents
    if enough_unfilled and settings.runner == "threads" and recipe.shows_states:
        return sample_size * document_s
    tokens_each = 1.0  # if the encoder cannot count
    if (counts := offers_of(proposal.encoder).counts) is not None:
        limit = min(settings.max_tokens or proposal.encoder.max_tokens, proposal.encoder.max_tokens)
        tokens_each = round(sum(min(tokens, limit) for tokens in counts(texts)) / len(texts), 1)
    reread = min(sample_size, MAX_TOKENS / tokens_each)
    return reread * (document_s + 1 / speed.documents_per_second)


def seconds_or_zero(measure: Callable[[], float]) -> float:
    """Return the seconds that `measure` returns; 0 if this user lacks the rights for it."""
    try:
        return measure()
    except AccessDenied:
        return 0.0


def encoding_speed(proposal: Proposal, texts: Sequence[str]) -> float:
    """Return the measured documents per second of encoding as a reindex encodes, timed for TIMED_S at most.

    Vectors are timed; a document has `proposal.vectors / proposal.documents` of them in the mean.
    """
    encode, offers = proposal.recipe.encode, offers_of(proposal.encoder)
    batch_size = offers.documents_at_once
    by_length = sorted([*texts] * ceil(batch_size / len(texts)), key=len)
    count = ceil(len(by_length) / batch_size)
    batches = [by_length[number::count] for number in range(count)]  # each has texts of all lengths
    encode(by_length[:1])  # not timed: the first call is slower
    started, encoded = time.perf_counter(), 0

    def repeated_batches() -> Iterator[list[str]]:
        """Yield the batches, repeatedly, until enough time was measured."""
        nonlocal encoded
        for batch in cycle(batches):
            elapsed_s = time.perf_counter() - started
            if elapsed_s > TIMED_S or (encoded >= len(by_length) and elapsed_s > MIN_TIMED_S):
                return
            encoded += len(batch)
            yield batch

    encoded_batches = map_in_threads(lambda batch: encode(batch)[0], repeated_batches(), offers.calls_at_once)
    vectors = sum(map(len, encoded_batches))
    elapsed_s = time.perf_counter() - started
    return proposal.documents * vectors / (elapsed_s * proposal.vectors)
