"""Reads the files of a REM from a folder or a zip; only tensors and JSON are read, by weights-only unpickling
or safetensors.
"""

from __future__ import annotations

import hashlib
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ..encoders.contract import require_no_links
from ..errors import ModelError, extra, first_line
from ..files.foreign import members_within, parsed_json, read_within, regular
from ..files.manifest import fingerprint
from .torch_models import stored_tensors

with extra("train", "opening a checkpoint"):
    import torch

Tensors: TypeAlias = dict[str, torch.Tensor]

FETCH_AGAIN = "the file is damaged: fetch or make it again"


def read_tensors(source: Path | bytes, name: str) -> Tensors:
    """Read a `.bin` (torch pickle) or `.safetensors` file to float32 tensors on the CPU.

    `name` is the file's name in errors. Whole numbers keep their type. Raises ModelError if the file is
    missing, truncated, asks to run code, or holds anything but finite tensors.
    """
    if isinstance(source, Path) and not source.is_file():
        raise ModelError(f"{name} is missing", hint=FETCH_AGAIN)
    try:
        stored = stored_tensors(source, name)
        tensors = {
            key: value.float() if value.is_floating_point() else value for key, value in stored.items()
        }
        broken = [key for key, value in tensors.items() if not bool(torch.isfinite(value).all())]
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{name} is not a plain set of tensors; it was not opened, since it may run code when it is",
            hint="take the checkpoint from a source you trust, saved as tensors only",
        ) from error
    except ModelError:
        raise
    except Exception as error:  # torch, zipfile and safetensors raise many kinds
        raise ModelError(f"{name} cannot be read: {first_line(error)}", hint=FETCH_AGAIN) from error
    if broken:
        raise ModelError(f"{name} holds values that are not finite, in {broken[0]}", hint=FETCH_AGAIN)
    return tensors


def read_record(source: Path | bytes, name: str) -> dict[str, Any]:
    """Read a JSON object. Raises ModelError."""
    try:
        record = parsed_json(source if isinstance(source, bytes) else read_within(source))
    except ValueError as error:
        raise ModelError(f"{name} is not valid JSON: {error}", hint=FETCH_AGAIN) from error
    if not isinstance(record, dict):
        raise ModelError(f"{name} holds no JSON object", hint=FETCH_AGAIN)
    return record


CONFIG, WEIGHTS = "adapter_config.json", "pytorch_adapter.bin"
HEAD_CONFIG, HEAD_WEIGHTS = "head_config.json", "pytorch_model_head.bin"
EMBEDDINGS = "embeddings.bin"
KNOWN = {CONFIG, WEIGHTS, HEAD_CONFIG, HEAD_WEIGHTS, EMBEDDINGS}
"""What is read; `training_args.bin` and the rest are never opened."""

TYPES: dict[str, type] = {"name": str, "model_type": str, "hidden_size": int, "config": dict}
"""What `adapter_config.json` must hold."""

RANKERS = {"dense": "dense", "unicoil": "unicoil", "splade": "splade", "colbert": "colbert"}
"""How the end of `model_class` names the ranker; the re-ranker's class names none."""


@dataclass(frozen=True)
class RemFiles:
    """The files of a REM: the configuration is read, weights are read when asked for."""

    origin: Path
    files: Mapping[str, Path | bytes]
    """The known files by base name."""
    record: Mapping[str, Any]
    """`adapter_config.json`."""

    @property
    def name(self) -> str:
        """The adapter's name, which is a part of every key in its files."""
        return str(self.record["name"])

    @property
    def ranker(self) -> str | None:
        """The ranker that the REM was trained for, by its `model_class`; None if that names none."""
        kind = str(self.record.get("model_class") or "").lower()
        return next((ranker for end, ranker in RANKERS.items() if kind.endswith(end)), None)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of design and weights; 64 hex digits."""
        digest = hashlib.sha256(fingerprint(self.record["config"]).encode())
        for file in (WEIGHTS, HEAD_WEIGHTS, EMBEDDINGS):
            for key, value in sorted(self.tensors(file).items()):
                digest.update(key.encode() + value.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def tensors(self, file: str) -> Tensors:
        """Return the tensors of one weight file; empty if the REM lacks it. Raises ModelError."""
        return read_tensors(self.files[file], self.path_of(file)) if file in self.files else {}

    def path_of(self, file: str) -> str:
        """Return a file's path as text for messages."""
        return f"{self.origin}: {file}"


def read_rem(path: Path) -> RemFiles:
    """Return the REM in a folder or zip, at any depth. Raises ModelError."""
    files = zipped_files(path) if path.is_file() else folder_files(path)
    missing = sorted({CONFIG, WEIGHTS} - files.keys())
    if missing:
        raise ModelError(
            f"{path} is not a REM: it has no {missing[0]}",
            hint="give the folder or zip that holds adapter_config.json and pytorch_adapter.bin",
        )
    record = read_record(files[CONFIG], f"{path}: {CONFIG}")
    absent = sorted(TYPES.keys() - record.keys())
    if absent:
        raise ModelError(f"{path}: {CONFIG} has no '{absent[0]}'", hint=FETCH_AGAIN)
    wrong = [name for name, kind in TYPES.items() if not isinstance(record[name], kind)]
    if wrong:
        raise ModelError(f"{path}: {CONFIG} holds a wrong '{wrong[0]}'", hint=FETCH_AGAIN)
    return RemFiles(path, files, record)


def folder_files(path: Path) -> dict[str, Path | bytes]:
    """Return base name -> path of the known files below a folder, or those of the only zip in it. Raises
    ModelError.
    """
    if not path.is_dir():
        raise ModelError(f"there is no REM {path}", hint="`hybridr models` lists the published names")
    require_no_links(path)
    files = [file for file in sorted(path.rglob("*")) if file.name in KNOWN and file.is_file()]
    zips = sorted(path.glob("*.zip"))
    if not files and len(zips) == 1:
        return zipped_files(zips[0])
    require_one(path, [str(file.parent) for file in files if file.name == CONFIG])
    return {file.name: file for file in files}


def zipped_files(path: Path) -> dict[str, Path | bytes]:
    """Return base name -> bytes of the known files in a zip; nothing is unpacked to disk. Raises
    ModelError.
    """
    try:
        with zipfile.ZipFile(regular(path)) as archive:
            members = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] in KNOWN]
            require_one(path, [name for name in members if name.endswith(CONFIG)])
            files = members_within(archive, members, path.stat().st_size)
            return {name.rsplit("/", 1)[-1]: content for name, content in files.items()}
    except ModelError:
        raise
    except Exception as error:  # zipfile and the libraries of its methods raise many kinds
        raise ModelError(f"{path} cannot be read as a zip: {error}", hint=FETCH_AGAIN) from error


def require_one(path: Path, places: list[str]) -> None:
    """Raise ModelError if more than one REM is in the same folder or zip."""
    if len(places) > 1:
        raise ModelError(f"{path} holds {len(places)} REMs: {', '.join(places)}", hint="give one of them")
