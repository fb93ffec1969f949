"""Reads and writes DAM folders: masked-LM checkpoints of BERT, RoBERTa or DistilBERT with tokenizer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..encoders.contract import WEIGHTS_FILE, longest_input, require_no_links
from ..encoders.stored_models import STEMS, explaining, read_object, read_special_tokens
from ..encoders.tokens import TOKENIZER_FILE, canonical_tokenizer
from ..errors import ModelError, extra
from ..files.atomic import write_json
from .rem_files import FETCH_AGAIN, Tensors, read_tensors
from .torch_models import is_place, quiet, read_configuration, read_tokenizer, require_matching_size

with extra("train", "assembling DAM and REM"):
    import torch
    import transformers
    from safetensors.torch import save_file

MODELS: dict[str, Any] = {
    "bert": transformers.BertForMaskedLM,
    "roberta": transformers.RobertaForMaskedLM,
    "distilbert": transformers.DistilBertForMaskedLM,
}
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
UNUSED = ("position_ids", "token_type_ids", "pooler.dense.weight", "pooler.dense.bias")
"""Ends of keys that old files carry and no ranker uses."""
TIED = ("decoder.weight", "decoder.bias", "vocab_projector.weight")
"""Ends of keys that newer files leave out: they are the word embeddings, and the head's own bias."""
ROLES = ("pad_token", "cls_token", "sep_token", "mask_token")
CONFIG_FILE, TOKENIZER_CONFIG_FILE = "config.json", "tokenizer_config.json"
COPIED = ("vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json")


@dataclass(frozen=True)
class Dam:
    """A masked-LM model with tokenizer, as read from its folder."""

    folder: Path
    model: Any
    """The masked-LM model, in fp32 and without dropout; its `base_model` is the backbone."""
    tokenizer: str | None
    """As JSON of the `tokenizers` package; None where the folder has none."""
    special_tokens: Mapping[str, str]
    has_language_head: bool
    """Whether the folder held the masked-LM head (a bare backbone does not)."""
    heads: Tensors = field(default_factory=dict)
    """Weights of ranker heads: full models that were trained without a REM have one."""

    @property
    def backbone(self) -> Any:
        """The encoder without the masked-LM head."""
        return self.model.base_model

    @property
    def max_positions(self) -> int:
        """The number of tokens of the longest input."""
        return longest_input(self.backbone.config)


def read_dam(folder: Path) -> Dam:
    """Read a DAM folder to the CPU. Raises ModelError if it is missing, damaged, or of another kind."""
    config = read_dam_config(folder)
    tensors, kind = read_weights(folder, config.model_type), MODELS[config.model_type]
    heads = {key: tensors.pop(key) for key in list(tensors) if key.startswith("heads.")}
    require_matching_size(folder, kind, config, tensors)
    with torch.device("meta"):
        needed = {key: tuple(value.shape) for key, value in kind(config).state_dict().items()}
    require_sizes(folder, tensors, needed, f"{config.model_type}.")
    with explaining(folder), quiet():  # the model around the tensors: no time goes into random weights
        model = kind.from_pretrained(
            None, config=config, state_dict=tensors, attn_implementation="eager", local_files_only=True
        )
    special_tokens = read_special_tokens(folder, config.model_type)
    return Dam(
        folder=folder,
        model=model.float().eval(),
        tokenizer=tokenizer_of(folder, config.model_type, config.vocab_size),
        special_tokens={role: special_tokens[role] for role in ROLES},
        has_language_head=all(key in tensors or key.endswith(TIED) for key in needed),
        heads=heads,
    )


def read_dam_config(folder: Path) -> Any:
    """Return the configuration in `config.json`. Raises ModelError for an unsupported kind of model."""
    if not (folder / "config.json").is_file():
        problem = "has no config.json" if folder.is_dir() else "does not exist"
        raise ModelError(f"the DAM {folder} {problem}", hint="`hybridr models` lists the published names")
    require_no_links(folder)
    record = read_object(folder, CONFIG_FILE)
    if str(kind := record.get("model_type")) not in MODELS:
        kinds = ", ".join(MODELS)
        raise ModelError(f"the DAM {folder} is of the kind '{kind}'; one of {kinds} is needed")
    return read_configuration(folder)


