"""Writes a trained DAM as a masked-LM checkpoint folder that transformers and `read_dam` open."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ..assembly.backbone import Dam
from ..encoder import TOKENIZER_FILE
from ..errors import HybridrError, ModelError
from ..manifest import read_manifest, sha256_of, write_json, write_manifest
from ..retriever import WEIGHTS_FILE, read_json

STAGE = "dam"
STATE_FOLDER = ".training"
COPIED = ("vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json")
LOADER = {
    "bert": "BertTokenizerFast",
    "roberta": "RobertaTokenizerFast",
    "distilbert": "DistilBertTokenizerFast",
}


def write_dam(dam: Dam, folder: Path, *, attachments: Mapping[str, Path], **record: Any) -> dict[str, Any]:
    """Write weights, configuration, tokenizer and manifest (of `record`) into an empty folder."""
    write_weights(dam.model, folder)
    write_tokenizer(dam, folder)
    for name, path in attachments.items():
        shutil.copyfile(path, folder / name)
    files = sorted(path for path in folder.iterdir() if path.is_file())
    for path in files:
        path.chmod(0o644)
    return write_manifest(folder, stage=STAGE, outputs=[path.name for path in files], **record)


def write_weights(model: Any, folder: Path) -> None:
    """Write the weights under their own names, tied ones once, and the configuration."""
    tied = tied_names(model)
    weights = {
        name: value.detach().float().cpu().contiguous()
        for name, value in model.state_dict().items()
        if name not in tied
    }
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    configuration = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "float32"}
    write_json(folder / "config.json", {key: value for key, value in configuration.items() if key[0] != "_"})


def tied_names(model: Any) -> set[str]:
    """Name what is another weight once more, as the decoder is the word embeddings."""
    first: dict[int, str] = {}
    return {
        name
        for name, value in model.state_dict(keep_vars=True).items()
        if first.setdefault(value.data_ptr(), name) != name
    }


def write_tokenizer(dam: Dam, folder: Path) -> None:
    """Write the tokenizer as it was, and what it needs to be opened by transformers."""
    (folder / TOKENIZER_FILE).write_text(dam.tokenizer or "", encoding="utf-8")
    for name in COPIED:
        if (dam.folder / name).is_file():
            shutil.copyfile(dam.folder / name, folder / name)
    own = read_json(dam.folder, "tokenizer_config.json", default={})
    usual = {"tokenizer_class": LOADER[dam.model.config.model_type], **dam.special_tokens}
    write_json(folder / "tokenizer_config.json", usual | own | {"model_max_length": dam.max_positions})


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
