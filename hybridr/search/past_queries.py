"""Stores judged queries beside an index, and finds those similar to a new query.

Of a past query only its vector is stored, no text; of its relevant documents the ids, their relevance, and a
stamp of their text, so that documents that changed since no longer count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.connection import OWNER, PATTERNS, Cluster, drop_index, hidden_index_body, path_of
from ..cluster.field_values import text_of
from ..cluster.reading import groups_of, hits_by_id
from ..cluster.record import IndexInfo, parse_index_info
from ..cluster.retrievers.dense import as_numbers, to_stored_values, vector_mapping
from ..cluster.settings import VectorSettings
from ..cluster.writing import MAX_ID
from ..encoders.contract import Encoder, Vectors, unit_length
from .hits import checked_hits

BESIDE = "-hybridr-memory"
NEAREST = 20  # past queries that a query is compared with
WIDE = {"ef_search": 3 * NEAREST}  # enough to find the nearest of a million past queries
MAX_DOCUMENTS = 50  # of a past query, the most relevant ones
STAMP = 16  # hex digits
READ_AT_ONCE = 100  # documents
FIELD = "vector"
PAST_VECTORS = VectorSettings(vectors="byte", ef_construction=50)
"""Vectors of past queries. For a million queries, a graph of floats would take minutes and gigabytes more."""


class Relevant(NamedTuple):
    """A relevant document of a past query: id, share of the highest grade, and stamp of its text."""

    doc_id: str
    share: float
    stamp: str


def most_relevant(grades: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the documents of a judged query with positive grades, best first, at most MAX_DOCUMENTS."""
    relevant = ((doc, grade) for doc, grade in grades.items() if grade > 0)
    return sorted(relevant, key=lambda pair: (-pair[1], pair[0]))[:MAX_DOCUMENTS]


class PastQuery(NamedTuple):
    """A past query: its cosine with the current query, and its relevant documents."""

    cosine: float
    relevant: Sequence[Relevant]


class Credit(NamedTuple):
    """The relevance (0 to 1) that past queries give a document, valid while its text has this stamp."""

    score: float
    stamp: str


def memory_name(index: str, job: str) -> str:
    """Return the name of the hidden index into which one job writes the past queries of an index."""
    return f"{index}{BESIDE}-{job}"


def current_memory(info: IndexInfo) -> str:
    """Return the name of the hidden index of past queries that the index's record names; it must name one."""
    assert info.record.memory is not None
    return memory_name(info.name, info.record.memory.job)


def list_memories(cluster: Cluster, index: str) -> list[str]:
    """Return the names of all hidden indices of past queries of an index, also of unfinished jobs."""
    pattern = path_of(f"{index}{BESIDE}-*")
    indices = cluster.request("GET", pattern, params=PATTERNS)
    with cluster.reading_answer(f"GET {pattern}"):
        infos = [parse_index_info(name, index) for name, index in indices.items()]
    return sorted(info.name for info in infos if info.other_meta.get("owner") == OWNER)


def memory_body(dim: int, version: tuple[int, int, int]) -> dict[str, Any]:
    """Return settings and mapping of an index of past queries; vectors are stored in its graph only."""
    vector = vector_mapping(dim, "cosine", PAST_VECTORS, version)
    # Whoever writes refreshes once: fewer and larger graphs.
    body = hidden_index_body({FIELD: vector}, knn=True, refresh_interval="-1")
    return {**body, "mappings": {**body["mappings"], "_source": {"excludes": [FIELD]}}}


def query_vectors(encoder: Encoder, texts: Sequence[str]) -> Vectors:
    """Return the vectors of queries, `(n, dim)`, of length 1."""
    return unit_length(encoder.encode_queries(texts))


def stored_past_query(vector: NDArray[np.int8], relevant: Sequence[Relevant]) -> dict[str, Any]:
    """Return the stored document of a past query, with its vector `(dim,)`."""
    return {FIELD: as_numbers(vector), "relevant": [list(document) for document in relevant]}


def find_past_queries(
    cluster: Cluster, info: IndexInfo, texts: Sequence[str], vectors: Vectors, threshold: float
) -> dict[str, list[PastQuery]]:
    """Return for each text the past queries whose cosine with its vector (a row of `(n, dim)`) reaches the
    threshold.

    This takes one request; a zero vector has no past queries. Raises what `Cluster.msearch` does.
    """
    memory, stored = current_memory(info), to_stored_values(vectors, PAST_VECTORS.vectors)
    queries = {text: vector for text, vector in zip(texts, stored, strict=True) if vector.any()}
    bodies = [
        {
            "size": NEAREST,
            "min_score": (1 + threshold) / 2,
            "_source": ["relevant"],
            "query": {
                "knn": {FIELD: {"vector": as_numbers(vector), "k": NEAREST, "method_parameters": WIDE}}
            },
        }
        for vector in queries.values()
    ]
    answers = cluster.msearch(memory, bodies, list(queries)) if bodies else []
    with cluster.reading_answer(path_of(memory, "_msearch")):
        past = [
            [
                PastQuery(2 * float(hit["_score"]) - 1, list(read_relevant(hit)))
                for hit in checked_hits(answer)
            ]
            for answer in answers
        ]
    return dict.fromkeys(texts, []) | dict(zip(queries, past, strict=True))


def read_relevant(hit: Mapping[str, Any]) -> Iterator[Relevant]:
    """Yield the relevant documents of a stored query, without malformed ones: others may write there."""
    entries = hit.get("_source", {}).get("relevant")
    for entry in entries[:MAX_DOCUMENTS] if isinstance(entries, list) else ():
        match entry:
            case [str(doc_id), float() | int() as share, str(stamp)] if (
                0 < len(doc_id) <= MAX_ID and 0 < share <= 1 and len(stamp) == STAMP
            ):
                yield Relevant(doc_id, float(share), stamp)


def document_credits(past: Iterable[PastQuery], threshold: float) -> dict[str, Credit]:
    """Return the credit of each document by its best past query, highest first.

    A credit is how far the cosine exceeds the threshold, as a share of the way from the threshold (below 1)
    to 1, times the document's relevance. All past queries of a memory stamp a document alike.
    """
    by_document: dict[str, Credit] = {}
    for past_query in past:
        nearness = max(0.0, past_query.cosine - threshold) / (1 - threshold)
        for doc_id, share, stamp in past_query.relevant:
            if nearness * share > (by_document[doc_id].score if doc_id in by_document else 0.0):
                by_document[doc_id] = Credit(min(1.0, nearness * share), stamp)
    return dict(sorted(by_document.items(), key=lambda item: -item[1].score))


def fetch_text_stamps(
    cluster: Cluster, info: IndexInfo, fields: Sequence[str], doc_ids: Sequence[str]
) -> dict[str, str]:
    """Return the stamps of the current texts of those documents that exist and that the scope shows, by
    id.
    """
    stamps: dict[str, str] = {}
    for group in groups_of(doc_ids, READ_AT_ONCE):
        for hit in hits_by_id(cluster, info, list(group), {"_source": list(fields)}):
            text = text_of(hit.get("_source", {}), fields)
            stamps[hit["_id"]] = hashlib.sha256(text.encode()).hexdigest()[:STAMP]
    return stamps


def drop_memories(cluster: Cluster, index: str, keep: Collection[str] = ()) -> list[str]:
    """Delete the hidden indices of past queries of an index but for those in `keep`; return the names of the
    deleted. Raises AccessDenied.
    """
    memories = [name for name in list_memories(cluster, index) if name not in keep]
    return [name for name in memories if drop_index(cluster, name)]
