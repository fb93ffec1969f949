"""The pipeline fusion: OpenSearch's normalization-processor, as a request, and its arithmetic in Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import SettingsError
from ...files.local import load_asset
from ..scripts import Scripts
from ..settings import SearchSettings
from . import CandidateLists, CompiledQuery, Fusion, Grid, Scores

FLOOR = 0.001
RANK_CONSTANT = 60  # of rrf
RRF_WEIGHTS = (3, 1, 0)
Z_SCORE = (3, 0, 0)
DESCRIPTIONS = {
    "min_max": "scale each list to 0..1 by its minimum and maximum",
    "l2": "divide each list by its Euclidean length",
    "z_score": "standardise each list by its mean and deviation (OpenSearch 3.0 or newer)",
}
TENTHS = [i / 10 for i in range(2, 9)]


class Pipeline(Fusion):
    """Normalises the list of each retriever and combines them in a search pipeline of the cluster."""

    name = "pipeline"
    help = "as normalization and combination say"
    turn = 2
    own_settings = frozenset({"normalization"})
    one_request = True
    grids = tuple(
        Grid(technique, {"fusion": "pipeline", "normalization": technique}, TENTHS)
        for technique in ("min_max", "l2", "z_score", "rrf")
    )

    def __init__(
        self, settings: SearchSettings, version: tuple[int, int, int], scripts: Scripts | None = None
    ) -> None:
        super().__init__(settings, version, scripts)
        self.version = version
        require_version(settings, version)

    @cached_property
    def pipeline(self) -> dict[str, Any]:
        """Return the search pipeline that each request carries."""
        return search_pipeline(self.settings, self.version)

    def body(self, query: CompiledQuery, k: int) -> dict[str, Any]:
        """Return a hybrid query of all retrievers, with the pipeline that combines them."""
        queries = [query.query(name) for name in query.retrievers]
        return {"size": k, "query": hybrid_query(queries, query.depth), "search_pipeline": self.pipeline}

    def scores(self, lists: CandidateLists) -> dict[str, float]:
        """Return the combined score of every candidate, computed as the pipeline's processor does."""
        normalization, weights = self.settings.normalization, weights_of(self.settings)
        return fuse(list(lists.listed.values()), normalization=normalization, weights=weights)

    def sides(self, lists: CandidateLists) -> dict[str, Scores]:
        """Return the normalised scores of each retriever; 0 for documents that are not in its list."""
        normalization, zeros = self.settings.normalization, dict.fromkeys(lists.documents, 0.0)
        return {
            name: zeros
            | (rrf([scores], [1.0]) if normalization == "rrf" else NORMALIZATIONS[normalization](scores))
            for name, scores in lists.listed.items()
        }

    def check_page(self, offset: int, k: int) -> None:
        """Raise SettingsError for a page that reaches beyond the candidates."""
        if offset and offset + k > self.settings.depth:
            raise SettingsError(
                f"hits {offset + 1} to {offset + k} are beyond the {self.settings.depth} candidates that are "
                "normalised together: with more of them every score would change",
                hint=f"--depth {offset + k} for all pages",
            )


def hybrid_query(queries: Sequence[dict[str, Any]], depth: int) -> dict[str, Any]:
    """Return a hybrid query with `depth` candidates of each query, whatever the page."""
    return {"hybrid": {"queries": list(queries), "pagination_depth": depth}}


def weights_of(settings: SearchSettings) -> tuple[float, ...]:
    """Return the weights of the retrievers, in their order, which sum to 1."""
    shares = settings.shares.values()
    return tuple(share / sum(shares) for share in shares) if settings.retrievers else tuple(shares)


def search_pipeline(settings: SearchSettings, version: tuple[int, int, int]) -> dict[str, Any]:
    """Return the search pipeline that normalises and combines the retrievers' scores, from a file in
    `opensearch/pipelines/`.

    Raises SettingsError for settings that this server version would refuse or silently ignore.
    """
    require_version(settings, version)
    normalization = settings.normalization
    name = "hybrid-rrf.json" if normalization == "rrf" else "hybrid-min-max.json"
    pipeline = load_asset("pipelines", name)
    [processor] = pipeline["phase_results_processors"][0].values()
    combination = processor["combination"]
    if normalization != "rrf":
        processor["normalization"]["technique"] = normalization
        pipeline["description"] = f"hybridr: {DESCRIPTIONS[normalization]}, then take the weighted mean."
    elif version >= RRF_WEIGHTS:
        combination["rank_constant"] = RANK_CONSTANT
    else:  # 2.19 reads the constant only among the parameters and ignores it silently elsewhere
        processor["combination"] = {"technique": "rrf", "parameters": {"rank_constant": RANK_CONSTANT}}
    # Whole numbers would fail on the server, which casts them to doubles.
    combination["parameters"]["weights"] = [float(weight) for weight in weights_of(settings)]
    return pipeline


