"""Measures the recall of the vector graph: the share of the true nearest vectors that an approximate search
finds.

Probed with vectors of sampled documents, and with queries, which lie elsewhere in the space and are harder.
Exact search compares the floats that the index stores, so that what a compressed form loses counts too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..cluster.connection import Cluster
from ..cluster.destinations import check_fingerprint, resolve_complete
from ..cluster.reading import sample_documents, text_of
from ..cluster.record import IndexInfo
from ..cluster.retrievers.dense import SPACES, as_kept, as_numbers, dense_query
from ..encoders.contract import Encoder
from ..errors import ClusterError, DataError, SettingsError
from ..evaluation.label_free import draw_probes
from ..evaluation.significance import SEED, interval
from ..records import Document, Progress, silent
from ..search.hits import checked_hits
from ..search.scripts import scripts_refused

KS = (10, 100)
NEIGHBOURS = 100  # candidates of a search, unless it says otherwise
USUAL = 2 * NEIGHBOURS  # how wide a search walks then
WIDTHS = (NEIGHBOURS, USUAL, 2 * USUAL, 5 * USUAL)
OVERSAMPLED = (2.0, 5.0)
COMPRESSED = ("on_disk", "sq")
ENOUGH = 0.95
TIES = 20  # more than k that exact search is asked for: documents of one score are worth the same
SAME = 1e-6
REPORTED = 20
AskedVector: TypeAlias = tuple[str, NDArray[Any]]
"""The id of a document, empty of a query, and the vector `(dim,)`."""


class Walk(NamedTuple):
    """A way to search the graph: how wide it is walked (`ef_search`), and how many times k candidates are
    rescored exactly.
    """

    width: int
    oversample: float | None = None

    @property
    def name(self) -> str:
        """Return the walk as a request for k neighbours spells it."""
        again = f", oversample_factor {self.oversample:g}" if self.oversample else ""
        return f"ef_search {self.width}{again}"


class WalkShare(NamedTuple):
    """The mean share of the true `k` nearest that a walk found for the `asked` vectors, with its 95 %
    interval.
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
    """The measured shares of an index, by kind of probe, walk and k; `advice` says what would help, if
    needed.
    """

    index: str
    documents: int
    shares: list[WalkShare]
    usual: str
    advice: str

    @property
    def ok(self) -> bool:
        """Return whether no usual search is significantly below ENOUGH of the ten nearest."""
        return all(
            share.high >= ENOUGH for share in self.shares if (share.walk, share.k) == (self.usual, KS[0])
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
    index without complete vectors or with too few, SettingsError for one with several vectors a document,
    FingerprintMismatch for another encoder, ClusterError if the cluster runs no scripts.
    """
    info = resolve_complete(cluster, name, whole=False)
    if info.record.passages is not None:
        raise SettingsError("recall is measured with one vector a document: this index has passages")
    if reason := scripts_refused(cluster, info.name):
        raise ClusterError(f"exact search is a script: {reason}", hint="allow them while this is measured")
    check_fingerprint(encoder.fingerprint, info)
    drawn = sample_documents(cluster, info, sample, seed=SEED, progress=progress)
    documents = cluster.count(info)
    held = ((document.doc_id, document.source.get(info.record.vector_field)) for document in drawn)
    own: list[AskedVector] = [
        (doc_id, as_kept(np.array([vector], dtype=np.float32), info.record.vectors)[0])
        for doc_id, vector in held
        if vector
    ]
    if len(own) < 2 or documents <= KS[0] + 1:
        raise DataError(f"'{name}' has {documents} documents, {len(own)} of {len(drawn)} with a vector")
    queries = list(texts)
    if not texts:
        bodies = [
            Document(document.doc_id, text_of(document.source, info.record.fields)) for document in drawn
        ]
        queries = [probe.text for probe in draw_probes(bodies, len(bodies), SEED)]
    if not queries:
        raise DataError("the sampled documents give no queries", hint="--queries FILE, one a line")
    read = as_kept(encoder.encode_queries(queries), info.record.vectors)
    probes = {"documents": own, "queries": [("", vector) for vector in read]}
    shares: list[WalkShare] = []
    for what, vectors in probes.items():
        shares += walk_shares(cluster, info, what, vectors, progress)
    return Recall(info.name, documents, shares, Walk(USUAL).name, walk_advice(info, shares))


def walk_shares(
    cluster: Cluster, info: IndexInfo, what: str, probes: Sequence[AskedVector], progress: Progress
) -> Iterator[WalkShare]:
    """Yield the shares of every walk compared with exact search; one neighbour more is requested, because a
    document finds itself.
    """
    field = info.record.vector_field

    def exactly(vector: NDArray[Any]) -> dict[str, Any]:
        """Return the search body that compares a vector with all vectors."""
        space = SPACES[info.record.similarity]
        params = {"field": field, "query_value": as_numbers(vector), "space_type": space}
        script = {"lang": "knn", "source": "knn_score", "params": params}
        there = {"bool": {"filter": [{"exists": {"field": field}}]}}
        # More than needed, so that all of the score of the last are seen.
        return {"size": max(KS) + 1 + TIES, "query": {"script_score": {"query": there, "script": script}}}

    def walking(walk: Walk, vector: NDArray[Any]) -> dict[str, Any]:
        """Return the search body that walks the graph as widely as `walk` says."""
        query = dense_query(as_numbers(vector), field, NEIGHBOURS + 1)
        inner = query["knn"][field]
        inner["method_parameters"] = {"ef_search": max(walk.width, NEIGHBOURS + 1)}
        if walk.oversample:
            inner["rescore"] = {"oversample_factor": walk.oversample}
        return {"size": NEIGHBOURS + 1, "query": query}

    exact, _ = neighbours_of(cluster, info, probes, exactly, progress, f"{what}: exact")
    for walk in walks(info):
        body, named = partial(walking, walk), f"{what}: {walk.name}"
        neighbours, took = neighbours_of(cluster, info, probes, body, progress, named)
        for k in (k for k in KS if all(len(exact_hits) >= k for exact_hits in exact)):
            values = np.array(
                [[overlap(true, hits, k)] for true, hits in zip(exact, neighbours, strict=True)]
            )
            low, high = interval(values)
            bounds = float(low[0]), float(high[0])
            yield WalkShare(what, walk.name, k, float(values.mean()), *bounds, len(values), round(took, 1))


def walks(info: IndexInfo) -> list[Walk]:
    """Return the walks to try, the cheapest first."""
    again = [Walk(USUAL, factor) for factor in OVERSAMPLED] if info.record.vectors in COMPRESSED else []
    return [*map(Walk, WIDTHS), *again]


def neighbours_of(
    cluster: Cluster,
    info: IndexInfo,
    probes: Sequence[AskedVector],
    body: Callable[[NDArray[Any]], dict[str, Any]],
    progress: Progress,
    what: str,
) -> tuple[list[Mapping[str, float]], float]:
    """Search for each vector; return the scores of its neighbours without itself, and the mean time in ms."""
    neighbours: list[Mapping[str, float]] = []
    took = 0.0
    for number, (own, vector) in enumerate(probes):
        if number % REPORTED == 0:
            progress(what, number, len(probes))
        answer = cluster.search(info, body(vector) | {"_source": False})
        with cluster.understood("_search"):
            took += answer["took"]
        neighbours.append({hit["_id"]: hit["_score"] for hit in checked_hits(answer) if hit["_id"] != own})
    progress(what, len(probes), len(probes))
    return neighbours, took / len(probes)


def overlap(exact: Mapping[str, float], walked: Iterable[str], k: int) -> float:
    """Return the share of the true `k` nearest among the first `k` walked, 0 to 1.

    Documents as near as the last of the true ones count too.
    """
    last = list(exact.values())[k - 1]
    true = {doc for doc, score in exact.items() if score >= last - SAME}
    return min(1.0, len(true.intersection(islice(walked, k))) / k)


def walk_advice(info: IndexInfo, shares: Sequence[WalkShare]) -> str:
    """Return what would find more neighbours, judged by the worse kind of probes; empty if enough are
    found.
    """
    means = {
        walk.name: min(share.mean for share in shares if (share.walk, share.k) == (walk.name, KS[0]))
        for walk in walks(info)
    }
    if means[Walk(USUAL).name] >= ENOUGH:
        return ""
    source = info.record.source
    enough = next((walk for walk in walks(info) if means[walk.name] >= ENOUGH), None)
    if enough and enough.oversample:
        return f"{enough.name} in `knn` queries of your own; hybridr reindex {source} --vectors float for all"
    if enough:
        return f"--depth {enough.width // 2} for hybridr's searches, ef_search {enough.width} in your own"
    if info.record.vectors != "float":
        return f"{info.record.vectors} vectors lose them: hybridr reindex {source} --vectors float"
    return f"no walk finds them: [reindex] m and ef_construction make a graph of more links: reindex {source}"
