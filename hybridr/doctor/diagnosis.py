"""`hybridr doctor`: checks the embedded node, the cluster and this machine; each failed check has a fix.

The requests that hybridr sends to a cluster are tried once on a temporary index.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from ..cluster.connection import Cluster, path_of
from ..cluster.embedded.state import damaged_states, node_states
from ..cluster.mappings import WATERMARK, bytes_kept_free, cluster_settings, watermark_of
from ..cluster.retrievers.dense import dense_query, vector_mapping
from ..cluster.retrievers.lexical import lexical_query
from ..cluster.settings import ClusterSettings, VectorSettings
from ..cluster.vector_forms import lacks_native_libraries
from ..errors import AccessDenied, ClusterError, HybridrError, SettingsError, Unreachable
from ..indexing.switching import deploy_command
from ..records import Progress, silent
from ..search.fusions.pipeline import hybrid_query, search_pipeline
from ..search.scripts import scripts_refused
from ..search.settings import SearchSettings
from ..serving.deploy.deploying import deployments, server_problem
from .health_checks import (
    Check,
    check_known_problems,
    grant_advice,
    machine_checks,
    refusal_text,
    vector_checks,
)

ANSWER_S = 15.0
MODULES = ("analysis-common", "lang-painless")
OPTIONAL_PLUGIN = "opensearch-ml"
MIN_FREE = 0.10
"""Share of a disk that should be free; with less, OpenSearch moves shards away."""
STAGES = 3
START_COMMAND = "hybridr node start"


def diagnose(settings: ClusterSettings, *, progress: Progress = silent) -> list[Check]:
    """Check everything that hybridr needs, without stopping at the first failure.

    On the cluster an index `hybridr-doctor-…` with one document is created and removed again. An unreachable
    cluster is a failed check. Raises SettingsError for unusable connection settings.
    """
    progress("doctor", 0, STAGES, "node")
    checks = [check_node()]
    progress("doctor", 1, STAGES, "cluster")
    checks += cluster_checks(settings)
    progress("doctor", 2, STAGES, "machine")
    checks += machine_checks()
    progress("doctor", STAGES, STAGES)
    return [check._replace(fix="") if check.ok else check for check in checks]


def check_node() -> Check:
    """Check which embedded nodes run."""
    if error := next(damaged_states(), None):
        return Check("node", None, error.message, error.hint or "")
    states = node_states()
    running = [f"'{state.name}' {state.version} at {state.url}" for state in states if state.running]
    stopped = [f"'{state.name}' is stopped" for state in states if not state.running]
    summary = ", ".join(running + stopped) or "no embedded node"
    return Check("node", True if running else None, summary, "" if running else START_COMMAND)


def cluster_checks(settings: ClusterSettings) -> list[Check]:
    """Return all checks of the cluster; only a failed one if it does not answer. Raises SettingsError."""
    timeout_s = min(settings.timeout_s, ANSWER_S)
    try:
        cluster = Cluster.connect(settings.model_copy(update={"timeout_s": timeout_s}))
    except SettingsError:
        raise
    except HybridrError as error:
        nothing_runs = isinstance(error, Unreachable) and START_COMMAND in (error.hint or "")
        fix = f"{START_COMMAND}   or the right --url" if nothing_runs else error.hint
        return [Check("cluster", False, error.message, fix or START_COMMAND)]
    number, has_plugins = cluster.info["version"]["number"], cluster.dialect.has_parts
    return [
        Check("cluster", True, f"{cluster.dialect.product} {number} at {cluster.url}"),
        check_health(cluster),
        check_cluster_disk(cluster),
        *([check_parts(cluster, "plugins", PLUGINS)] if has_plugins else ()),
        check_parts(cluster, "modules", MODULES),
        *check_use(cluster),
        *([check_engines(cluster)] if has_plugins else ()),
        check_known_problems(cluster),
        *vector_checks(cluster),
        *(check_deployments(cluster) if has_plugins else ()),
    ]


def check_health(cluster: Cluster) -> Check:
    """Check that every primary shard is assigned."""
    try:
        health = cluster.request("GET", "/_cluster/health")
    except AccessDenied as error:
        return Check("health", None, refusal_text(error), grant_advice("the cluster"))
    with cluster.reading_answer("GET /_cluster/health"):
        state = f"{health['status']}, {health['number_of_nodes']} node(s)"
    return Check("health", health["status"] != "red", state, "GET /_cluster/allocation/explain   says why")


def check_cluster_disk(cluster: Cluster) -> Check:
    """Check the disk of the node with the smallest free share.

    The check fails below the flood stage, where OpenSearch refuses writes; from there to MIN_FREE it is a
    remark.
    """
    try:
        answer = cluster.request("GET", "/_nodes/stats/fs")
        settings = cluster_settings(cluster)
    except AccessDenied as error:
        return Check("cluster disk", None, refusal_text(error), grant_advice("the cluster"))
    with cluster.reading_answer("GET /_nodes/stats/fs"):
        disks = [node.get("fs", {}).get("total", {}) for node in answer["nodes"].values()]
    disks = [disk for disk in disks if disk.get("total_in_bytes")]
    if not disks:
        return Check("cluster disk", None, "the nodes do not report their disks")
    fullest = min(disks, key=lambda disk: disk["available_in_bytes"] / disk["total_in_bytes"])
    free, total = fullest["available_in_bytes"], fullest["total_in_bytes"]
    room = f"{free / 1e9:.1f} GB ({free / total:.0%}) free on the fullest node"
    if free >= MIN_FREE * total:
        return Check("cluster disk", True, room)
    refuses_writes = not free or free < bytes_kept_free(settings, WATERMARK, total)
    fix = f"free some: writes are refused at {watermark_of(settings, WATERMARK)}"
    return Check("cluster disk", False if refuses_writes else None, room, fix)


def check_parts(cluster: Cluster, kind: str, needed: tuple[str, ...]) -> Check:
    """Check that every node has the needed plugins or modules."""
    if not cluster.nodes:
        return Check(kind, None, "the user may not see them", "grant cluster:monitor/nodes/info")
    present = cluster.installed_parts(kind)
    missing = [name for name in needed if name not in present]
    state = f"missing on some node: {', '.join(missing)}" if missing else ", ".join(needed)
    fix = "use a complete distribution: modules come with it"
    if kind == "plugins":
        fix = "; ".join(f"bin/opensearch-plugin install {name} on every node" for name in missing)
    if kind == "plugins" and OPTIONAL_PLUGIN not in present:
        state += (
            f"; without {OPTIONAL_PLUGIN}, which `hybridr deploy --way neural` and `--way transparent` need: "
            f"bin/opensearch-plugin install {OPTIONAL_PLUGIN} on every node"
        )
    # Elasticsearch needs modules only for scripts, which save requests.
    ok = not missing or (False if cluster.dialect.has_parts else None)
    return Check(kind, ok, state, fix)


def check_engines(cluster: Cluster) -> Check:
    """Return which vector engines are safe to use."""
    if not cluster.nodes:
        state = "lucene; faiss would kill an embedded node, and this user may not see whether this is one"
        return Check("engines", None, state, "grant cluster:monitor/nodes/info")
    if lacks_native_libraries(cluster):
        return Check("engines", True, "lucene only: a faiss field would kill this embedded node")
    return Check("engines", True, "lucene; faiss if the k-NN plugin has its native library")


def check_deployments(cluster: Cluster) -> list[Check]:
    """Check that every deployment is complete: its pipeline, its model, its embedding server."""
    try:
        deployed_indices = deployments(cluster)
    except ClusterError as error:
        fix = grant_advice("the indices you use") if isinstance(error, AccessDenied) else error.hint or ""
        return [Check("deployments", None, refusal_text(error), fix)]
    checks = []
    for info, deployment in deployed_indices:
        title = f"deployment {info.name}"
        if deployment.missing and info.record.deployment:
            problems = f"{deployment.way}: {'; '.join(deployment.missing)}"
            checks.append(Check(title, False, problems, deploy_command(info, info.record.deployment)))
        elif problem := server_problem(deployment, info.record.encoder):
            command = f"hybridr serve --index {shlex.quote(info.record.source or info.name)}"
            checks.append(Check(title, False, problem, command))
        else:
            parts = [deployment.way, f"pipeline {deployment.pipeline}"]
            parts += [f"model {deployment.model} is deployed"] if deployment.model else []
            parts += [f"the server at {deployment.server} answers"] if deployment.server else []
            checks.append(Check(title, True, ", ".join(parts)))
    return checks


PLUGINS = ("opensearch-knn", "opensearch-neural-search")


def check_use(cluster: Cluster) -> Iterator[Check]:
    """Create a small index, write and search in it as hybridr does, and delete it; yield the checks."""
    name = f"hybridr-doctor-{secrets.token_hex(4)}"
    plugins = cluster.installed_parts("plugins") if cluster.nodes else frozenset(PLUGINS)
    with_vectors = PLUGINS[0] in plugins or not cluster.dialect.has_parts
    refusals: dict[str, str] = {}
    try:
        for title, step in trial_steps(cluster, name, with_vectors):
            if (reason := try_step(step)) is not None:
                refusals[title] = reason
            if title == "create" and refusals:
                break
        if "create" not in refusals:
            yield check_scripts(cluster, name)
        if not refusals and with_vectors and PLUGINS[1] in plugins:
            yield check_hybrid(cluster, name)
    finally:
        problem = None if "create" in refusals else try_step(lambda: cluster.request("DELETE", path_of(name)))
    if problem is not None:
        refusals["delete"] = f"{problem}; the index '{name}' is still there"
    if refusals:
        problems = "; ".join(f"{title}: {reason}" for title, reason in refusals.items())
        fix = "solve that on the cluster first"
        if "missing " in problems:
            fix = grant_advice(f"{name.rpartition('-')[0]}-* and the indices you use")
        yield Check("rights", False, problems, fix)
    else:
        titles = ", ".join(title for title, _ in trial_steps(cluster, name, with_vectors))
        yield Check("rights", True, f"{titles}, delete (tried on '{name}', which was removed)")


def trial_steps(cluster: Cluster, name: str, with_vectors: bool) -> list[tuple[str, Callable[[], Any]]]:
    """Return the requests to try on the temporary index, with their titles; the first creates it."""
    vector = ',"vector":[0.6,0.8]' if with_vectors else ""
    lines = '{"index":{"_id":"1"}}\n{"text":"doctor"' + vector + "}\n"
    alias = {"actions": [{"add": {"index": name, "alias": f"{name}-alias"}}]}
    settings: dict[str, Any] = {"number_of_shards": 1, "number_of_replicas": 0}
    properties: dict[str, Any] = {"text": {"type": "text"}}
    if with_vectors:  # by lucene, the only engine that crashes no node
        settings["knn"] = True
        properties["vector"] = vector_mapping(2, "cosine", VectorSettings(engine="lucene"), cluster.version)
    body = {"settings": {"index": settings}, "mappings": {"properties": properties}}
    refresh = {"index.refresh_interval": "5s"}

    def open_view() -> None:
        """Open and close a point in time. A close that fails counts here, unlike in `cluster.reading`."""
        path = path_of(name, "_search", "point_in_time")
        view = cluster.request("POST", path, params={"keep_alive": "1m"})["pit_id"]
        cluster.request("DELETE", "/_search/point_in_time", {"pit_id": [view]})

    return [
        ("create", lambda: cluster.request("PUT", path_of(name), body)),
        ("write", lambda: cluster.request("POST", path_of(name, "_bulk"), lines, {"refresh": "true"})),
        ("read", lambda: cluster.search(name, {"query": {"match": {"text": "doctor"}}})),
        ("describe", lambda: cluster.request("GET", path_of(name))),
        ("point in time", open_view),
        ("settings", lambda: cluster.request("PUT", path_of(name, "_settings"), refresh)),
        ("alias", lambda: cluster.request("POST", "/_aliases", alias)),
    ]


def check_scripts(cluster: Cluster, name: str) -> Check:
    """Check whether searches may run the script that adds up true scores."""
    if (reason := scripts_refused(cluster, name)) is None:
        return Check("scripts", True, "searches may run them: hybrid search adds up true scores")
    effect = "hybrid search needs several requests for true scores, and deploy --way transparent is refused"
    fix = "allow scripts, or send searches to hybridr serve --proxy lexical"
    return Check("scripts", None, f"{reason}: {effect}", fix)


def check_hybrid(cluster: Cluster, name: str) -> Check:
    """Check that a hybrid query works with a pipeline in the request: the score is 1."""
    queries = [lexical_query("doctor", ["text"]), dense_query([0.6, 0.8], "vector", 1)]
    body = {
        "query": hybrid_query(queries, 1),
        "search_pipeline": search_pipeline(SearchSettings(), cluster.version),
    }
    try:
        hits = cluster.search(name, body)["hits"]["hits"]
    except ClusterError as error:
        return Check("hybrid search", False, refusal_text(error), error.hint or "")
    score = hits[0]["_score"] if hits else 0.0
    is_fused = score is not None and 0.99 < score <= 1.01
    state = f"one document by both retrievers, fused score {score:.2f}"
    fix = "reinstall opensearch-neural-search: its search pipeline does not work"
    return Check("hybrid search", is_fused, state, fix)


def try_step(step: Callable[[], Any]) -> str | None:
    """Run a step; return why the cluster refused it or the first item of its bulk request, else None."""
    try:
        answer = step()
    except ClusterError as error:
        return refusal_text(error)
    if isinstance(answer, dict) and answer.get("errors"):
        return str(next(iter(answer["items"][0].values()))["error"]["reason"])
    return None
