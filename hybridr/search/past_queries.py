"""Past queries: what is kept of judged queries beside an index, and how those like a query are found.

Of a query its vector is kept and no text; of its relevant documents the ids, how relevant they are, and a
stamp of their text, so that one that was changed since counts no more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.connection import Cluster, path_of
from ..cluster.default_pipeline import drop_index, hidden_body
from ..cluster.failures import understood
from ..cluster.reading import hits_by_id, text_of
from ..cluster.record import IndexInfo
from ..cluster.retrievers.dense import as_kept, as_numbers, vector_mapping
from ..cluster.settings import VectorSettings
from ..cluster.writing import MAX_ID
from ..encoders.contract import Encoder, Vectors, of_length_one
from .hits import checked_hits

BESIDE = "-hybridr-memory"
NEAREST = 20  # past queries that a query is compared with
WIDE = {"ef_search": 3 * NEAREST}  # of a million past queries it still finds the nearest
MOST_DOCUMENTS = 50  # of a past query, the most relevant ones
STAMP = 16  # hex digits
READ_AT_ONCE = 100  # documents
FIELD = "vector"
PAST_VECTORS = VectorSettings(vectors="byte", ef_construction=50)
"""Of a million past queries a graph of floats would take minutes more to build, and gigabytes."""


class Relevant(NamedTuple):
    """A document that somebody found relevant: by how much of the highest grade, and what its text was."""

    doc_id: str
    share: float
    stamp: str


def most_relevant(grades: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the stored documents of a judged query with their grades, the most relevant ones first."""
    relevant = ((doc, grade) for doc, grade in grades.items() if grade > 0)
    return sorted(relevant, key=lambda pair: (-pair[1], pair[0]))[:MOST_DOCUMENTS]


class Past(NamedTuple):
    """A past query by its cosine with one that is asked now."""

    cosine: float
    relevant: Sequence[Relevant]


class Credit(NamedTuple):
    """What past queries say for a document, 0 to 1, as long as its text has this stamp."""

    worth: float
    stamp: str


def memory_of(index: str) -> str:
    """Name the hidden index of the past queries of an index with vectors."""
    return index + BESIDE


def memory_body(dim: int, version: tuple[int, int, int]) -> dict[str, Any]:
    """Return settings and mapping of an index of past queries; vectors are in its graph alone."""
    vector = vector_mapping(dim, "cosine", PAST_VECTORS, version)
    # Whoever writes refreshes once: fewer and larger graphs.
    body = hidden_body({FIELD: vector}, knn=True, refresh_interval="-1")
    return {**body, "mappings": {**body["mappings"], "_source": {"excludes": [FIELD]}}}


def query_vectors(encoder: Encoder, texts: Sequence[str]) -> Vectors:
    """Encode queries to `(n, dim)`, of length 1."""
    return of_length_one(encoder.encode_queries(texts))


def kept_of(vector: NDArray[np.int8], relevant: Sequence[Relevant]) -> dict[str, Any]:
    """Return the document of a past query, with its vector `(dim,)`."""
    return {FIELD: as_numbers(vector), "relevant": [list(documents) for documents in relevant]}


def past_like(
    cluster: Cluster, info: IndexInfo, texts: Sequence[str], vectors: Vectors, threshold: float
) -> dict[str, list[Past]]:
    """Find for each text the past queries whose cosine with its vector, of `(n, dim)`, is at least so high.

    It takes one request; a text without a vector has no past. Raises what `Cluster.msearch` does.
    """
    memory, stored = memory_of(info.name), as_kept(vectors, PAST_VECTORS.vectors)
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
    with understood(cluster.url, path_of(memory, "_msearch")):
        past = [
            [Past(2 * float(hit["_score"]) - 1, list(read_relevant(hit))) for hit in checked_hits(answer)]
            for answer in answers
        ]
    return dict.fromkeys(texts, []) | dict(zip(queries, past, strict=True))


def read_relevant(hit: Mapping[str, Any]) -> Iterator[Relevant]:
    """Read the documents of a past query, of which there are few; whoever may write there writes what he
    likes, so what is no such document is left out."""
    entries = hit.get("_source", {}).get("relevant")
    for entry in entries[:MOST_DOCUMENTS] if isinstance(entries, list) else ():
        match entry:
            case [str(doc_id), float() | int() as share, str(stamp)] if (
                0 < len(doc_id) <= MAX_ID and 0 < share <= 1 and len(stamp) == STAMP
            ):
                yield Relevant(doc_id, float(share), stamp)


def credits_by(past: Iterable[Past], threshold: float) -> dict[str, Credit]:
    """Credit each document by the past query for which it gives most: how far that is above the least
    cosine, times how relevant the document was; the best first."""
    by_document: dict[str, Credit] = {}
    for past_query in past:
        nearness = max(0.0, past_query.cosine - threshold) / (1 - threshold)
        for doc_id, share, stamp in past_query.relevant:
            if nearness * share > (by_document[doc_id].worth if doc_id in by_document else 0.0):
                by_document[doc_id] = Credit(min(1.0, nearness * share), stamp)
    return dict(sorted(by_document.items(), key=lambda item: -item[1].worth))


def stamps_of(
    cluster: Cluster, info: IndexInfo, fields: Sequence[str], doc_ids: Sequence[str]
) -> dict[str, str]:
    """Stamp the texts of those of these documents that are there, and that the scope shows."""
    stamps: dict[str, str] = {}
    for start in range(0, len(doc_ids), READ_AT_ONCE):
        batch = list(doc_ids[start : start + READ_AT_ONCE])
        hits = hits_by_id(cluster, info, batch, {"_source": list(fields)})
        for hit in hits:
            text = text_of(hit.get("_source", {}), fields)
            stamps[hit["_id"]] = hashlib.sha256(text.encode()).hexdigest()[:STAMP]
    return stamps


def drop_memory(cluster: Cluster, index: str) -> bool:
    """Delete the past queries of an index; tell whether there were any. Raises AccessDenied."""
    return drop_index(cluster, memory_of(index))
