"""The JSON files of a model folder: read within limits, and without anybody's code."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import HybridrError, ModelError
from ..files.foreign import parsed_json, read_within

FETCH_AGAIN = "fetch or export it again; a sentence-transformers bi-encoder with safetensors is needed"
CODE = ("auto_map", "custom_pipelines", "quantization_config", "compression_config", "trust_remote_code")
"""Keys of a configuration that name code beside the model, or another form of its weights."""


def read_json(folder: Path, name: str, *, default: Any = None) -> Any:
    """Read a JSON file of a model folder; raise ModelError when it is damaged, or missing without default."""
    path = folder / name
    if not path.is_file():
        if default is None:
            raise ModelError(f"the model {folder} is damaged: {name} is missing", hint=FETCH_AGAIN)
        return default
    try:
        return parsed_json(read_within(path))
    except (OSError, ValueError) as error:
        raise ModelError(f"the model {folder} is damaged: {name}: {error}", hint=FETCH_AGAIN) from error


def read_object(folder: Path, file: str, *, needed: bool = False) -> dict[str, Any]:
    """Read a JSON object, empty where the file is missing and not `needed`.

    Raises ModelError when it is damaged, or names code.
    """
    record = read_json(folder, file, default=None if needed else {})
    if not isinstance(record, dict):
        raise ModelError(f"the model {folder} is damaged: {file} holds no JSON object", hint=FETCH_AGAIN)
    for name, value in record.items():
        kernels = name.endswith("attn_implementation") and value not in (None, "eager", "sdpa")
        if name in CODE and value or kernels and "/" in str(value):
            raise ModelError(
                f"the model {folder} asks in {file} for {name} = {str(value)[:80]!r}, which is code of "
                "others; it was not opened",
                hint="take a model of plain weights: hybridr runs no code that comes with a model",
            )
    return record


@contextmanager
def explaining(folder: Path) -> Iterator[None]:
    """Raise ModelError that says why a model cannot be opened, whatever is raised inside."""
    try:
        yield
    except HybridrError:
        raise
    except Exception as error:  # transformers, safetensors and tokenizers raise many kinds
        said, hint = str(error).strip() or type(error).__name__, FETCH_AGAIN
        what = f"the model {folder} cannot be opened: {said.splitlines()[0]}"
        if isinstance(error, pickle.UnpicklingError) or "weights_only" in said:
            what = f"the weights of {folder} are no plain set of tensors; unopened, since that may run code"
            hint = "take the model from a source you trust, saved as safetensors"
        elif "ignore_mismatched_sizes" in said:
            what = f"the weights of {folder} have other sizes than config.json says"
        raise ModelError(what, hint=hint) from error


def named_modules(folder: Path) -> list[tuple[str, str]]:
    """Name the kind and the path of each module, in order. Raises ModelError."""
    with explaining(folder):
        return [
            (bare_name(module["type"]), str(module["path"])) for module in read_json(folder, "modules.json")
        ]


def bare_name(kind: Any) -> str:
    """Give the name of a class without its package."""
    return str(kind).rsplit(".", 1)[-1]


def backbone_folder(folder: Path) -> Path:
    """Return where the backbone lies: `folder`, or the one in it that modules.json names, as `0_Transformer`.

    Raises ModelError.
    """
    places = [path for kind, path in named_modules(folder) if kind == "Transformer"]
    return inner_folder(folder, places[0]) if places else folder


def inner_folder(folder: Path, name: str) -> Path:
    """Return the folder of a module. Raises ModelError for a place outside of the model."""
    place = Path(name)
    if place.is_absolute() or ".." in place.parts:
        raise ModelError(f"{folder} names the module {place}, which is outside of it", hint=FETCH_AGAIN)
    return folder / place
