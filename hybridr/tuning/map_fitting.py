"""Fits a query map to a live index, without labels: queries made from documents, ranked by the hybrid.

The dense leg learns to imitate .5 BM25 / (4 root(idf sum)) + .5 cosine on them (design notes, findings.md,
"Query map"). The index is only read, and no document is encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from ..cluster.connection import Cluster
from ..cluster.fields import choose_text_fields
from ..cluster.legs.lexical import among, lexical_query
from ..cluster.reading import sample_documents, sources_by_id, text_of
from ..cluster.record import PASSAGE_VECTOR, IndexInfo
from ..encoding.contract import Encoder, Vectors
from ..encoding.query_map import QueryMap, lengths, with_lengths
from ..errors import DataError
from ..evaluation.adam import Adam
from ..evaluation.label_free import Probe, draw_probes
from ..progress import Progress, silent
from ..records import Document
from ..search.fusions.absolute import LEXICAL_SCALE
from ..search.search import Search
from ..search.settings import SearchSettings
from .settings import MapSettings

SEARCHES_AT_ONCE = 64
VECTORS_AT_ONCE = 250
LEAST_DOCUMENTS = 100
LEAST_QUERIES = 20
SPREAD = 0.12
"""Standard deviation of MiniLM's cosines over a query's candidates (on three collections). Scores of other
encoders are brought to it, so that one weight and one temperature do for all."""
REPORTED = 20  # steps


class Found(NamedTuple):
    """Candidates of one query: their ids, and their true BM25 scores (0 where no word matches)."""

    doc_ids: list[str]
    lexical: Vectors


class VectorRows(NamedTuple):
    """Vectors of documents `(m, dim)`, and which rows are each document's: one, or one per passage."""

    vectors: Vectors
    of: dict[str, slice]


def fit_query_map(
    cluster: Cluster,
    index: str | IndexInfo,
    encoder: Encoder,
    settings: MapSettings | None = None,
    *,
    progress: Progress = silent,
) -> QueryMap:
    """Fit a map to the documents of `index`, which may be the source, the alias or the destination.

    `origin.inputs` of the map tells the index, how many queries of each kind there were, and the divergence
    from the hybrid before and after, at the map's strength. Raises DataError for fewer than 100 documents or
    without vectors, FingerprintMismatch when the encoder is not the one that wrote them.
    """
    settings = settings or MapSettings()
    search = Search(cluster, index, encoder, settings=SearchSettings(depth=settings.depth + 1))
    documents = sampled(search, settings, progress)
    probes = draw_probes(documents, settings.queries, settings.seed)
    if len(probes) < LEAST_QUERIES:
        raise DataError(
            f"the documents of '{search.info.name}' give {len(probes)} queries; {LEAST_QUERIES} are needed"
        )
    examples = make_examples(search, encoder, documents, probes, settings, progress)
    matrix = learn_matrix(examples, settings, progress)
    divergences = [
        divergence(examples, share * matrix, settings.temperature) for share in (0.0, settings.strength)
    ]
    inputs = {
        "index": search.info.name,
        "index_uuid": search.info.uuid,
        "queries": {kind: sum(one.kind == kind for one in probes) for kind in {one.kind for one in probes}},
        "divergence": dict(zip(("before", "after"), divergences, strict=True)),
    }
    origin = {"settings": settings.record(), "inputs": inputs}
    return QueryMap(matrix, settings.strength, encoder.fingerprint, origin)


def sampled(search: Search, settings: MapSettings, progress: Progress) -> list[Document]:
    """Read a random sample of documents, as many as there shall be queries."""
    fields = choose_text_fields(search.cluster, search.info)
    titles = [name for name in fields if name == "title" and len(fields) > 1]
    texts = [name for name in fields if name not in titles]
    found = sample_documents(
        search.cluster, search.info, settings.queries, fields=fields, seed=settings.seed, progress=progress
    )
    documents = [
        Document(one.doc_id, text_of(one.source, texts), text_of(one.source, titles)) for one in found
    ]
    kept = [document for document in documents if document.contents]
    if len(kept) < LEAST_DOCUMENTS:
        raise DataError(
            f"'{search.info.name}' has {len(kept)} documents with text; {LEAST_DOCUMENTS} are needed"
        )
    return kept


def make_examples(
    search: Search,
    encoder: Encoder,
    documents: Sequence[Document],
    probes: Sequence[Probe],
    settings: MapSettings,
    progress: Progress,
) -> MapExamples:
    """Encode the queries, find their candidates, and rank those as the teacher does."""
    texts = [probe.text for probe in probes]
    queries = encode_in_tenths(encoder, texts, progress)
    found = find_candidates(search, documents, probes, queries, settings, progress)
    roots = LEXICAL_SCALE * np.sqrt(search.idf_sums(texts))
    rows = read_vectors(
        search, sorted({doc_id for one in found for doc_id in one.doc_ids}), encoder, progress
    )
    picked = [nearest_rows(query, one, rows) for query, one in zip(queries, found, strict=True)]
    return taught(queries, rows.vectors, picked, roots, settings)


