"""The dense retriever: the vector field's mapping, and the queries that find or score documents by vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import ModelError
from ..dialects import Version
from ..record import PASSAGE_VECTOR, Record
from ..settings import VectorSettings
from ..vector_forms import form_of
from . import Retriever

MAX_BYTE = 127
SQ_NAMES_BITS: Version = (3, 6, 0)  # since then the mapping of the encoder `sq` must name its bits


SPACES = {"cosine": "cosinesimil", "ip": "innerproduct"}
MAX_NEIGHBOURS = 10_000  # the largest k that OpenSearch takes


@dataclass(frozen=True)
class DenseRetriever(Retriever):
    """Finds documents by the vectors of one field; the query vector `(dim,)` is in the form of
    `to_stored_values`.

    With `most_passages` a document has up to that many passage vectors, and the best one counts. `only` names
    the documents to score if the cluster runs no scripts.
    """

    settings: VectorSettings
    dim: int
    similarity: str
    most_passages: int | None = None
    only: tuple[str, ...] | None = None
    name = "dense"
    help = "by its vector"
    reads = "vector"
    part = "cosine"
    unseen = 0.5

    @classmethod
    def of(cls, record: Record, fields: Sequence[str]) -> DenseRetriever:
        """Return the retriever for the vectors that an index's record describes; `fields` is ignored."""
        options = {"vector_field": record.vector_field, "engine": record.engine}
        settings = VectorSettings(**options, vectors=record.vectors, compression=record.compression)
        limit = record.passages.most if record.passages else None
        return cls(settings, record.dim, record.similarity, limit)

    @classmethod
    def obstacle(cls, record: Record) -> str | None:
        """Return a message if the index has no vectors, else None."""
        return None if record.vector_field else "the index has no vectors"

    @property
    def field(self) -> str:
        """Return the name of the vector field."""
        return self.settings.vector_field

    def query(
        self,
        query_vector: np.ndarray,
        k: int,
        *,
        filter: dict[str, Any] | None = None,
        explain: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        """Return the query for the `k` nearest documents; with `explain` hits report their best passage."""
        vector, name = as_numbers(query_vector), self.name if explain else None
        passages = self.most_passages is not None
        query = dense_query(vector, self.field, k, name, passages=passages, filter=filter, boost=boost)
        return with_passages(query) if passages and explain else query

    def scoring_query(
        self, vector: np.ndarray, doc_ids: Sequence[str], *, passages: bool = False
    ) -> dict[str, Any]:
        """Return the query that scores exactly these documents; with `passages` hits report the best passage.

        If k covers all documents of the filter, the engine compares every vector and walks no graph.
        """
        vectors_each = self.most_passages or 1
        group_size = max(1, MAX_NEIGHBOURS // vectors_each)
        queries: list[dict[str, Any]] = []
        for start in range(0, max(1, len(doc_ids)), group_size):
            group = list(doc_ids[start : start + group_size])
            query = dense_query(
                as_numbers(vector),
                self.field,
                max(1, len(group) * vectors_each),
                passages=self.most_passages is not None,
                filter={"ids": {"values": group}},
            )
            # The cluster refuses inner hits with equal names.
            queries.append(with_passages(query, f"passages {len(queries)}") if passages else query)
        return queries[0] if len(queries) == 1 else {"bool": {"should": queries}}

    def scoring_clause(
        self, query_vector: np.ndarray, weight: float = 1.0, *, explain: bool = False
    ) -> dict[str, Any]:
        """Return the clause that scores every document by its vector (or best passage) times a weight.

        A script computes it unless `only` is set. A document without a vector gets .5 times the weight.
        """
        vector, name = as_numbers(query_vector), self.name if explain else None
        has_vector: dict[str, Any] = {"exists": {"field": self.field}}
        if self.most_passages is not None:
            has_vector = {"nested": {"path": self.field, "ignore_unmapped": True, "query": {"match_all": {}}}}
        if self.only is not None:
            query: dict[str, Any] = {"must": [self.scoring_query(query_vector, self.only)], "boost": weight}
            query, name = {"bool": query}, None
        elif self.most_passages is None:
            return exact_scores(vector, self.field, self.similarity, weight, name)
        else:
            exact = exact_scores(vector, f"{self.field}.{PASSAGE_VECTOR}", self.similarity, weight)
            nested = {"path": self.field, "ignore_unmapped": True, "query": exact, "score_mode": "max"}
            query = with_passages({"nested": nested}) if explain else {"nested": nested}
        unseen = {"filter": {"bool": {"must_not": has_vector}}, "boost": weight * self.unseen}
        extras = {"_name": name} if name else {}
        return {"bool": {"should": [query, {"constant_score": unseen}], **extras}}

    def among(self, doc_ids: Sequence[str]) -> DenseRetriever:
        """Return a retriever that scores only these documents and needs no script."""
        return replace(self, only=tuple(doc_ids))

    @classmethod
    def scale(cls, idf_sum: float, spread: float) -> float:
        """Return the factor from an engine's score to 1 + cosine, adjusted to the encoder's spread."""
        return 2 * spread


def engine_scores(similarity: str, near: np.ndarray) -> np.ndarray:
    """Return the engine's scores for cosines or inner products `near`: always above 0.

    (1 + cosine) / 2, or for inner products 1 / (1 - near) below 0 and 1 + near from 0.
    """
    if similarity == "cosine":
        return (1 + near) / 2
    return np.where(near < 0, 1 / (1 - np.minimum(near, 0)), 1 + near)


ENGINE_SCORES = {
    "cosine": ("", "(1.0 + cosineSimilarity(params.vector, {})) / 2.0"),
    "ip": (
        "double engine(double near) { return near < 0 ? 1 / (1 - near) : 1 + near; } return ",
        "engine(innerProduct(params.vector, {}))",
    ),
}
"""`engine_scores` as parts of a script: its beginning, and the score of a document's vector."""


def exact_scores(
    vector: Sequence[float], field: str, similarity: str, weight: float, name: str | None = None
) -> dict[str, Any]:
    """Return the script query that scores documents by vector as the engine would, times a weight.

    A document without a vector gets .5; the script also works in indices that lack the field.
    """
    unseen = f"!doc.containsKey('{field}') || doc['{field}'].size() == 0"
    beginning, near = ENGINE_SCORES[similarity]
    formula = near.format(f"doc['{field}']")
    script = {
        "source": f"{beginning}params.dense * ({unseen} ? {DenseRetriever.unseen} : {formula})",
        "params": {"dense": weight, "vector": list(vector)},
    }
    query = {"match_all": {"boost": 0.0}}
    return {"script_score": {"query": query, "script": script, **({"_name": name} if name else {})}}


def as_numbers(vector: np.ndarray) -> list[float]:
    """Return a vector `(dim,)` as a list for JSON, rounded to 8 decimals."""
    if np.issubdtype(vector.dtype, np.integer):
        return vector.tolist()  # type: ignore[no-any-return]
    return np.round(vector.astype(np.float64), 8).tolist()  # type: ignore[no-any-return]


def to_stored_values(vectors: np.ndarray, source: str) -> np.ndarray:
    """Return vectors `(n, dim)` in the values that are stored: int8 if `source` is "byte", else unchanged.

    Each vector is scaled so that its largest value becomes 127 or -127. Cosine ignores lengths, so the score
    stays (1 + cosine) / 2. With a fixed factor most values of a unit vector would take only a few steps.
    Raises ModelError for NaN or infinity.
    """
    if not np.isfinite(vectors).all():
        raise ModelError("the encoder gives NaN or infinity", hint="export it again")
    if source != "byte":
        return vectors
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)  # (n, 1)
    scaled = vectors * (MAX_BYTE / np.where(largest > 0, largest, 1.0))
    return np.rint(scaled).astype(np.int8)


def vector_mapping(
    dim: int, similarity: str, settings: VectorSettings, version: tuple[int, int, int]
) -> dict[str, Any]:
    """Return the mapping of a k-NN field. It names the engine, since not every server's default is safe."""
    form = form_of(settings)
    parameters: dict[str, Any] = {"m": settings.m, "ef_construction": settings.ef_construction}
    options: dict[str, Any] = {}
    if form.vectors == "on_disk":
        options = {"mode": "on_disk", "compression_level": form.compression}
    elif form.vectors == "byte":
        options = {"data_type": "byte"}
    elif form.vectors == "sq":
        # The default confidence interval loses precision: cranfield's top ten agree to .91, with 1.0 to .99.
        quantised: dict[str, Any] = {"bits": 7, "confidence_interval": 1.0}
        if form.engine == "faiss":
            quantised = {"bits": 16} if version >= SQ_NAMES_BITS else {"type": "fp16"}
        parameters["encoder"] = {"name": "sq", "parameters": quantised}
    method = {"name": "hnsw", "engine": settings.engine, "space_type": SPACES[similarity]}
    return {"type": "knn_vector", "dimension": dim, **options, "method": {**method, "parameters": parameters}}


def dense_query(
    vector: Sequence[float],
    field: str,
    k: int,
    name: str | None = None,
    *,
    passages: bool = False,
    filter: dict[str, Any] | None = None,
    boost: float | None = None,
) -> dict[str, Any]:
    """Return the query for the `k` nearest documents of each shard; with `passages` by their best passage.

    `name` makes hits report the query. Documents must match `filter`. `boost` multiplies the scores.
    """
    extras = {key: value for key, value in {"_name": name, "boost": boost}.items() if value is not None}
    # With ef_search = k the walk of the graph missed the nearest document of an open collection.
    width = {"ef_search": min(2 * k, MAX_NEIGHBOURS)}
    query: dict[str, Any] = {"vector": list(vector), "k": k, "method_parameters": width}
    # A search of several indices keeps the hits of those without vectors.
    unmapped: dict[str, Any] = {"ignore_unmapped": True}
    if filter is not None:
        query["filter"] = filter
    if not passages:
        return {"knn": {field: {**query, **unmapped, **extras}}}
    near = {"knn": {f"{field}.{PASSAGE_VECTOR}": query}}
    return {"nested": {"path": field, "query": near, "score_mode": "max", **unmapped, **extras}}


def with_passages(query: dict[str, Any], name: str = "passages") -> dict[str, Any]:
    """Return the nested query of passages with inner hits of this name, which report the best passage."""
    nested = query["nested"]
    places = [f"{nested['path']}.{end}" for end in ("start", "end")]
    return {"nested": {**nested, "inner_hits": {"name": name, "size": 1, "_source": places}}}
