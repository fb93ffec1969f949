"""Measures the recall of the vector graph: the share of the true nearest vectors that an approximate search
finds.

The probes are vectors of sampled documents, and queries, which lie elsewhere in the space and are harder.
Exact search compares the stored floats, so that the loss by a compressed form counts too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from shlex import quote
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..cluster.aliases import resolve_complete
from ..cluster.connection import Cluster
from ..cluster.destinations import check_fingerprint
from ..cluster.field_values import text_of
from ..cluster.reading import sample_documents
from ..cluster.record import IndexInfo
from ..cluster.retrievers.dense import SPACES, as_numbers, dense_query, to_stored_values
from ..encoders.contract import Encoder
from ..errors import ClusterError, DataError, SettingsError
from ..evaluation.label_free import draw_probes
from ..evaluation.significance import SEED, interval
from ..records import Document, Progress, silent
from ..search.hits import checked_hits
from ..search.scripts import scripts_refused

CUTOFFS = (10, 100)
NEIGHBOURS = 100  # default number of candidates of a search
DEFAULT_WIDTH = 2 * NEIGHBOURS  # its `ef_search`
WIDTHS = (NEIGHBOURS, DEFAULT_WIDTH, 2 * DEFAULT_WIDTH, 5 * DEFAULT_WIDTH)
OVERSAMPLE_FACTORS = (2.0, 5.0)
COMPRESSED = ("on_disk", "sq")
MIN_RECALL = 0.95
# Further hits of exact search: a document with the same score as the last of them counts as nearest too.
SPARE_FOR_TIES = 20
SCORE_TOLERANCE = 1e-6
PROGRESS_EVERY = 20
AskedVector: TypeAlias = tuple[str, NDArray[Any]]
"""The id of a document, "" for a query, and the vector `(dim,)`."""


class Walk(NamedTuple):
    """A way to search the graph: its `width` is `ef_search`; `oversample` times k candidates are rescored
    exactly, None: none are.
    """

    width: int
    oversample: float | None = None

    @property
    def name(self) -> str:
        """Return the walk in the parameters of a `knn` query."""
        rescoring = f", oversample_factor {self.oversample:g}" if self.oversample else ""
        return f"ef_search {self.width}{rescoring}"


class WalkShare(NamedTuple):
    """The mean share of the true `k` nearest that a walk found, with its 95 % interval.

    `asked` is the kind of probe, "documents" or "queries"; `took_ms` is the mean time of a search.
    """

    asked: str
    walk: str
    k: int
    mean: float
    low: float
    high: float
    vectors: int
    took_ms: float


@dataclass(frozen=True)
class Recall:
    """The measured shares of an index, by kind of probe, walk and k.

    `usual` names the default walk. `advice` names a setting that finds more, "" if the recall is enough.
    """

    index: str
    documents: int
    shares: list[WalkShare]
    usual: str
    advice: str

    @property
    def ok(self) -> bool:
        """Return whether the default walk is not significantly below MIN_RECALL for the ten nearest."""
        return all(
            share.high >= MIN_RECALL
            for share in self.shares
            if (share.walk, share.k) == (self.usual, CUTOFFS[0])
        )


def measure_recall(
    cluster: Cluster,
    name: str,
    encoder: Encoder,
    *,
    texts: Sequence[str] = (),
    sample: int = 64,
    progress: Progress = silent,
) -> Recall:
    """Compare walks of the graph of `name` with exact search, for `sample` documents and as many queries.

    The queries are `texts`, or made from documents: titles, sentences and keywords. Raises DataError for an
    index without complete vectors or with too few, and if no queries can be made; SettingsError for one with
    several vectors per document, FingerprintMismatch for another encoder, ClusterError if scripts are
    refused.
    """
    info = resolve_complete(cluster, name, whole_index=False)
    if info.record.passages is not None:
        raise SettingsError("recall is measured with one vector per document: this index has passages")
    if reason := scripts_refused(cluster, info.name):
        raise ClusterError(f"exact search is a script: {reason}", hint="allow them while this is measured")
    check_fingerprint(encoder.fingerprint, info)
    sampled = sample_documents(cluster, info, sample, seed=SEED, progress=progress)
    documents = cluster.count(info)
    stored = ((document.doc_id, document.source.get(info.record.vector_field)) for document in sampled)
    document_probes: list[AskedVector] = [
        (doc_id, to_stored_values(np.array([vector], dtype=np.float32), info.record.vectors)[0])
        for doc_id, vector in stored
        if vector
    ]
    if len(document_probes) < 2 or documents <= CUTOFFS[0] + 1:
        raise DataError(
            f"'{name}' has {documents} documents, {len(document_probes)} of {len(sampled)} with a vector: "
            f"recall needs {CUTOFFS[0] + 2} documents and 2 vectors"
        )
    queries = list(texts)
    if not texts:
        bodies = [
            Document(document.doc_id, text_of(document.source, info.record.fields)) for document in sampled
        ]
        queries = [probe.text for probe in draw_probes(bodies, len(bodies), SEED)]
    if not queries:
        raise DataError(
            "no queries can be made from the sampled documents", hint="--queries FILE, one query per line"
        )
    query_vectors = to_stored_values(encoder.encode_queries(queries), info.record.vectors)
    probes = {"documents": document_probes, "queries": [("", vector) for vector in query_vectors]}
    shares: list[WalkShare] = []
    for kind, vectors in probes.items():
        shares += walk_shares(cluster, info, kind, vectors, progress)
    return Recall(info.name, documents, shares, Walk(DEFAULT_WIDTH).name, walk_advice(info, shares))


def walk_shares(
    cluster: Cluster, info: IndexInfo, kind: str, probes: Sequence[AskedVector], progress: Progress
) -> Iterator[WalkShare]:
    """Yield the shares of every walk compared with exact search, for one kind of probe.

    One neighbour more is requested, because a document finds itself.
    """
    field = info.record.vector_field

    def exact_body(vector: NDArray[Any]) -> dict[str, Any]:
        """Return the search body that compares a vector with all vectors."""
        space = SPACES[info.record.similarity]
        params = {"field": field, "query_value": as_numbers(vector), "space_type": space}
        script = {"lang": "knn", "source": "knn_score", "params": params}
        with_vector = {"bool": {"filter": [{"exists": {"field": field}}]}}
        query = {"script_score": {"query": with_vector, "script": script}}
        return {"size": max(CUTOFFS) + 1 + SPARE_FOR_TIES, "query": query}

    def graph_body(walk: Walk, vector: NDArray[Any]) -> dict[str, Any]:
        """Return the search body that searches the graph with the parameters of `walk`."""
        query = dense_query(as_numbers(vector), field, NEIGHBOURS + 1)
        inner = query["knn"][field]
        inner["method_parameters"] = {"ef_search": max(walk.width, NEIGHBOURS + 1)}
        if walk.oversample:
            inner["rescore"] = {"oversample_factor": walk.oversample}
        return {"size": NEIGHBOURS + 1, "query": query}

    exact, _ = nearest_scores(cluster, info, probes, exact_body, progress, f"{kind}: exact")
    for walk in walks(info):
        body, stage = partial(graph_body, walk), f"{kind}: {walk.name}"
        neighbours, mean_ms = nearest_scores(cluster, info, probes, body, progress, stage)
        for k in (k for k in CUTOFFS if all(len(exact_hits) >= k for exact_hits in exact)):
            values = np.array(
                [[found_share(nearest, hits, k)] for nearest, hits in zip(exact, neighbours, strict=True)]
            )
            low, high = interval(values)
            bounds = float(low[0]), float(high[0])
            yield WalkShare(kind, walk.name, k, float(values.mean()), *bounds, len(values), round(mean_ms, 1))


def walks(info: IndexInfo) -> list[Walk]:
    """Return the walks to try, the cheapest first."""
    is_compressed = info.record.vectors in COMPRESSED
    oversampled = [Walk(DEFAULT_WIDTH, factor) for factor in OVERSAMPLE_FACTORS] if is_compressed else []
    return [*map(Walk, WIDTHS), *oversampled]


def nearest_scores(
    cluster: Cluster,
    info: IndexInfo,
    probes: Sequence[AskedVector],
    body: Callable[[NDArray[Any]], dict[str, Any]],
    progress: Progress,
    stage: str,
) -> tuple[list[Mapping[str, float]], float]:
    """Search for each vector; return the scores of its neighbours by id, without the probe's own document,
    and the mean time of a search in ms.
    """
    neighbours: list[Mapping[str, float]] = []
    took = 0.0
    for number, (own_id, vector) in enumerate(probes):
        if number % PROGRESS_EVERY == 0:
            progress(stage, number, len(probes))
        answer = cluster.search(info, body(vector) | {"_source": False})
        with cluster.reading_answer("_search"):
            took += answer["took"]
        neighbours.append({hit["_id"]: hit["_score"] for hit in checked_hits(answer) if hit["_id"] != own_id})
    progress(stage, len(probes), len(probes))
    return neighbours, took / len(probes)


def found_share(exact: Mapping[str, float], walked: Iterable[str], k: int) -> float:
    """Return the share of the true `k` nearest that the first `k` walked ids contain, 0 to 1.

    A document with the score of the k-th nearest counts as one of them. Both are sorted, best first.
    """
    lowest = list(exact.values())[k - 1]
    nearest = {doc_id for doc_id, score in exact.items() if score >= lowest - SCORE_TOLERANCE}
    return min(1.0, len(nearest.intersection(islice(walked, k))) / k)


def walk_advice(info: IndexInfo, shares: Sequence[WalkShare]) -> str:
    """Return the setting that finds enough neighbours for both kinds of probe; "" if the default does."""
    means = {
        walk.name: min(share.mean for share in shares if (share.walk, share.k) == (walk.name, CUTOFFS[0]))
        for walk in walks(info)
    }
    if means[Walk(DEFAULT_WIDTH).name] >= MIN_RECALL:
        return ""
    command = f"hybridr reindex {quote(info.record.source)}"
    cheapest = next((walk for walk in walks(info) if means[walk.name] >= MIN_RECALL), None)
    if cheapest and cheapest.oversample:
        return f"{cheapest.name} in your own `knn` queries; {command} --vectors float for all searches"
    if cheapest:
        return f"--depth {cheapest.width // 2} for hybridr's searches, ef_search {cheapest.width} in your own"
    if info.record.vectors != "float":
        return f"{info.record.vectors} vectors lose neighbours: {command} --vectors float"
    return f"no walk finds enough: raise m and ef_construction in [reindex] for more links, then {command}"
