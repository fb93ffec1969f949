"""What an answer of `_search` says about its hits."""

from __future__ import annotations

from typing import Any

from .errors import ClusterError
from .passages import Span


def checked(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the hits; negative scores are the raw markers of a hybrid query that no pipeline combined.

    Raises ClusterError for them, for a time-out and for shards that failed.
    """
    hits: list[dict[str, Any]] = answer["hits"]["hits"]
    if answer.get("timed_out") or answer.get("_shards", {}).get("failed"):
        raise ClusterError("some shards did not answer the search", hint="GET _cat/shards?v")
    if any(hit["_score"] is not None and hit["_score"] < 0 for hit in hits):
        raise ClusterError(
            "the cluster returned raw hybrid scores: no search pipeline combined them",
            hint="is the plugin opensearch-neural-search on every node? hybridr doctor",
        )
    return hits


def best_passage(inner_hits: dict[str, Any]) -> Span | None:
    """Read where the best passage begins and ends from the inner hits of a document."""
    inner = [hit for found in inner_hits.values() for hit in found["hits"]["hits"]]
    best = max(inner, key=lambda hit: hit["_score"], default=None)
    return (best["_source"]["start"], best["_source"]["end"]) if best else None


def true_dense_score(score: float, lexical: float | None, body: dict[str, Any]) -> float | None:
    """Solve the absolute fusion for the dense score, which the engine does not name on its own."""
    params = body["rescore"]["query"]["rescore_query"]["script_score"]["script"]["params"]
    rest = score - params["lexical"] * (lexical or 0.0)
    return rest / params["dense"] if params["dense"] else None
