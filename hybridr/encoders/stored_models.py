"""Reads sentence-transformers folders with limits on sizes, without torch, and without running their code."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import HybridrError, ModelError
from ..files.local import is_file_name, parsed_json, read_manifest, read_within, sha256_of
from .contract import WEIGHTS_FILE, require_no_links

FETCH_AGAIN = "fetch or export it again; a sentence-transformers bi-encoder with safetensors is needed"
CODE = ("auto_map", "custom_pipelines", "quantization_config", "compression_config", "trust_remote_code")
"""Keys of a configuration that name code of the model, or another form of its weights."""


def read_json(folder: Path, name: str, *, default: Any = None) -> Any:
    """Return a JSON file of a model folder. Raises ModelError if damaged, or missing without a default."""
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
    """Return a JSON object of a model folder, empty if the file is missing and not `needed`.

    Raises ModelError if it is damaged, or names code.
    """
    record = read_json(folder, file, default=None if needed else {})
    if not isinstance(record, dict):
        raise ModelError(f"the model {folder} is damaged: {file} is not a JSON object", hint=FETCH_AGAIN)
    for name, value in record.items():
        kernels = name.endswith("attn_implementation") and value not in (None, "eager", "sdpa")
        if (name in CODE and value) or (kernels and "/" in str(value)):
            raise ModelError(
                f"the model {folder} asks in {file} for {name} = {str(value)[:80]!r}, which is third-party "
                "code; it was not opened",
                hint="take a model of plain weights: hybridr runs no code that comes with a model",
            )
    return record


@contextmanager
def explain_errors(folder: Path) -> Iterator[None]:
    """Turn any error of the block into a ModelError with the reason why the model cannot be opened."""
    try:
        yield
    except HybridrError:
        raise
    except Exception as error:  # transformers, safetensors and tokenizers raise many kinds
        reason, hint = str(error).strip() or type(error).__name__, FETCH_AGAIN
        message = f"the model {folder} cannot be opened: {reason.splitlines()[0]}"
        if isinstance(error, pickle.UnpicklingError) or "weights_only" in reason:
            message = f"the weights of {folder} are not plain tensors; unopened, since that may run code"
            hint = "take the model from a source you trust, saved as safetensors"
        elif "ignore_mismatched_sizes" in reason:
            message = f"the weights of {folder} have other sizes than config.json says"
        raise ModelError(message, hint=hint) from error


def read_modules(folder: Path) -> list[tuple[str, str]]:
    """Return kind and path of each module, in order. Raises ModelError."""
    with explain_errors(folder):
        return [
            (str(module["type"]).rsplit(".", 1)[-1], str(module["path"]))  # the class without its package
            for module in read_json(folder, "modules.json")
        ]


def backbone_folder(folder: Path) -> Path:
    """Return the backbone's folder: `folder`, or the one that modules.json names. Raises ModelError."""
    places = [path for kind, path in read_modules(folder) if kind == "Transformer"]
    return inner_folder(folder, places[0]) if places else folder


def inner_folder(folder: Path, name: str) -> Path:
    """Return the folder of a module. Raises ModelError for a place outside the model."""
    place = Path(name)
    if place.is_absolute() or ".." in place.parts:
        raise ModelError(f"{folder} names the module {place}, which is outside it", hint=FETCH_AGAIN)
    return folder / place


CLASSIFIER = "ForSequenceClassification"
BRACKETS = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
ANGLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "cls_token": "<s>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
SPECIAL_TOKENS = {kind: ANGLES for kind in ("roberta", "xlm-roberta", "camembert")}
SPECIAL_TOKENS["mpnet"] = ANGLES | {"unk_token": "[UNK]"}
"""Special tokens by `model_type`; other types use brackets, like BERT and DistilBERT."""
FILES = ("special_tokens_map.json", "tokenizer_config.json")
STEMS = {
    "albert": "Albert",
    "bert": "Bert",
    "camembert": "Camembert",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "modernbert": "ModernBert",
    "mpnet": "MPNet",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
}
"""The supported kinds of backbone, and the prefix of their classes in transformers."""
OLD_WEIGHTS, OLD_SHARDS = "pytorch_model.bin", "pytorch_model.bin.index.json"
INDEX_FILE = f"{WEIGHTS_FILE}.index.json"
"""Maps each weight to its file, if there are several files."""
MAX_SHARDS = 1_000
MAX_LAYERS = 1_000


