"""The folder of a trained DAM: written with its history, and known again."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..assembly.backbone import Dam
from ..assembly.dam_files import write_dam_files
from ..errors import HybridrError, ModelError
from ..manifest import read_manifest, sha256_of, write_manifest
from ..training import STATE_FOLDER

STAGE = "dam"


def write_dam(dam: Dam, folder: Path, *, attachments: Mapping[str, Path], **record: Any) -> dict[str, Any]:
    """Write weights, configuration, tokenizer and manifest (of `record`) into an empty folder."""
    files = write_dam_files(dam, folder)
    for name, path in attachments.items():
        shutil.copyfile(path, folder / name)
    outputs = [*files, *attachments]
    for name in outputs:
        (folder / name).chmod(0o644)
    return write_manifest(folder, stage=STAGE, outputs=outputs, **record)


def require_replaceable(folder: Path) -> None:
    """Raise ModelError when `folder` holds anything but a DAM of ours or the state of an unfinished run."""
    if not folder.exists() or (folder / STATE_FOLDER).is_dir():
        return
    if not folder.is_dir() or (any(folder.iterdir()) and stage_of(folder) != STAGE):
        raise ModelError(
            f"{folder} exists and is not a DAM that hybridr trained, so it is not replaced",
            hint="choose another folder with --out, or remove it",
        )


def stage_of(folder: Path) -> str | None:
    """Say which stage wrote a folder; None when it has no manifest of ours."""
    try:
        return (read_manifest(folder) or {}).get("stage")
    except HybridrError:
        return None


def finished_manifest(folder: Path, key: str) -> dict[str, Any] | None:
    """Give the manifest of a DAM trained under `key`, if its files are still what was written."""
    if stage_of(folder) != STAGE:
        return None
    manifest = read_manifest(folder) or {}
    if manifest.get(STAGE, {}).get("key") != key:
        return None
    intact = all(
        (folder / name).is_file() and sha256_of(folder / name) == digest
        for name, digest in manifest["outputs"].items()
    )
    return manifest if intact else None
