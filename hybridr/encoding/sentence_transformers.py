"""A sentence-transformers folder: what is read of it, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from ..errors import MissingExtra, ModelError
from ..files.manifest import read_manifest, sha256_of
from .contract import WEIGHTS_FILE, Usage, longest_input
from .tokens import TOKENIZER_FILE

if TYPE_CHECKING:
    from .retriever import Retriever

KNOWN_MODULES = {"Transformer", "Pooling", "Normalize"}
SIMILARITIES = {None: "cosine", "cosine": "cosine", "dot": "ip", "dot_product": "ip"}
FETCH_AGAIN = "fetch or export it again; a sentence-transformers bi-encoder with safetensors is needed"
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
KINDS = {kind: ANGLES for kind in ("roberta", "xlm-roberta", "camembert")}
KINDS["mpnet"] = ANGLES | {"unk_token": "[UNK]"}
"""By `model_type`; all others write brackets, as BERT and DistilBERT do."""
FILES = ("special_tokens_map.json", "tokenizer_config.json")


def read_retriever(folder: Path | str, *, max_tokens: int | None = None) -> Retriever:
    """Open a sentence-transformers bi-encoder in fp32 on the CPU.

    The input limit is the model's own, or `max_tokens` if that is lower. Raises ModelError when the folder
    is missing, damaged, or holds another kind of model, MissingExtra without torch.
    """
    folder = Path(folder)
    require_intact(folder)
    usage = read_usage(folder, max_tokens)
    from .retriever import Retriever

    transformers = imported_transformers()
    try:
        with quiet():
            backbone, info = transformers.AutoModel.from_pretrained(
                folder, local_files_only=True, attn_implementation="eager", output_loading_info=True
            )
        tokenizer = read_tokenizer(folder)
    except Exception as error:  # transformers, safetensors and tokenizers raise many kinds
        raise unreadable(folder, error) from error
    require_same_model(folder, backbone, tokenizer, info)
    drop_missing(backbone, set(info["missing_keys"]), folder)
    limit = min(usage.max_tokens, longest_input(backbone.config))
    return Retriever(backbone.float().eval(), tokenizer, replace(usage, max_tokens=limit), folder)


def imported_transformers() -> Any:
    """Import transformers. Raises MissingExtra: what encodes and searches does without."""
    try:
        import transformers
    except ImportError as missing:
        raise MissingExtra(missing.name or "torch", "train", "adapting or exporting a model") from missing
    return transformers


def unreadable(folder: Path, error: Exception) -> ModelError:
    """Say why a model cannot be opened."""
    said = str(error).strip() or type(error).__name__
    if isinstance(error, pickle.UnpicklingError) or "weights_only" in said:
        return ModelError(
            f"the weights of {folder} are not a plain set of tensors; they were not opened, since that may "
            "run code",
            hint="take the model from a source you trust, saved as safetensors",
        )
    if "ignore_mismatched_sizes" in said:
        return ModelError(f"the weights of {folder} have other sizes than config.json says", hint=FETCH_AGAIN)
    return ModelError(f"the model {folder} cannot be opened: {said.splitlines()[0]}", hint=FETCH_AGAIN)


def require_same_model(folder: Path, backbone: Any, tokenizer: str, info: Mapping[str, Any]) -> None:
    """Raise ModelError when configuration or tokenizer belong to another model than the weights."""
    beyond = sorted(key for key in info["unexpected_keys"] if ".layer." in key)
    if beyond:
        raise ModelError(
            f"the model {folder} has more layers than config.json says, such as {beyond[0]}", hint=FETCH_AGAIN
        )
    highest = max(Tokenizer.from_str(tokenizer).get_vocab().values(), default=0)
    rows = int(backbone.get_input_embeddings().weight.shape[0])
    if highest >= rows:
        raise ModelError(
            f"the tokenizer of {folder} has ids up to {highest:,}, the model {rows:,} embeddings",
            hint="the tokenizer belongs to another model: fetch the folder again",
        )


def require_intact(folder: Path) -> None:
    """Raise ModelError when the folder is no bi-encoder, or its weights are not those of its manifest."""
    if not (folder / "modules.json").is_file():
        found = "has no modules.json" if folder.is_dir() else "does not exist"
        raise ModelError(f"{folder} {found}: a sentence-transformers bi-encoder is needed", hint=FETCH_AGAIN)
    expected = (read_manifest(folder) or {}).get("outputs", {}).get(WEIGHTS_FILE)
    weights = folder / WEIGHTS_FILE
    if expected and (not weights.is_file() or sha256_of(weights) != expected):
        raise ModelError(
            f"the model {folder} is damaged: {WEIGHTS_FILE} is not what was exported", hint=FETCH_AGAIN
        )


def read_usage(folder: Path, max_tokens: int | None = None) -> Usage:
    """Read pooling, similarity, prefixes and limit from the sentence-transformers files."""
    modules = {str(module["type"]).rsplit(".", 1)[-1]: module for module in read_json(folder, "modules.json")}
    unknown = modules.keys() - KNOWN_MODULES
    if unknown or "Pooling" not in modules:
        what = f"the module {min(unknown)}" if unknown else "no pooling"
        raise ModelError(f"{folder} has {what}: a backbone with mean or cls pooling is needed")
    whole = read_json(folder, "config_sentence_transformers.json", default={})
    compared = "cosine" if "Normalize" in modules else whole.get("similarity_fn_name")
    if compared not in SIMILARITIES:
        raise ModelError(f"{folder} compares vectors by '{compared}'; cosine or dot is needed")
    prompts = whole.get("prompts") or {}
    return Usage(
        pooling=read_pooling(folder / modules["Pooling"]["path"]),
        similarity=SIMILARITIES[compared],
        prefixes={side: str(prompts.get(side) or "") for side in ("query", "document")},
        max_tokens=min(max_tokens or 512, own_limit(folder)),
    )


def read_pooling(folder: Path) -> str:
    """Read the pooling, "mean" or "cls", as older and newer sentence-transformers write it."""
    record = read_json(folder, "config.json")
    named = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    chosen = (
        [record["pooling_mode"]]
        if "pooling_mode" in record
        else [
            named.get(key, key) for key, value in record.items() if key.startswith("pooling_mode_") and value
        ]
    )
    if chosen not in (["mean"], ["cls"]) or not record.get("include_prompt", True):
        raise ModelError(f"{folder} pools by {chosen}; mean or cls over the whole input is needed")
    return str(chosen[0])


def own_limit(folder: Path) -> int:
    """Read the model's own token limit; 512 when it names none."""
    limits = (
        read_json(folder, "sentence_bert_config.json", default={}).get("max_seq_length"),
        read_json(folder, "tokenizer_config.json", default={}).get("model_max_length"),
    )
    return min(int(next((limit for limit in limits if limit), 512)), 512)


