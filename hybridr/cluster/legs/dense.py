"""The dense leg: how an index keeps vectors, what that costs, and how they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import ClusterError, SettingsError
from ..connection import Cluster
from ..record import PASSAGE_VECTOR, Record
from ..settings import VectorSettings
from . import Leg

Version = tuple[int, int, int]
LARGEST_BYTE = 127
BYTES_PER_NEIGHBOUR = 8  # 2 m links of 4 bytes each
OVERHEAD = 1.1
# A value's JSON in the stored source, compressed: measured on 2.19.1 and 3.6.0 with vectors of length 1.
TEXT_BYTES = {"byte": 2}
FLOAT_TEXT_BYTES = 9
DERIVED_SOURCE: Version = (3, 0, 0)  # from here on only the copy for recovery holds vectors as text
SQ_NAMES_BITS: Version = (3, 6, 0)  # from here on the encoder `sq` must be told its bits
ESTIMATE = "1.1 x (bytes of a vector + 8 m) each, the estimate of OpenSearch's documentation (HNSW memory)"


@dataclass(frozen=True)
class Form:
    """One way to keep vectors, by OpenSearch's own names.

    `bits` of a value are what a search has to have in memory, `disk_bits` what lies on disk, where engines
    keep the floats beside a compressed copy. `native` needs libraries that an embedded node lacks.
    """

    vectors: str
    compression: str | None
    engine: str
    bits: int
    disk_bits: int
    since: Version
    native: bool

    def __str__(self) -> str:
        """Name the form as the options of `hybridr reindex` do."""
        level = f" --compression {self.compression}" if self.compression else ""
        return f"--engine {self.engine} --vectors {self.vectors}{level}"


# The default level of on_disk stands first. faiss keeps its own copy beside Lucene's floats.
FORMS = (
    Form("float", None, "lucene", 32, 32, (0, 0, 0), False),
    Form("byte", None, "lucene", 8, 8, (2, 9, 0), False),
    Form("sq", None, "lucene", 8, 40, (2, 16, 0), False),
    Form("on_disk", "4x", "lucene", 8, 40, (2, 17, 0), False),
    Form("on_disk", "32x", "lucene", 1, 33, (3, 6, 0), True),
    Form("float", None, "faiss", 32, 64, (0, 0, 0), True),
    Form("sq", None, "faiss", 16, 48, (2, 13, 0), True),
    Form("on_disk", "32x", "faiss", 1, 33, (2, 17, 0), True),
    Form("on_disk", "16x", "faiss", 2, 34, (2, 17, 0), True),
    Form("on_disk", "8x", "faiss", 4, 36, (2, 17, 0), True),
    Form("on_disk", "2x", "faiss", 16, 48, (2, 17, 0), True),
    Form("on_disk", "1x", "faiss", 32, 64, (3, 1, 0), True),
)
SPACES = {"cosine": "cosinesimil", "ip": "innerproduct"}
MAX_NEIGHBOURS = 10_000  # the largest k that OpenSearch takes


@dataclass(frozen=True)
class Cost:
    """What a form takes: bytes of one vector in memory, then bytes of all vectors and their graph per copy.

    `memory_bytes` is an estimate, see `ESTIMATE`; `disk_bytes` has the vectors as JSON text too, which the
    engine keeps for recovery (until merges drop it) and, before 3.0, in `_source`.
    """

    engine: str
    vectors: str
    compression: str | None
    chosen: bool
    bytes_per_vector: int
    memory_bytes: int
    disk_bytes: int


def form_of(settings: VectorSettings) -> Form:
    """Find the form that the settings name. Raises SettingsError where their engine has none."""
    if settings.compression and settings.vectors != "on_disk":
        raise SettingsError(
            f"--compression is a level of on_disk, not of {settings.vectors}", hint="--vectors on_disk"
        )
    named = [f for f in FORMS if f.engine == settings.engine and f.vectors == settings.vectors]
    found = [f for f in named if settings.compression in (None, f.compression)]
    if not found:
        wanted = f"{settings.vectors} {settings.compression or ''}".strip()
        raise SettingsError(f"--engine {settings.engine} has no {wanted} vectors", hint=offered(settings))
    return found[0]


def offered(settings: VectorSettings) -> str:
    """Say what there is instead: other levels of the engine, or engines that have this form."""
    near = [f for f in FORMS if f.vectors == settings.vectors]
    return " or ".join(str(f) for f in near if settings.compression in (None, f.compression)) or str(near[0])


def is_bare(cluster: Cluster) -> bool:
    """Tell whether a native engine would kill a node: an embedded one that nobody gave the libraries."""
    told = any(node.get("attributes", {}).get("hybridr_faiss") == "true" for node in cluster.nodes)
    return cluster.is_embedded() and not told


def obstacle(form: Form, similarity: str, version: Version, *, bare: bool) -> str | None:
    """Say why an index of this cluster cannot keep vectors this way; None where it can."""
    if version < form.since:
        needed, found = (".".join(map(str, number)) for number in (form.since, version))
        return f"{form} needs OpenSearch {needed}, this is {found}"
    if form.native and bare:
        return f"{form} would kill this embedded node: its k-NN plugin has no native library"
    if form.vectors == "byte" and similarity != "cosine":
        return "--vectors byte keeps directions, not lengths: this encoder compares by inner product"
    return None


def require_form(form: Form, similarity: str, version: Version, *, bare: bool) -> None:
    """Raise ClusterError, with what would work, where `obstacle` finds one."""
    reason = obstacle(form, similarity, version, bare=bare)
    if reason is None:
        return
    free = [f for f in FORMS if obstacle(f, similarity, version, bare=bare) is None]
    same = [f for f in free if f.vectors == form.vectors] or [f for f in free if f.bits < 32] or free
    default = " (the default)" if same[0] == FORMS[0] else ""
    raise ClusterError(reason, hint=f"{same[0]}{default}")


def field_options(form: Form) -> dict[str, Any]:
    """Give what the mapping of the field says beside type, dimension and method."""
    if form.vectors == "on_disk":
        return {"mode": "on_disk", "compression_level": form.compression}
    return {"data_type": "byte"} if form.vectors == "byte" else {}


def method_parameters(form: Form, version: Version) -> dict[str, Any]:
    """Give what the method's parameters say beside those of the graph."""
    if form.vectors != "sq":
        return {}
    if form.engine == "lucene":
        # The default interval cuts off what matters: cranfield's top ten agree to .91 then, to .99 with all.
        return {"encoder": {"name": "sq", "parameters": {"bits": 7, "confidence_interval": 1.0}}}
    wide = {"bits": 16} if version >= SQ_NAMES_BITS else {"type": "fp16"}
    return {"encoder": {"name": "sq", "parameters": wide}}


