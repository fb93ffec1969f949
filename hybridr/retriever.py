"""A sentence-transformers bi-encoder in torch: what is adapted, and what is exported."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .encoder import TOKENIZER_FILE, TextTokenizer, Vectors, checked_limit, encode_ids, prefixed
from .errors import MissingExtra, ModelError
from .manifest import fingerprint, read_manifest, sha256_of

try:
    import torch
    import transformers
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "train", "adapting or exporting a model") from missing

WEIGHTS_FILE = "model.safetensors"
KNOWN_MODULES = {"Transformer", "Pooling", "Normalize"}
SIMILARITIES = {None: "cosine", "cosine": "cosine", "dot": "ip", "dot_product": "ip"}


@dataclass(frozen=True)
class Usage:
    """How token states become a vector: what a fingerprint holds beside weights and tokenizer."""

    pooling: str
    """"mean" over the unmasked tokens, or "cls"."""
    similarity: str
    """"cosine" (vectors are scaled to length 1) or "ip"."""
    prefixes: Mapping[str, str]
    """What is put before a "query" and a "document"."""
    max_tokens: int
    """Input limit with [CLS] and [SEP]."""


class BackboneModel(torch.nn.Module):
    """A backbone and how it is used: what all that encodes or scores with one has in common."""

    def __init__(self, backbone: Any, usage: Usage, folder: Path | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.usage = usage
        self.folder = folder

    @property
    def config(self) -> Any:
        """The configuration of the backbone."""
        return self.backbone.config

    @property
    def similarity(self) -> str:
        """How two vectors are compared: "cosine" or "ip"."""
        return self.usage.similarity

    @property
    def max_tokens(self) -> int:
        """Input limit with [CLS] and [SEP]."""
        return self.usage.max_tokens

    @property
    def max_positions(self) -> int:
        """The longest input that the backbone has positions for."""
        return longest_input(self.config)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.backbone.parameters()).device
        return device

    def limit(self, max_tokens: int | None) -> int:
        """Give the token limit to use. Raises DataError when it cannot be."""
        return checked_limit(max_tokens, self.max_tokens, self.max_positions)

    def pool(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Give vectors `(n, dim)` of states `(n, tokens, dim)`."""
        if self.usage.pooling == "cls":
            vectors = states[:, 0]
        else:
            kept = mask.unsqueeze(-1).to(states.dtype)  # (n, tokens, 1)
            vectors = (states * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(vectors, dim=-1) if self.similarity == "cosine" else vectors

    def answer(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Give what a batch is run for: vectors or scores."""
        answer: torch.Tensor = self(*inputs)
        return answer

    def run(self, *arrays: NDArray[np.int64]) -> Vectors:
        """Run one batch without gradients."""
        self.eval()
        with torch.inference_mode():
            found = self.answer(*(torch.from_numpy(array).to(self.device) for array in arrays))
        result: Vectors = found.float().cpu().numpy()
        return result


class Retriever(BackboneModel):
    """Backbone, pooling and normalisation; has what `Encoder` asks for, on any torch device."""

    def __init__(self, backbone: Any, tokenizer: str, usage: Usage, folder: Path | None = None) -> None:
        super().__init__(backbone, usage, folder)
        self.tokenizer_json = canonical_tokenizer(tokenizer)
        self.tokenizer = TextTokenizer(self.tokenizer_json)

    @property
    def dim(self) -> int:
        """Size of a vector."""
        return int(self.config.hidden_size)

    @property
    def input_names(self) -> list[str]:
        """What the backbone reads; kinds of tokens only where it has more than one, as BERT has."""
        kinds = ["token_type_ids"] if getattr(self.config, "type_vocab_size", 0) > 1 else []
        return ["input_ids", "attention_mask", *kinds]

    @property
    def base(self) -> str:
        """The name of the model that this one was made from, without its path."""
        manifest = (read_manifest(self.folder) if self.folder else None) or {}
        name = manifest.get("encoder", {}).get("base") or (self.folder.name if self.folder else "")
        return str(name)

    @property
    def fingerprint(self) -> str:
        """Hash weights (as they are now, in fp32), tokenizer and usage; 64 hex digits."""
        parts = {"weights": digest_weights(self.backbone), "tokenizer": json.loads(self.tokenizer_json)}
        return fingerprint(parts | asdict(self.usage))

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give token states `(n, tokens, dim)` and vectors `(n, dim)`; ids and mask are `(n, tokens)`."""
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **kinds).last_hidden_state
        return states, self.pool(states, attention_mask)

    def answer(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Give the vectors `(n, dim)` of ids and mask."""
        vectors: torch.Tensor = self(*inputs)[1]
        return vectors

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode queries to float32 `(n, dim)`, in the order of `texts`. Raises DataError."""
        return self._encode(texts, self.usage.prefixes["query"], max_tokens)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode documents to float32 `(n, dim)`, in the order of `texts`. Raises DataError."""
        return self._encode(texts, self.usage.prefixes["document"], max_tokens)

    def _encode(self, texts: Sequence[str], prefix: str, max_tokens: int | None) -> Vectors:
        rows = list(self.tokenizer.ids(prefixed(texts, prefix), self.limit(max_tokens)))
        return encode_ids(rows, self.dim, self.run)


def read_retriever(folder: Path | str, *, max_tokens: int | None = None) -> Retriever:
    """Open a sentence-transformers bi-encoder in fp32 on the CPU.

    The input limit is the model's own, or `max_tokens` if that is lower. Raises ModelError when the folder
    is missing, damaged, or holds another kind of model.
    """
    folder = Path(folder)
    require_intact(folder)
    usage = read_usage(folder, max_tokens)
    try:
        with no_bars(), no_remarks():
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


FETCH_AGAIN = "fetch or export it again; a sentence-transformers bi-encoder with safetensors is needed"


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
    chosen = [record["pooling_mode"]] if "pooling_mode" in record else [
        named.get(key, key) for key, value in record.items() if key.startswith("pooling_mode_") and value
    ]  # fmt: skip
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


def longest_input(config: Any) -> int:
    """Give the number of positions; RoBERTa's kin lose those up to the padding id."""
    positions = int(getattr(config, "max_position_embeddings", 512))
    return (
        positions - config.pad_token_id - 1 if config.model_type in {"roberta", "xlm-roberta"} else positions
    )


def read_tokenizer(folder: Path) -> str:
    """Read the tokenizer as the JSON of the `tokenizers` package."""
    path = folder / TOKENIZER_FILE
    if path.is_file():
        return path.read_text(encoding="utf-8")
    fast = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, use_fast=True)
    return str(fast.backend_tokenizer.to_str())


def canonical_tokenizer(definition: str) -> str:
    """Drop the limits and padding that a tokenizer file may carry: they belong to the caller."""
    record = json.loads(definition)
    return json.dumps(record | {"truncation": None, "padding": None}, ensure_ascii=False)


def drop_missing(backbone: Any, missing: set[str], folder: Path) -> None:
    """Remove an untrained pooler, which the vectors do not use; any other missing weight is an error."""
    lost = sorted(name for name in missing if not name.startswith("pooler."))
    if lost:
        raise ModelError(f"the model {folder} lacks {len(lost)} weights, such as {lost[0]}", hint=FETCH_AGAIN)
    if missing:
        backbone.pooler = None


def digest_weights(backbone: torch.nn.Module) -> str:
    """Hash names, shapes and fp32 values of the weights that reach the vectors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(backbone.state_dict().items()):
        if name.startswith("pooler."):
            continue
        digest.update(f"{name} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


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
def no_bars() -> Iterator[None]:
    """Keep transformers from drawing its own progress bars."""
    logging: Any = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def no_remarks() -> Iterator[None]:
    """Keep transformers from reporting what it loads: sizes and names are checked here."""
    logging: Any = transformers.utils.logging
    former = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(former)
