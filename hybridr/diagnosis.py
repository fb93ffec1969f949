"""What works here and what is missing, with one fix for each: the cluster, its user, this machine."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator
from typing import Any

from .node import status as nodes
from .bodies import dense_query, hybrid_query, lexical_query, search_pipeline, vector_mapping
from .cluster import Cluster, IndexInfo, check_supported, located, open_client, path_of
from .deployments import Deployed, command_of, deployment_of, server_problem
from .errors import AccessDenied, ClusterError, HybridrError, SettingsError, Unreachable
from .machine import Check, machine_checks
from .pipelines import default_pipelines
from .progress import Progress, silent
from .settings import ClusterSettings, VectorSettings, SearchSettings
from .trials import check_backends

TIMEOUT_S = 15.0
PLUGINS = ("opensearch-knn", "opensearch-neural-search")
MODULES = ("analysis-common", "lang-painless")
OPTIONAL = {"opensearch-ml": "hybridr deploy", "reindex": "delete by query"}
FULL, FLOOD = 0.10, 0.05
"""Free shares of a disk below which OpenSearch moves shards away, and below which it refuses writes."""

PERMISSIONS = re.compile(r"no permissions for \[((?:[^\[\]]|\[s\])+)\]")
STAGES = 3
START = "hybridr node start"

__all__ = ["Check", "diagnose"]


def diagnose(settings: ClusterSettings, *, progress: Progress = silent) -> list[Check]:
    """Check everything that hybridr needs, without stopping at the first failure.

    On the cluster an index `hybridr-doctor-…` with one document is made and removed again. A cluster that
    cannot be reached is a failed check. Raises SettingsError for unusable connection settings.
    """
    progress("doctor", 0, STAGES, "node")
    checks = [check_node()]
    progress("doctor", 1, STAGES, "cluster")
    checks += cluster_checks(settings)
    progress("doctor", 2, STAGES, "machine")
    checks += [*machine_checks(), check_backends()]
    progress("doctor", STAGES, STAGES)
    return [check._replace(fix="") if check.ok else check for check in checks]


def check_node() -> Check:
    """Say which embedded nodes run."""
    try:
        states = nodes()
    except HybridrError as error:
        return Check("node", False, error.message, error.hint or "")
    running = [f"'{state.name}' {state.version} at {state.url}" for state in states if state.running]
    stopped = [f"'{state.name}' is stopped" for state in states if not state.running]
    found = ", ".join(running + stopped) or "no embedded node"
    return Check("node", True if running else None, found, "" if running else START)


def cluster_checks(settings: ClusterSettings) -> list[Check]:
    """Look at the cluster, as far as it answers."""
    patience = min(settings.timeout_s, TIMEOUT_S)
    try:
        where = located(settings.model_copy(update={"timeout_s": patience}))
        cluster = Cluster(open_client(str(where.url), where), str(where.url))
        check_supported(cluster.info, cluster.url)
    except SettingsError:
        raise
    except HybridrError as error:
        nobody = isinstance(error, Unreachable) and START in (error.hint or "")
        fix = f"{START}   or the right --url" if nobody else error.hint
        return [Check("cluster", False, error.message, fix or START)]
    number = cluster.info["version"]["number"]
    return [
        Check("cluster", True, f"OpenSearch {number} at {cluster.url}"),
        check_health(cluster),
        check_cluster_disk(cluster),
        *check_parts(cluster, "plugins", PLUGINS, cluster.plugins()),
        *check_parts(cluster, "modules", MODULES, cluster.modules()),
        *check_use(cluster),
        check_engines(cluster),
        *check_deployments(cluster),
    ]


def check_health(cluster: Cluster) -> Check:
    """See whether every primary shard is there."""
    try:
        health = cluster.request("GET", "/_cluster/health")
    except AccessDenied as error:
        return Check("health", None, denied(error), grant("the cluster"))
    found = f"{health['status']}, {health['number_of_nodes']} node(s)"
    return Check("health", health["status"] != "red", found, "GET /_cluster/allocation/explain   says why")


def check_cluster_disk(cluster: Cluster) -> Check:
    """See whether the fullest disk of the cluster leaves room."""
    try:
        nodes = cluster.request("GET", "/_nodes/stats/fs")["nodes"].values()
    except AccessDenied as error:
        return Check("cluster disk", None, denied(error), grant("the cluster"))
    totals = [one["fs"]["total"] for one in nodes if one.get("fs", {}).get("total", {}).get("total_in_bytes")]
    if not totals:
        return Check("cluster disk", None, "not told by the nodes")
    fullest = min(totals, key=lambda one: one["available_in_bytes"] / one["total_in_bytes"])
    share = fullest["available_in_bytes"] / fullest["total_in_bytes"]
    found = f"{fullest['available_in_bytes'] / 1e9:.1f} GB ({share:.0%}) free on the fullest node"
    if share >= FULL:
        return Check("cluster disk", True, found)
    return Check(
        "cluster disk", None if share >= FLOOD else False, found, "free some: below 5% writes are refused"
    )


def check_parts(
    cluster: Cluster, kind: str, needed: tuple[str, ...], present: frozenset[str]
) -> Iterator[Check]:
    """Compare the plugins or modules of every node with those that are needed."""
    if not cluster.nodes:
        yield Check(kind, None, "the user may not see them", "grant cluster:monitor/nodes/info")
        return
    missing = [name for name in needed if name not in present]
    found = f"missing on some node: {', '.join(missing)}" if missing else ", ".join(needed)
    fix = "; ".join(f"bin/opensearch-plugin install {name} on every node" for name in missing)
    if kind == "modules":
        fix = "use a complete distribution: modules come with it"
    absent = [f"{name} (only for {use})" for name, use in OPTIONAL.items() if name not in present]
    extra = [one for one in absent if one.startswith("opensearch-") == (kind == "plugins")]
    yield Check(kind, not missing, found + (f"; without {', '.join(extra)}" if extra else ""), fix)


def check_engines(cluster: Cluster) -> Check:
    """Name the vector engines that are safe."""
    if not cluster.nodes:
        found = "lucene; whether this is an embedded node, which faiss would kill, cannot be seen"
        return Check("engines", None, found, "grant cluster:monitor/nodes/info")
    if cluster.is_embedded():
        return Check("engines", True, "lucene only: a faiss field would kill this embedded node")
    return Check("engines", True, "lucene; faiss where the k-NN plugin came with its native library")


def check_deployments(cluster: Cluster) -> list[Check]:
    """Look at every deployment: its pipeline, its model, its embedding server."""
    try:
        found = {info.name: info for info in cluster.indices("*-hybridr-*")}
        for name, pipeline in default_pipelines(cluster).items():
            if pipeline.startswith("hybridr-") and name not in found:
                found[name] = cluster.index_info(name)
        looked = [(info, deployment_of(cluster, info)) for _, info in sorted(found.items())]
    except ClusterError as error:
        fix = grant("the indices you use") if isinstance(error, AccessDenied) else error.hint or ""
        return [Check("deployments", None, denied(error), fix)]
    return [check_deployment(info, deployed) for info, deployed in looked if deployed]


def check_deployment(info: IndexInfo, deployed: Deployed) -> Check:
    """Say whether a deployment is whole and its server answers from here."""
    what = f"deployment {info.name}"
    if deployed.missing:
        again = command_of(info, info.meta["deployment"])
        return Check(what, False, f"{deployed.way}: {'; '.join(deployed.missing)}", again)
    if problem := server_problem(deployed, info.meta["encoder"]):
        return Check(what, False, problem, f"hybridr serve --index {info.meta.get('source', info.name)}")
    parts = [deployed.way, f"pipeline {deployed.pipeline}"]
    parts += [f"model {deployed.model} is deployed"] if deployed.model else []
    parts += [f"the server at {deployed.server} answers"] if deployed.server else []
    return Check(what, True, ", ".join(parts))


def check_use(cluster: Cluster) -> Iterator[Check]:
    """Do once, on an index of its own, what reindexing and searching do; the index is removed again."""
    name = f"hybridr-doctor-{secrets.token_hex(4)}"
    seen = cluster.plugins() if cluster.nodes else frozenset(PLUGINS)
    vectors = PLUGINS[0] in seen
    refused: dict[str, str] = {}
    try:
        for what, step in steps(cluster, name, vectors):
            if (reason := failure(step)) is not None:
                refused[what] = reason
            if what == "create" and refused:
                break
        if not refused and vectors and PLUGINS[1] in seen:
            yield check_hybrid(cluster, name)
    finally:
        left = None if "create" in refused else failure(lambda: cluster.request("DELETE", path_of(name)))
    if left is not None:
        refused["delete"] = f"{left}; the index '{name}' is still there"
    if refused:
        found = "; ".join(f"{what}: {reason}" for what, reason in refused.items())
        ours = grant(f"{name.rpartition('-')[0]}-* and the indices you use")
        yield Check(
            "rights", False, found, ours if "missing " in found else "solve that on the cluster first"
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
    return Check("hybrid search", fused, f"one document by both legs, fused score {score:.2f}",
                 "reinstall opensearch-neural-search: its pipeline does not run")  # fmt: skip


def failure(step: Callable[[], Any]) -> str | None:
    """Run a step and give the reason when the cluster refuses it; items of a bulk request count."""
    try:
        answer = step()
    except ClusterError as error:
        return denied(error)
    if isinstance(answer, dict) and answer.get("errors"):
        return str(next(iter(answer["items"][0].values()))["error"]["reason"])
    return None


def denied(error: ClusterError) -> str:
    """Name the missing permissions, where the cluster names them, else its reason."""
    missing = PERMISSIONS.search(error.message)
    return f"missing {missing[1]}" if missing else error.message


def grant(where: str) -> str:
    """Say what an administrator has to do."""
    return f"let an administrator grant what is missing on {where}"
