"""Fingerprints of files and settings, and the manifest written beside every artifact that hybridr makes."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from ..errors import DataError
from .atomic import write_json
from .foreign import parsed_json, read_within, regular

FILE_NAME = "manifest.json"
PARTS = ("settings", "inputs", "outputs", "encoder", "adaptation", "assembly", "dam", "rem")
"""Entries that are objects wherever they are."""
PACKAGES = ("numpy", "onnxruntime", "opensearch-py", "peft", "pyarrow", "tokenizers", "torch", "transformers")


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, 64 hex digits."""
    digest = hashlib.sha256()
    with regular(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(value: Any) -> str:
    """Return the sha256 of a JSON value, 64 hex digits; the order of keys does not matter."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


@cache
def release() -> str:
    """Return hybridr's version and 12 hex digits of its code's digest, which may differ within a version."""
    return f"{metadata.version('hybridr')} ({code_digest()[:12]})"


def code_digest(*packages: str) -> str:
    """Return the sha256 of the Python modules of these packages of hybridr, or of all; 64 hex digits."""
    root = Path(__file__).parents[1]
    folders = [root / package for package in packages] or [root]
    files = sorted(path for folder in folders for path in folder.rglob("*.py"))
    return fingerprint([(path.relative_to(root).as_posix(), sha256_of(path)) for path in files])


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that can change a result."""
    releases = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            releases[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return releases


def write_manifest(
    folder: Path,
    *,
    stage: str,
    settings: Mapping[str, Any],
    inputs: Mapping[str, Any],
    outputs: Sequence[str] = (),
    parents: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the manifest of an artifact's `folder` (settings, inputs, versions) and return it.

    `outputs` are names of files in the folder, stored with their sha256.
    """
    record = {
        "stage": stage,
        "hybridr": metadata.version("hybridr"),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "settings": dict(settings),
        "inputs": dict(inputs),
        "outputs": {name: sha256_of(folder / name) for name in sorted(outputs)},
        "parents": list(parents),
        "versions": versions(),
        "machine": {"system": platform.system(), "cpu": platform.machine(), "cores": os.cpu_count()},
        **(extra or {}),
    }
    write_json(folder / FILE_NAME, record)
    return record


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Read a folder's manifest; None if there is none. Raises DataError if it is damaged."""
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        record = parsed_json(read_within(path))
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON: {error}", hint="make the artifact again") from error
    if not isinstance(record, dict):
        raise DataError(f"{path} holds no manifest", hint="make the artifact again")
    wrong = [name for name in PARTS if not isinstance(record.get(name, {}), dict)]
    if wrong:
        raise DataError(f"{path} holds a wrong '{wrong[0]}'", hint="make the artifact again")
    return record