def cost_of(form: Form, count: int, dim: int, m: int, version: Version, *, chosen: bool = False) -> Cost:
    """Estimate what `count` vectors and their graph take; the source of it is `ESTIMATE`."""
    size, links = -(-dim * form.bits // 8), BYTES_PER_NEIGHBOUR * m
    text = dim * TEXT_BYTES.get(form.vectors, FLOAT_TEXT_BYTES) * (1 if version >= DERIVED_SOURCE else 2)
    on_disk = -(-dim * form.disk_bits // 8) + links + text
    memory = round(count * OVERHEAD * (size + links))
    return Cost(form.engine, form.vectors, form.compression, chosen, size, memory, count * on_disk)


@dataclass(frozen=True)
class DenseLeg(Leg):
    """The vectors of one field, asked by a query vector `(dim,)` as the index keeps it (`as_kept`).

    With `most_passages` a document has up to that many vectors, and the best one counts; `exact` compares
    every document's instead of walking the graph.
    """

    settings: VectorSettings
    dim: int
    similarity: str
    most_passages: int | None = None
    exact: bool = False
    name = "dense"
    help = "by its vector"
    reads = "vector"
    part = "cosine"
    unseen = 0.5

    @classmethod
    def of(cls, record: Record, fields: Sequence[str]) -> DenseLeg:
        """Search the vectors that an index's record tells of, whichever fields they were made of."""
        named = {"vector_field": record.vector_field, "engine": record.engine}
        kept = VectorSettings(**named, vectors=record.vectors, compression=record.compression)
        most = record.passages.most if record.passages else None
        return cls(kept, record.dim, record.similarity, most)

    @classmethod
    def obstacle(cls, record: Record) -> str | None:
        """Say that there are no vectors."""
        return None if record.vector_field else "the index has no vectors"

    @classmethod
    def unscaled(cls, record: Record) -> str | None:
        """Say that a document has no one cosine."""
        if record.passages is not None:
            return "its documents have several vectors (--passages)"
        return "its encoder compares by inner product" if record.similarity != "cosine" else None

    @property
    def field(self) -> str:
        """Name the field."""
        return self.settings.vector_field

    def mapping(self, version: Version) -> dict[str, Any]:
        """Map the field of the vectors."""
        vector = vector_mapping(self.dim, self.similarity, self.settings, version)
        return {self.field: vector if self.most_passages is None else passages_mapping(vector)}

    def value(self, encoded: np.ndarray, spans: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
        """Give the field a vector `(dim,)`, or one `(n, dim)` for each passage."""
        return {self.field: vector_value(encoded, spans)}

    def query(
        self,
        asked: np.ndarray,
        k: int,
        *,
        filter: dict[str, Any] | None = None,
        shown: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        """Find the nearest `k`; where they are `shown`, with the best passage of each."""
        vector, name = as_numbers(asked), self.name if shown else None
        if self.exact:
            return exact_query(vector, self.field, self.similarity, name, filter)
        passages = self.most_passages is not None
        query = dense_query(vector, self.field, k, name, passages=passages, filter=filter, boost=boost)
        return with_passages(query) if passages and shown else query

    def scores_of(
        self, asked: np.ndarray, doc_ids: Sequence[str], *, passages: bool = False
    ) -> dict[str, Any]:
        """Score exactly these documents; with `passages` tell the best one of each too."""
        most = self.most_passages
        return dense_scores_query(
            as_numbers(asked), self.field, doc_ids, most_passages=most, inner_hits=passages
        )

    def true_scores(self, asked: np.ndarray, weight: float = 1.0, *, shown: bool = False) -> dict[str, Any]:
        """Compare the query vector with that of each document by a script."""
        return cosine_query(as_numbers(asked), self.field, weight, self.name if shown else None)

    @classmethod
    def scale(cls, idf_sum: float, spread: float) -> float:
        """Make 1 + cosine of an engine's score, spread as those of the packaged encoder."""
        return 2 * spread


def cosine_query(
    vector: Sequence[float], field: str, weight: float = 1.0, name: str | None = None
) -> dict[str, Any]:
    """Score documents by the exact cosine, as an engine does 0 to 1 and .5 without a vector, times a weight.

    Some other index that a client searches along with this one may not have the field.
    """
    unseen = f"!doc.containsKey('{field}') || doc['{field}'].size() == 0"
    script = {
        "source": (
            f"params.dense * ({unseen} ? {DenseLeg.unseen} : "
            f"(1.0 + cosineSimilarity(params.vector, doc['{field}'])) / 2.0)"
        ),
        "params": {"dense": weight, "vector": list(vector)},
    }
    named = {"_name": name} if name else {}
    return {"script_score": {"query": {"match_all": {"boost": 0.0}}, "script": script, **named}}


def as_numbers(vector: np.ndarray) -> list[float]:
    """Give a vector `(dim,)` as a request holds it: to 8 decimals, half the bytes that float32 would take."""
    if np.issubdtype(vector.dtype, np.integer):
        return vector.tolist()  # type: ignore[no-any-return]
    return np.round(vector.astype(np.float64), 8).tolist()  # type: ignore[no-any-return]


def as_kept(vectors: np.ndarray, kept: str) -> np.ndarray:
    """Give vectors `(n, dim)` the values that are sent: int8 for `byte`, else as they are.

    The largest value of each vector becomes 127 or -127. Cosine does not see lengths, so the score remains
    (1 + cosine) / 2; a fixed factor of 127 would leave most values of a unit vector a few steps only.
    """
    if kept != "byte":
        return vectors
    largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)  # (n, 1)
    scaled = vectors * (LARGEST_BYTE / np.where(largest > 0, largest, 1.0))
    return np.rint(scaled).astype(np.int8)


def vector_mapping(
    dim: int, similarity: str, settings: VectorSettings, version: tuple[int, int, int]
) -> dict[str, Any]:
    """Map the k-NN field; the engine is always named, since the server's default is not safe everywhere."""
    form = form_of(settings)
    graph = {"m": settings.m, "ef_construction": settings.ef_construction}
    return {
        "type": "knn_vector",
        "dimension": dim,
        **field_options(form),
        "method": {
            "name": "hnsw",
            "engine": settings.engine,
            "space_type": SPACES[similarity],
            "parameters": {**graph, **method_parameters(form, version)},
        },
    }


def passages_mapping(vector: dict[str, Any]) -> dict[str, Any]:
    """Map a field of many vectors a document; where each passage stands is only read, never searched."""
    offset = {"type": "integer", "index": False, "doc_values": False}
    properties = {PASSAGE_VECTOR: vector, "start": offset, "end": offset}
    return {"type": "nested", "dynamic": "false", "properties": properties}


def vector_value(vector: np.ndarray, spans: Sequence[tuple[int, int]]) -> Any:
    """Give what the vector field of a document holds: its vector `(dim,)`, or one `(n, dim)` per span."""
    if not spans:
        return vector
    return [
        {PASSAGE_VECTOR: row, "start": start, "end": end}
        for row, (start, end) in zip(vector, spans, strict=True)
    ]


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
    """Find the k documents nearest to a query vector in each shard, by their best passage with `passages`.

    `filter` is what documents must match, `boost` multiplies the scores.
    """
    named = {key: value for key, value in {"_name": name, "boost": boost}.items() if value is not None}
    # A walk of the graph as wide as k alone missed the nearest of all on an open collection.
    wide = {"ef_search": min(2 * k, MAX_NEIGHBOURS)}
    query: dict[str, Any] = {"vector": list(vector), "k": k, "method_parameters": wide}
    # Who searches several indices at once loses no hit of one without vectors.
    alone: dict[str, Any] = {"ignore_unmapped": True}
    if filter is not None:
        query["filter"] = filter
    if not passages:
        return {"knn": {field: {**query, **alone, **named}}}
    near = {"knn": {f"{field}.{PASSAGE_VECTOR}": query}}
    return {"nested": {"path": field, "query": near, "score_mode": "max", **alone, **named}}


def with_passages(query: dict[str, Any], name: str = "passages") -> dict[str, Any]:
    """Have a query of passages tell the best one of each document, as inner hits of this name."""
    nested = query["nested"]
    places = [f"{nested['path']}.{end}" for end in ("start", "end")]
    return {"nested": {**nested, "inner_hits": {"name": name, "size": 1, "_source": places}}}


def dense_scores_query(
    vector: Sequence[float],
    field: str,
    doc_ids: Sequence[str],
    *,
    most_passages: int | None = None,
    inner_hits: bool = False,
) -> dict[str, Any]:
    """Score exactly these documents, each by its best of at most `most_passages` (None: by its one vector).

    The engine compares every vector instead of walking its graph when k covers all that pass the filter.
    """
    each = most_passages or 1
    many = max(1, MAX_NEIGHBOURS // each)
    groups = [doc_ids[start : start + many] for start in range(0, max(1, len(doc_ids)), many)]
    queries = [
        dense_query(
            vector,
            field,
            max(1, len(group) * each),
            passages=most_passages is not None,
            filter={"ids": {"values": list(group)}},
        )
        for group in groups
    ]
    if inner_hits:  # two of one name are refused
        queries = [with_passages(query, f"passages {number}") for number, query in enumerate(queries)]
    return queries[0] if len(queries) == 1 else {"bool": {"should": queries}}


def exact_query(
    vector: Sequence[float],
    field: str,
    similarity: str,
    name: str | None = None,
    filter: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Compare a query vector with every document's vector instead of walking a graph."""
    params = {"field": field, "query_value": list(vector), "space_type": SPACES[similarity]}
    there: list[dict[str, Any]] = [{"exists": {"field": field}}, *([filter] if filter is not None else [])]
    script = {"lang": "knn", "source": "knn_score", "params": params}
    named = {"_name": name} if name else {}
    return {"script_score": {"query": {"bool": {"filter": there}}, "script": script, **named}}
