"""What an answer of `_search` says about its hits."""

from __future__ import annotations

from typing import Any

from ..encoding.passages import Span
from ..errors import ClusterError


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
