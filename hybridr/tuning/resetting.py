"""Takes back what `tune` found for an index: the record of it, and k1 and b where it changed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.destinations import record_event, resolve_whole
from ..cluster.record import Tuned
from .bm25_scores import Similarity
from .k1_and_b import change_requests, change_similarity


@dataclass(frozen=True)
class Reset:
    """What was, or in a dry run would be, taken back; `tuned` None where there was nothing.

    `requests` set k1 and b back, and `closed_s` tells how long the index was closed for that.
    """

    index: str
    tuned: Tuned | None
    requests: tuple[dict[str, Any], ...] = ()
    closed_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Give everything as JSON values."""
        return {**vars(self), "tuned": self.tuned.model_dump(exclude_unset=True) if self.tuned else None}


def reset_tuning(cluster: Cluster, name: str, *, dry_run: bool = False) -> Reset:
    """Have searches of an index rank by the defaults again, and give it the k1 and b of before.

    A stored pipeline keeps its weights until it is deployed anew. Raises NotFound, and ClusterError when the
    index cannot be closed or opened, or the name shows a part of it.
    """
    info = resolve_whole(cluster, name)
    tuned = info.record.tuning
    if tuned is None or tuned == Tuned():
        return Reset(info.name, None)
    before = (tuned.bm25 or {}).get("before")
    similarity = Similarity(**before) if before else None
    requests = tuple(change_requests(info.name, similarity)) if similarity else ()
    if dry_run:
        return Reset(info.name, tuned, requests)
    closed_s = change_similarity(cluster, info.name, similarity) if similarity else None
    record_event(cluster, info.name, "untuned", tuned.model_dump(exclude_unset=True), tuning=None)
    return Reset(info.name, tuned, requests, closed_s)