def read_weights(folder: Path, kind: str) -> Tensors:
    """Return the weights by their names in a masked-LM checkpoint, from safetensors if present. Raise
    ModelError.

    Names of bare backbones and of the first BERTs are converted; those that begin with `heads.` stay.
    """
    present = [name for name in WEIGHT_FILES if (folder / name).is_file()]
    if not present:
        raise ModelError(
            f"the DAM {folder} has no weights: {' or '.join(WEIGHT_FILES)} is needed", hint=FETCH_AGAIN
        )
    tensors = read_tensors(folder / present[0], f"{folder}: {present[0]}")
    bare = not any(key.startswith(f"{kind}.") for key in tensors)
    named = {}
    for key, value in tensors.items():
        if value.is_floating_point():
            name = key.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
                "LayerNorm.beta", "LayerNorm.bias"
            )
            named[f"{kind}.{name}" if bare and not key.startswith("heads.") else name] = value
    return named


def require_sizes(folder: Path, tensors: Tensors, needed: Mapping[str, tuple[int, ...]], prefix: str) -> None:
    """Raise ModelError if weights of the backbone are missing, too many, or of another size than needed."""
    lost = [key for key in needed if key.startswith(prefix) and key not in tensors]
    beyond = [key for key in tensors.keys() - needed.keys() if key.startswith(prefix)]
    wrong = [key for key in tensors.keys() & needed.keys() if tuple(tensors[key].shape) != needed[key]]
    beyond = [key for key in beyond if not key.endswith(UNUSED)]
    for complaint, keys in (("lacks", lost), ("has too many", beyond), ("has wrong sizes of", wrong)):
        if keys:
            raise ModelError(
                f"the DAM {folder} {complaint} weights, such as {min(keys)}",
                hint="its config.json belongs to another model, or the weights are damaged: fetch it again",
            )


def tokenizer_of(folder: Path, kind: str, vocabulary: int) -> str | None:
    """Return the tokenizer as JSON; None if the folder has none.

    Raises ModelError if the tokenizer is damaged or has ids beyond the embeddings.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    with explaining(folder):
        definition = canonical_tokenizer(read_tokenizer(folder, kind))
        words = json.loads(definition)["model"]["vocab"]
    if isinstance(words, dict) and words and max(words.values()) >= vocabulary:
        raise ModelError(
            f"the DAM {folder} has a tokenizer of {len(words):,} words and embeddings for {vocabulary:,}",
            hint="the tokenizer belongs to another model: fetch the folder again",
        )
    return definition


def write_dam_files(
    dam: Dam, folder: Path, *, heads: Mapping[str, torch.Tensor] | None = None, language_head: bool = True
) -> list[str]:
    """Write weights, configuration and tokenizer into `folder`; return the names of the files.

    `heads` are further weights, of a ranker's head; without `language_head` the masked-LM head is left out.
    """
    model, inner = dam.model, f"{dam.model.base_model_prefix}."
    first: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first.setdefault(
            value.data_ptr(), name
        )  # tied ones, as decoder and word embeddings, are written once
    weights = {
        name: value
        for name, value in model.state_dict().items()
        if name in first.values() and (language_head or name.startswith(inner))
    }
    plain = {
        name: value.detach().float().cpu().contiguous()
        for name, value in (weights | dict(heads or {})).items()
    }
    save_file(plain, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    configuration = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "float32"}
    write_json(folder / CONFIG_FILE, {key: value for key, value in configuration.items() if key[0] != "_"})
    return [WEIGHTS_FILE, CONFIG_FILE, *write_dam_tokenizer(dam, folder)]


def write_dam_tokenizer(dam: Dam, folder: Path) -> list[str]:
    """Write the tokenizer's files and its configuration for transformers; return their names."""
    copied = [name for name in COPIED if (dam.folder / name).is_file()]
    for name in copied:
        shutil.copyfile(dam.folder / name, folder / name)
    if dam.tokenizer is not None:
        (folder / TOKENIZER_FILE).write_text(dam.tokenizer, encoding="utf-8")
        copied.append(TOKENIZER_FILE)
    configuration = read_object(dam.folder, TOKENIZER_CONFIG_FILE)
    own = {name: value for name, value in configuration.items() if not is_place(name)}
    usual = {"tokenizer_class": f"{STEMS[dam.model.config.model_type]}TokenizerFast", **dam.special_tokens}
    write_json(folder / TOKENIZER_CONFIG_FILE, usual | own | {"model_max_length": dam.max_positions})
    return [*copied, TOKENIZER_CONFIG_FILE]
