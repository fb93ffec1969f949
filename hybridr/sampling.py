"""A random sample of an index: the same one each time while the index does not change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .cluster import Cluster, IndexInfo
from .errors import NotFound
from .progress import Progress, silent
from .reading import LOST_VIEW, SourceDocument, read_documents, require_source, source_document

PAGE = 250
DEEPEST = 10_000
"""How many documents one sorted search may reach (`index.max_result_window`, unless the index says less)."""


def sample_documents(
    cluster: Cluster,
    info: IndexInfo,
    size: int,
    *,
    fields: Sequence[str] | None = None,
    seed: int = 13,
    progress: Progress = silent,
) -> list[SourceDocument]:
    """Read `size` documents at random, or all when the index holds no more; at most 10,000 of a larger one.

    `fields` limits `_source`; None takes it whole. Raises DataError when `_source` is disabled.
    """
    require_source(info)
    if cluster.count(info.name) <= size:
        return list(read_documents(cluster, info.name, fields=fields, progress=progress))
    window = int(info.settings.get("index.max_result_window", DEEPEST))
    size = min(size, window, DEEPEST)
    while True:
        try:
            return draw(cluster, info, size, seed, fields, progress)
        except NotFound as error:  # a node that restarts loses its views
            if error.kind != LOST_VIEW:
                raise


def draw(
    cluster: Cluster,
    info: IndexInfo,
    size: int,
    seed: int,
    fields: Sequence[str] | None,
    progress: Progress,
) -> list[SourceDocument]:
    """Read `size` documents at random in one view of the index."""
    found: list[SourceDocument] = []
    with cluster.point_in_time(info.name) as pit:
        while len(found) < size:
            body = _page(pit, len(found), min(PAGE, size - len(found)), seed, fields)
            hits = cluster.request("POST", "/_search", body, every_shard=True)["hits"]["hits"]
            if not hits:
                break
            found += map(source_document, hits)
            progress("sample", len(found), size)
    return found


def _page(pit: str, start: int, size: int, seed: int, fields: Sequence[str] | None) -> dict[str, Any]:
    chance = {"random_score": {"seed": seed, "field": "_seq_no"}, "boost_mode": "replace"}
    return {
        "pit": {"id": pit, "keep_alive": "10m"},
        "from": start,
        "size": size,
        "query": {"function_score": {"query": {"match_all": {}}, **chance}},
        "track_total_hits": False,
        "seq_no_primary_term": True,
        "version": True,
        "_source": True if fields is None else list(fields),
    }