def read_tokenizer(folder: Path) -> str:
    """Read the tokenizer as the JSON of the `tokenizers` package."""
    path = folder / TOKENIZER_FILE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    fast = imported_transformers().AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
    return str(fast.backend_tokenizer.to_str())


def drop_missing(backbone: Any, missing: set[str], folder: Path) -> None:
    """Remove an untrained pooler, which the vectors do not use; any other missing weight is an error."""
    lost = sorted(name for name in missing if not name.startswith("pooler."))
    if lost:
        raise ModelError(f"the model {folder} lacks {len(lost)} weights, such as {lost[0]}", hint=FETCH_AGAIN)
    if missing:
        backbone.pooler = None


def read_json(folder: Path, name: str, *, default: Any = None) -> Any:
    """Read a JSON file of a model folder; raise ModelError when it is damaged, or missing without default."""
    path = folder / name
    if not path.is_file():
        if default is None:
            raise ModelError(f"the model {folder} is damaged: {name} is missing", hint=FETCH_AGAIN)
        return default
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"the model {folder} is damaged: {name}: {error}", hint=FETCH_AGAIN) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and from remarks on what it loads: it is checked here."""
    logging: Any = imported_transformers().utils.logging
    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def read_special_tokens(folder: Path | None, kind: str) -> dict[str, str]:
    """Name the special tokens by role, as "pad_token". Raises ModelError when a file is damaged."""
    named = dict(KINDS.get(kind, BRACKETS))
    for file in FILES if folder else ():
        record = read_object(Path(str(folder)), file)
        for role in named:
            token = record.get(role)
            named[role] = (token.get("content") if isinstance(token, dict) else token) or named[role]
    return named


def read_object(folder: Path, file: str) -> dict[str, Any]:
    """Read a JSON object, empty where the file is missing. Raises ModelError when it is damaged."""
    record = read_json(folder, file, default={})
    if not isinstance(record, dict):
        raise ModelError(f"the model {folder} is damaged: {file} holds no JSON object", hint=FETCH_AGAIN)
    return record
