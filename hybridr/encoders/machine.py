"""Detects this machine's working processor features, GPUs and installed packages."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from ..errors import DownloadError
from ..files.local import fingerprint
from ..files.remembered import change_state_file, read_state_file

AMX_FILE = "amx.json"

CPU_INFO = Path("/proc/cpuinfo")
FEATURES = {
    "AVX2": "avx2",
    "AVX512": "avx512f",
    "VNNI": "avx512_vnni",
    "AVX-VNNI": "avx_vnni",
    "BF16": "avx512_bf16",
    "AMX": "amx_tile",
    "NEON": "asimd",
    "DOTPROD": "asimddp",
    "I8MM": "i8mm",
}
"""Name shown -> flag in /proc/cpuinfo, of x86 and ARM."""
BF16_PRODUCT = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print(float((a @ a)[0, 0]))"
TRIAL_S = 300
KILLED = "killed by "
WITHOUT_AMX = ("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


class Cpu(NamedTuple):
    """A processor's model and its feature flags as the kernel lists them."""

    model: str
    flags: frozenset[str]


def read_cpu(path: Path | None = None) -> Cpu:
    """Return model and flags from /proc/cpuinfo or `path`; without the file only the model by Python."""
    try:
        text = (path or CPU_INFO).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Cpu(platform.processor() or platform.machine(), frozenset())
    entries = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", text, re.MULTILINE))
    flags = entries.get("flags") or entries.get("Features", "")
    return Cpu(entries.get("model name") or platform.machine(), frozenset(flags.split()))


def instruction_sets(cpu: Cpu) -> list[str]:
    """Return the processor's features that affect arithmetic, by the names in FEATURES."""
    return [name for name, flag in FEATURES.items() if flag in cpu.flags]


def has_byte_products(cpu: Cpu) -> bool:
    """Return whether a processor multiplies bytes into 32-bit sums in one instruction: int8 is fast then."""
    return bool({"VNNI", "AVX-VNNI", "DOTPROD", "I8MM"} & set(instruction_sets(cpu)))


def cpu_report(cpu: Cpu) -> str:
    """Return a line on a processor, its features, and whether int8 is faster there."""
    slow = "int8 is exact here but no faster than fp32: encode in fp32"
    advice = "int8 encodes faster than fp32 here" if has_byte_products(cpu) else slow
    return f"{cpu.model}: {', '.join(instruction_sets(cpu)) or 'no features listed'}; {advice}"


def read_gpus() -> list[str]:
    """Return the NVIDIA GPUs and their memory, as the driver names them; empty without GPUs."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    query = [command, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        process = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return []
    return process.stdout.strip().splitlines() if process.returncode == 0 else []


def installed_version(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def is_installed(package: str) -> bool:
    """Return whether a package is installed."""
    return installed_version(package) is not None


def packages_of_extra(extra: str) -> list[str]:
    """Return the packages of an extra, as the installed hybridr declares them."""
    lines = metadata.requires("hybridr") or []
    marked = [line for line in lines if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", line)]
    return [re.split(r"[^A-Za-z0-9._-]", line)[0] for line in marked]


def amx_works(cpu: Cpu) -> bool | None:
    """Return whether AMX works, tried in a child process once per processor and torch version.

    None means unknown: torch is not installed, or the trial failed for another reason than a signal. Some
    virtual machines list AMX without describing its tiles; oneDNN is then killed by SIGILL.
    """
    if (version := installed_version("torch")) is None:
        return None
    key = fingerprint([cpu.model, sorted(cpu.flags), version])
    answers = read_state_file(AMX_FILE)
    if key not in answers:
        environment = {name: value for name, value in os.environ.items() if name != WITHOUT_AMX[0]}
        reason = try_program(BF16_PRODUCT, environment=environment)
        if reason and not reason.startswith(KILLED):
            return None
        works = not reason
        with suppress(DownloadError), change_state_file(AMX_FILE) as entries:  # else it is tried again
            entries.clear()
            entries[key] = works
        return works
    return bool(answers[key])


def try_program(program: str, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """Run a Python program in a child process; return why it failed, empty if it succeeded."""
    command = [sys.executable, "-c", program, *arguments]
    try:
        process = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=TRIAL_S
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if process.returncode < 0:
        names = {number.value: number.name for number in signal.Signals}
        return f"{KILLED}{names.get(-process.returncode, f'signal {-process.returncode}')}"
    lines = process.stderr.strip().splitlines() or [f"ended with {process.returncode}"]
    return lines[-1] if process.returncode else ""