def require_version(settings: SearchSettings, version: tuple[int, int, int]) -> None:
    """Raise SettingsError for a normalization that this server version does not support."""
    dotted = ".".join(map(str, version))
    if settings.normalization == "z_score" and version < Z_SCORE:
        raise SettingsError(
            f"z_score needs OpenSearch 3.0, this is {dotted}", hint='[search] normalization = "min_max"'
        )
    equal_weights = len(set(weights_of(settings))) == 1
    if settings.normalization == "rrf" and version < RRF_WEIGHTS and not equal_weights:
        raise SettingsError(f"weights for rrf need OpenSearch 3.1, this is {dotted}")


def l2(scores: Scores) -> dict[str, float]:
    """Return scores divided by the Euclidean length of the list; zeros stay zeros."""
    length = math.sqrt(sum(score * score for score in scores.values()))
    return {doc: score / length if length else 0.0 for doc, score in scores.items()}


def min_max(scores: Scores) -> dict[str, float]:
    """Return scores scaled to 0..1 as OpenSearch does: 0 becomes 0.001; if all are equal they become 1.0."""
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    if low == high:
        return dict.fromkeys(scores, 1.0)
    return {doc: (score - low) / (high - low) or FLOOR for doc, score in scores.items()}


def z_score(scores: Scores) -> dict[str, float]:
    """Return scores standardised by mean and sample deviation (n - 1); values <= 0 become 0.001.

    A score equal to the mean gets the raw maximum of the list, as on the server.
    """
    if not scores:
        return {}
    raw = np.asarray(list(scores.values()), dtype=np.float64)
    single = raw.astype(np.float32)
    values = single.astype(np.float64)
    mean, deviation = np.float32(values.mean()), float(values.std(ddof=min(1, len(values) - 1)))
    if deviation == 0:
        standard = np.full_like(raw, values.min())
    else:
        standard = (raw - float(mean)) / deviation
        standard[standard <= 0] = FLOOR
    standard[single == mean] = values.max()
    return dict(zip(scores, standard.tolist(), strict=True))


NORMALIZATIONS: dict[str, Callable[[Scores], dict[str, float]]] = {
    "min_max": min_max,
    "l2": l2,
    "z_score": z_score,
}


def rrf(lists: Sequence[Scores], weights: Sequence[float]) -> dict[str, float]:
    """Return the sum of weight / (`RANK_CONSTANT` + rank from 1) over the lists (Cormack et al. 2009)."""
    fused: dict[str, float] = {}
    for scores, weight in zip(lists, weights, strict=True):
        for rank, doc in enumerate(ranking(scores), 1):
            fused[doc] = fused.get(doc, 0.0) + weight / (RANK_CONSTANT + rank)
    return fused


def fuse(
    lists: Sequence[Scores], *, normalization: str = "min_max", weights: Sequence[float] | None = None
) -> dict[str, float]:
    """Fuse the score lists of several retrievers into one score per document.

    `normalization` is min_max, l2, z_score or rrf; `weights`, one a list, sum to 1; None weighs all equally.
    Unlike here, the server joins the lists of all shards first and treats a score of 0 as not found.
    """
    weights = weights or [1 / len(lists)] * len(lists)
    if normalization == "rrf":
        return rrf(lists, weights)
    scaled = [NORMALIZATIONS[normalization](scores) for scores in lists]
    documents = dict.fromkeys(doc for scores in lists for doc in scores)
    pairs = list(zip(scaled, weights, strict=True))
    return {
        doc: sum(scores.get(doc, 0.0) * weight for scores, weight in pairs) / sum(weights)
        for doc in documents
    }


def ranking(scores: Scores) -> list[str]:
    """Return document ids by score, best first; ties keep the order of the list."""
    return sorted(scores, key=lambda doc: -scores[doc])
