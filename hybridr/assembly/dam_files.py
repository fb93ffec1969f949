"""Writes a trained backbone as a masked-LM checkpoint folder that transformers and `read_dam` open."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..encoder import TOKENIZER_FILE
from ..manifest import write_json
from ..retriever import WEIGHTS_FILE, read_json
from .backbone import Dam

CONFIG_FILE, TOKENIZER_CONFIG_FILE = "config.json", "tokenizer_config.json"
COPIED = ("vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json")
LOADER = {
    "bert": "BertTokenizerFast",
    "roberta": "RobertaTokenizerFast",
    "distilbert": "DistilBertTokenizerFast",
}


def write_dam_files(
    dam: Dam, folder: Path, *, heads: Mapping[str, torch.Tensor] | None = None, language_head: bool = True
) -> list[str]:
    """Write weights, configuration and tokenizer into `folder`, and name the files.

    `heads` are weights of a ranker's head besides; without `language_head` that of masked-LM is left out.
    """
    write_weights(dam.model, folder, heads or {}, language_head)
    return [WEIGHTS_FILE, CONFIG_FILE, *write_tokenizer(dam, folder)]


def write_weights(model: Any, folder: Path, heads: Mapping[str, torch.Tensor], language_head: bool) -> None:
    """Write the weights under their own names, tied ones once, and the configuration."""
    tied, inner = tied_names(model), f"{model.base_model_prefix}."
    weights = {
        name: value
        for name, value in model.state_dict().items()
        if name not in tied and (language_head or name.startswith(inner))
    }
    plain = {
        name: value.detach().float().cpu().contiguous() for name, value in (weights | dict(heads)).items()
    }
    save_file(plain, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    configuration = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "float32"}
    write_json(folder / CONFIG_FILE, {key: value for key, value in configuration.items() if key[0] != "_"})


def tied_names(model: Any) -> set[str]:
    """Name what is another weight once more, as the decoder is the word embeddings."""
    first: dict[int, str] = {}
    return {
        name
        for name, value in model.state_dict(keep_vars=True).items()
        if first.setdefault(value.data_ptr(), name) != name
    }


def write_tokenizer(dam: Dam, folder: Path) -> list[str]:
    """Write the tokenizer as it was, and what it needs to be opened by transformers; name the files."""
    copied = [name for name in COPIED if (dam.folder / name).is_file()]
    for name in copied:
        shutil.copyfile(dam.folder / name, folder / name)
    if dam.tokenizer is not None:
        (folder / TOKENIZER_FILE).write_text(dam.tokenizer, encoding="utf-8")
        copied.append(TOKENIZER_FILE)
    own = read_json(dam.folder, TOKENIZER_CONFIG_FILE, default={})
    usual = {"tokenizer_class": LOADER[dam.model.config.model_type], **dam.special_tokens}
    write_json(folder / TOKENIZER_CONFIG_FILE, usual | own | {"model_max_length": dam.max_positions})
    return [*copied, TOKENIZER_CONFIG_FILE]