def known_configuration(folder: Path) -> dict[str, Any]:
    """Return `config.json` of a supported kind of backbone. Raises ModelError."""
    record = read_object(folder, "config.json", needed=True)
    kind = record.get("model_type")
    if not isinstance(kind, str) or kind not in STEMS:
        raise ModelError(
            f"the model {folder} is of the kind {kind!r}; one of {', '.join(STEMS)} is needed",
            hint="other kinds are not opened, nor is a model with code of its own",
        )
    if record.get("position_embedding_type") not in (None, "absolute"):
        positions = record["position_embedding_type"]
        raise ModelError(f"the model {folder} has {positions!r} positions, not absolute ones")
    layers = record.get("num_hidden_layers", record.get("n_layers", 1))
    if not isinstance(layers, int) or not 0 < layers <= MAX_LAYERS:
        raise ModelError(f"the model {folder} has {str(layers)[:20]} layers; 1..{MAX_LAYERS} are supported")
    return record


def require_embeddings(folder: Path, tokenizer: str, rows: int) -> None:
    """Raise ModelError if a tokenizer has ids beyond the model's `rows` of embeddings."""
    highest = max(Tokenizer.from_str(tokenizer).get_vocab().values(), default=0)
    if highest >= rows:
        raise ModelError(
            f"the tokenizer of {folder} has ids up to {highest:,}; the model has {rows:,} embeddings",
            hint="the tokenizer belongs to another model: fetch the folder again",
        )


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a folder's weights: one, or the shards that `model.safetensors.index.json` names.

    Raises ModelError if there are none, or a shard is missing.
    """
    for name in (WEIGHTS_FILE, OLD_WEIGHTS):
        if (folder / name).is_file():
            return [folder / name]
    if not (folder / INDEX_FILE).is_file():
        sharded = (folder / OLD_SHARDS).is_file()
        hint = (
            "its weights are shards of torch: save_pretrained of transformers writes safetensors"
            if sharded
            else FETCH_AGAIN
        )
        raise ModelError(f"the model {folder} has no {WEIGHTS_FILE}", hint=hint)
    places = read_object(folder, INDEX_FILE).get("weight_map")
    names = sorted(set(map(str, places.values()))) if isinstance(places, dict) else []
    if not 0 < len(names) <= MAX_SHARDS:
        raise ModelError(f"{INDEX_FILE} of {folder} names {len(names):,} files of weights", hint=FETCH_AGAIN)
    for name in names:
        if not is_file_name(name) or not name.endswith(".safetensors") or not (folder / name).is_file():
            raise ModelError(
                f"{INDEX_FILE} of {folder} names {name[:80]!r}, which is missing", hint=FETCH_AGAIN
            )
    return [folder / name for name in names]


def require_intact(folder: Path) -> None:
    """Raise ModelError if the folder is not a bi-encoder, has links to other places, or changed weights."""
    if not (folder / "modules.json").is_file():
        problem = "has no modules.json" if folder.is_dir() else "does not exist"
        raise ModelError(
            f"{folder} {problem}: a sentence-transformers bi-encoder is needed", hint=FETCH_AGAIN
        )
    require_no_links(folder)
    expected = (read_manifest(folder) or {}).get("outputs", {}).get(WEIGHTS_FILE)
    weights = folder / WEIGHTS_FILE
    if expected and (not weights.is_file() or sha256_of(weights) != expected):
        raise ModelError(
            f"the model {folder} is damaged: {WEIGHTS_FILE} is not what was exported", hint=FETCH_AGAIN
        )


def read_special_tokens(folder: Path | None, kind: str) -> dict[str, str]:
    """Return the special tokens by role, such as "pad_token". Raises ModelError for a damaged file."""
    tokens = dict(SPECIAL_TOKENS.get(kind, BRACKETS))
    for file in FILES if folder else ():
        record = read_object(Path(str(folder)), file)
        for role in tokens:
            token = record.get(role)
            content = token.get("content") if isinstance(token, dict) else token
            tokens[role] = content if isinstance(content, str) and content else tokens[role]
    return tokens