def encode_in_tenths(encoder: Encoder, texts: Sequence[str], progress: Progress) -> Vectors:
    """Encode queries to `(n, dim)`, reporting every tenth."""
    part = max(1, -(-len(texts) // 10))
    vectors = []
    for start in range(0, len(texts), part):
        progress("encode queries", start, len(texts))
        vectors.append(encoder.encode_queries(texts[start : start + part]))
    progress("encode queries", len(texts), len(texts))
    return np.concatenate(vectors)


def find_candidates(
    search: Search,
    documents: Sequence[Document],
    probes: Sequence[Probe],
    queries: Vectors,
    settings: MapSettings,
    progress: Progress,
) -> list[Found]:
    """Search both legs for every query and add some of the sample at random; its own document is left out."""
    random = default_rng([settings.seed, 6])
    found: list[Found] = []
    for start in range(0, len(probes), SEARCHES_AT_ONCE):
        progress("candidates", start, len(probes))
        part = probes[start : start + SEARCHES_AT_ONCE]
        legs = [lexical_query(probe.text, search.lexical_fields) for probe in part]
        dense = [search.dense_leg(query) for query in queries[start : start + SEARCHES_AT_ONCE]]
        size = settings.depth + 1
        lists = search.scores(
            [{"size": size, "query": leg} for pair in zip(legs, dense, strict=True) for leg in pair]
        )
        own = [documents[probe.position].doc_id for probe in part]
        drawn = [
            [documents[i].doc_id for i in random.integers(0, len(documents), settings.at_random)]
            for _ in part
        ]
        unscored = [
            [one for one in dict.fromkeys([*near, *others]) if one not in words]
            for words, near, others in zip(lists[::2], lists[1::2], drawn, strict=True)
        ]
        more = search.scores(
            [{"size": len(ids), "query": among(ids, leg)} for leg, ids in zip(legs, unscored, strict=True)]
        )
        for words, ids, extra, answer in zip(lists[::2], unscored, more, own, strict=True):
            scores = {**words, **dict.fromkeys(ids, 0.0), **extra}
            scores.pop(answer, None)
            found.append(Found(list(scores), np.array(list(scores.values()), dtype=np.float32)))
    progress("candidates", len(probes), len(probes))
    return found


def read_vectors(search: Search, doc_ids: Sequence[str], encoder: Encoder, progress: Progress) -> VectorRows:
    """Read the vectors of documents from the index; those without one are left out."""
    field, found = search.info.record.vector_field, {}
    for start in range(0, len(doc_ids), VECTORS_AT_ONCE):
        progress("vectors", start, len(doc_ids))
        # Whole sources: a filter makes OpenSearch 3 leave out the vectors of a nested field.
        part = sources_by_id(search.cluster, search.info, doc_ids[start : start + VECTORS_AT_ONCE])
        for doc_id, source in part.items():
            if value := source.get(field):
                held = [one[PASSAGE_VECTOR] for one in value] if search.windows else [value]
                found[doc_id] = np.array(held, dtype=np.float32)
    progress("vectors", len(doc_ids), len(doc_ids))
    if not found:
        raise DataError(f"'{search.info.name}' has no vectors", hint=f"hybridr reindex {search.info.name}")
    vectors = np.concatenate(list(found.values()))
    if encoder.similarity == "cosine":  # bytes are kept at another length
        vectors /= np.maximum(lengths(vectors), 1e-12)
    ends = np.cumsum([len(one) for one in found.values()]).tolist()
    return VectorRows(vectors, dict(zip(found, map(slice, [0, *ends], ends), strict=False)))


class Picked(NamedTuple):
    """Candidates of one query that have vectors: the nearest row of each, its dense score, its BM25 score."""

    rows: NDArray[np.int64]
    dense: Vectors
    lexical: Vectors


def nearest_rows(query: Vectors, found: Found, rows: VectorRows) -> Picked:
    """Choose each document's passage that is nearest to the query `(dim,)`."""
    kept = [
        (rows.of[one], score)
        for one, score in zip(found.doc_ids, found.lexical, strict=True)
        if one in rows.of
    ]
    best = [where.start + int(np.argmax(rows.vectors[where] @ query)) for where, _ in kept]
    chosen = np.array(best, dtype=np.int64)
    return Picked(chosen, rows.vectors[chosen] @ query, np.array([score for _, score in kept], np.float32))


def taught(
    queries: Vectors,
    vectors: Vectors,
    picked: Sequence[Picked],
    roots: NDArray[np.float64],
    settings: MapSettings,
) -> MapExamples:
    """Give the candidates the teacher's shares: a softmax of the mean of both legs' absolute scores.

    Queries with fewer than two candidates, or without a word of the index, teach nothing and are left out.
    """
    useful = [i for i, one in enumerate(picked) if len(one.rows) > 1 and roots[i] > 0]
    picked, roots, queries = [picked[i] for i in useful], roots[useful], queries[useful]
    there = filled_up([np.ones(len(one.rows), dtype=bool) for one in picked])
    dense = filled_up([one.dense for one in picked])
    scale = SPREAD / (spread(dense, there) or SPREAD)
    lexical = filled_up([one.lexical for one in picked]) / roots[:, None]
    wanted = (1 - settings.dense_weight) * lexical + settings.dense_weight * scale * dense
    shares = softmax(np.float32(1 / settings.teacher_temperature) * wanted.astype(np.float32), there)
    scaled = np.asarray(vectors * scale, dtype=np.float32)
    return MapExamples(queries, scaled, filled_up([one.rows for one in picked]), there, shares)


def filled_up(rows: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Fill rows up with zeros to the longest, `(n, longest)`."""
    result = np.zeros((len(rows), max(map(len, rows))), dtype=rows[0].dtype)
    for place, row in zip(result, rows, strict=True):
        place[: len(row)] = row
    return result


@dataclass(frozen=True)
class MapExamples:
    """Queries `(n, dim)`, rows of `vectors` `(m, dim)` for each `(n, c)`, and the teacher's share of each.

    `shares` `(n, c)` sum to 1; a row that only fills up has `there` False and share 0.
    """

    queries: Vectors
    vectors: Vectors
    rows: NDArray[np.int64]
    there: NDArray[np.bool_]
    shares: Vectors


def learn_matrix(examples: MapExamples, settings: MapSettings, progress: Progress = silent) -> Vectors:
    """Fit D `(dim, dim)`, float32; the same one each time for the same seed."""
    dim = examples.queries.shape[1]
    matrix = np.zeros((dim, dim), dtype=np.float32)
    adam = Adam(matrix, settings.learning_rate)
    for step, batch in enumerate(query_batches(len(examples.queries), settings), 1):
        adam.step(slope(examples, batch, matrix, settings.temperature) + settings.ridge * matrix)
        if step % REPORTED == 0 or step == settings.steps:
            progress("fit", step, settings.steps)
    return matrix


def query_batches(count: int, settings: MapSettings) -> Iterator[NDArray[np.int64]]:
    """Yield positions of queries for every step, each query once before any comes again."""
    random = default_rng([settings.seed, 7])
    waiting = np.array([], dtype=np.int64)
    size = min(settings.batch_size, count)
    for _ in range(settings.steps):
        if len(waiting) < size:
            waiting = random.permutation(count)
        yield waiting[:size]
        waiting = waiting[size:]


def slope(examples: MapExamples, batch: NDArray[np.int64], matrix: Vectors, temperature: float) -> Vectors:
    """Give the gradient of the mean divergence of a batch by the matrix, `(dim, dim)`."""
    queries = examples.queries[batch]
    candidates = examples.vectors[examples.rows[batch]]  # (batch, c, dim)
    changed = queries + queries @ matrix
    size, length = lengths(changed), lengths(queries)
    size = np.where(size > 0, size, 1.0)
    direction = changed / size
    mapped = direction * length
    found = softmax(np.einsum("bcd,bd->bc", candidates, mapped) / temperature, examples.there[batch])
    by_score = (found - examples.shares[batch]) / temperature
    by_mapped = np.einsum("bcd,bc->bd", candidates, by_score)
    along = np.sum(direction * by_mapped, axis=1, keepdims=True)  # the length is fixed: no slope along it
    by_changed = (by_mapped - direction * along) * (length / size)
    return np.asarray(queries.T @ by_changed / len(batch), dtype=np.float32)


def divergence(examples: MapExamples, matrix: Vectors, temperature: float) -> float:
    """Give the mean KL(teacher || dense) over all queries, in nats."""
    total = 0.0
    for start in range(0, len(examples.queries), 100):
        part = slice(start, start + 100)
        queries = examples.queries[part]
        mapped = with_lengths(queries + queries @ matrix, lengths(queries))
        scores = np.einsum("bcd,bd->bc", examples.vectors[examples.rows[part]], mapped)
        found, wanted = softmax(scores / temperature, examples.there[part]), examples.shares[part]
        ratio = np.where(wanted > 0, wanted / np.maximum(found, 1e-30), 1.0)
        total += float(np.sum(wanted * np.log(ratio)))
    return total / max(1, len(examples.queries))


def softmax(scores: Vectors, there: NDArray[np.bool_]) -> Vectors:
    """Give shares `(n, c)` that sum to 1 over those that are there."""
    raised = np.where(there, scores, -np.inf)
    powers = np.exp(raised - raised.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True), dtype=np.float32)


def spread(scores: Vectors, there: NDArray[np.bool_]) -> float:
    """Give the mean over queries of the standard deviation of their candidates' scores `(n, c)`."""
    found = [float(row[kept].std()) for row, kept in zip(scores, there, strict=True) if kept.sum() > 1]
    return float(np.mean(found)) if found else 0.0
