"""Tensors and JSON out of checkpoint files, never anything else: weights-only unpickling or safetensors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, TypeAlias

from ..encoding.retriever import stored_tensors
from ..errors import MissingExtra, ModelError
from ..files.foreign import parsed_json, read_within

try:
    import torch
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "train", "opening a checkpoint") from missing

Tensors: TypeAlias = dict[str, torch.Tensor]

FETCH_AGAIN = "the file is damaged: fetch or make it again"


def read_tensors(source: Path | bytes, name: str) -> Tensors:
    """Read a `.bin` (torch pickle) or `.safetensors` file to float32 tensors on the CPU.

    `name` says in errors which file it was. Whole numbers keep their type. Raises ModelError when the file
    is missing, truncated, asks to run code, or holds anything but finite tensors.
    """
    if isinstance(source, Path) and not source.is_file():
        raise ModelError(f"{name} is missing", hint=FETCH_AGAIN)
    try:
        return finite(stored_tensors(source, name), name)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{name} is not a plain set of tensors; it was not opened, since it may run code when it is",
            hint="take the checkpoint from a source you trust, saved as tensors only",
        ) from error
    except ModelError:
        raise
    except Exception as error:  # torch, zipfile and safetensors raise many kinds
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(f"{name} cannot be read: {reason}", hint=FETCH_AGAIN) from error


def finite(found: Tensors, name: str) -> Tensors:
    """Give floating-point tensors as float32. Raises ModelError when a value is not finite."""
    tensors = {key: value.float() if value.is_floating_point() else value for key, value in found.items()}
    broken = [key for key, value in tensors.items() if not bool(torch.isfinite(value).all())]
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
