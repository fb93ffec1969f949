"""What hybridr does with a cluster, done once on an index of its own, which is removed again."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

from ..cluster.connection import Cluster, path_of
from ..cluster.equipment import plugins_of
from ..cluster.retrievers.dense import dense_query, vector_mapping
from ..cluster.retrievers.lexical import lexical_query
from ..cluster.settings import VectorSettings
from ..errors import ClusterError
from ..search.fusions.pipeline import hybrid_query, search_pipeline
from ..search.scripts import scripts_refused
from ..search.settings import SearchSettings
from .check import Check, denied, grant

PLUGINS = ("opensearch-knn", "opensearch-neural-search")


def check_use(cluster: Cluster) -> Iterator[Check]:
    """Do once, on an index of its own, what reindexing and searching do; the index is removed again."""
    name = f"hybridr-doctor-{secrets.token_hex(4)}"
    seen = plugins_of(cluster) if cluster.nodes else frozenset(PLUGINS)
    vectors = PLUGINS[0] in seen or not cluster.dialect.has_parts
    refused: dict[str, str] = {}
    try:
        for what, step in steps(cluster, name, vectors):
            if (reason := failure(step)) is not None:
                refused[what] = reason
            if what == "create" and refused:
                break
        if "create" not in refused:
            yield check_scripts(cluster, name)
        if not refused and vectors and PLUGINS[1] in seen:
            yield check_hybrid(cluster, name)
    finally:
        left = None if "create" in refused else failure(lambda: cluster.request("DELETE", path_of(name)))
    if left is not None:
        refused["delete"] = f"{left}; the index '{name}' is still there"
    if refused:
        refusals = "; ".join(f"{what}: {reason}" for what, reason in refused.items())
        ours = grant(f"{name.rpartition('-')[0]}-* and the indices you use")
        yield Check(
            "rights", False, refusals, ours if "missing " in refusals else "solve that on the cluster first"
        )
    else:
        done = ", ".join(what for what, _ in steps(cluster, name, vectors))
        yield Check("rights", True, f"{done}, delete (tried on '{name}', which was removed)")


def steps(cluster: Cluster, name: str, vectors: bool) -> list[tuple[str, Callable[[], Any]]]:
    """List what is tried on the index; the first step makes it."""
    lines = '{"index":{"_id":"1"}}\n{"text":"doctor"' + (',"vector":[0.6,0.8]}' if vectors else "}") + "\n"
    alias = {"actions": [{"add": {"index": name, "alias": f"{name}-alias"}}]}
    return [
        ("create", lambda: cluster.request("PUT", path_of(name), probe_body(vectors, cluster.version))),
        ("write", lambda: cluster.request("POST", path_of(name, "_bulk"), lines, {"refresh": "true"})),
        ("read", lambda: cluster.search(name, {"query": {"match": {"text": "doctor"}}})),
        ("describe", lambda: cluster.request("GET", path_of(name))),
        ("point in time", lambda: open_view(cluster, name)),
        (
            "settings",
            lambda: cluster.request("PUT", path_of(name, "_settings"), {"index.refresh_interval": "5s"}),
        ),
        ("alias", lambda: cluster.request("POST", "/_aliases", alias)),
    ]


def probe_body(vectors: bool, version: tuple[int, int, int]) -> dict[str, Any]:
    """Build the index; its engine is lucene, the only one that kills no node."""
    settings: dict[str, Any] = {"number_of_shards": 1, "number_of_replicas": 0}
    properties: dict[str, Any] = {"text": {"type": "text"}}
    if vectors:
        settings["knn"] = True
        properties["vector"] = vector_mapping(2, "cosine", VectorSettings(engine="lucene"), version)
    return {"settings": {"index": settings}, "mappings": {"properties": properties}}


def open_view(cluster: Cluster, name: str) -> None:
    """Open and close a point in time; unlike in reading, a failing close counts."""
    path = path_of(name, "_search", "point_in_time")
    view = cluster.request("POST", path, params={"keep_alive": "1m"})["pit_id"]
    cluster.request("DELETE", "/_search/point_in_time", {"pit_id": [view]})


def check_scripts(cluster: Cluster, name: str) -> Check:
    """See whether searches may run the script that adds up true scores."""
    if (reason := scripts_refused(cluster, name)) is None:
        return Check("scripts", True, "searches may run them: hybrid search adds up true scores")
    lost = (
        "hybrid search adds up true scores in several requests; deployed searches are joined by the pipeline"
    )
    fix = "allow them, or deploy again what was deployed before: hybridr deploy NAME --way …"
    return Check("scripts", None, f"{reason}: {lost}", fix)


def check_hybrid(cluster: Cluster, name: str) -> Check:
    """Run one hybrid query through a pipeline that travels with it."""
    legs = [lexical_query("doctor", ["text"]), dense_query([0.6, 0.8], "vector", 1)]
    body = {
        "query": hybrid_query(legs, 1),
        "search_pipeline": search_pipeline(SearchSettings(), cluster.version),
    }
    try:
        hits = cluster.search(name, body)["hits"]["hits"]
    except ClusterError as error:
        return Check("hybrid search", False, denied(error), error.hint or "")
    score = hits[0]["_score"] if hits else 0.0
    fused = score is not None and 0.99 < score <= 1.01
    return Check(
        "hybrid search",
        fused,
        f"one document by both legs, fused score {score:.2f}",
        "reinstall opensearch-neural-search: its pipeline does not run",
    )


def failure(step: Callable[[], Any]) -> str | None:
    """Run a step and give the reason when the cluster refuses it; items of a bulk request count."""
    try:
        answer = step()
    except ClusterError as error:
        return denied(error)
    if isinstance(answer, dict) and answer.get("errors"):
        return str(next(iter(answer["items"][0].values()))["error"]["reason"])
    return None
