"""The interface of encoders, and checks of their input."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, ModelError
from ..files.local import fingerprint, read_manifest, require_own_files

Vectors: TypeAlias = NDArray[np.float32]
Forward: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64]], Vectors]
"""Token ids and mask `(n, tokens)` in, vectors `(n, dim)` out."""
StatesForward: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64]], tuple[Vectors, Vectors]]
"""Token ids and mask in, states of tokens `(n, tokens, width)` and vectors `(n, dim)` out."""
Backend: TypeAlias = Literal["onnx", "openvino", "torch"]
Precision: TypeAlias = Literal["fp32", "int8"]
"""Precision of a graph in an encoder folder."""
Arithmetic: TypeAlias = Literal["fp32", "bf16", "int8"]
"""Number format that an open encoder computes in; bf16 uses the graph of fp32."""

WEIGHTS_FILE = "model.safetensors"
ENCODED_TOGETHER = 64  # documents
MAX_PROMPT_CHARACTERS = 10_000  # before a query or a document
Token: TypeAlias = tuple[int, int, int | None]
"""Start and end of a token in characters, and the number of its word."""


@dataclass(frozen=True)
class Usage:
    """How token states become a vector: pooling, similarity, prefixes, limit. The fingerprint includes it."""

    pooling: str
    """"mean" over the unmasked tokens, or "cls"."""
    similarity: str
    """"cosine" (vectors are scaled to length 1) or "ip"."""
    prefixes: Mapping[str, str]
    """Texts that are put before a "query" and a "document"."""
    max_tokens: int
    """Input limit with [CLS] and [SEP]."""
    truncate_dim: int | None = None
    """Number of leading values of a vector that are kept (Matryoshka); None: all."""

    def record(self) -> dict[str, Any]:
        """Return the fields for a fingerprint, without those that are None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


class Reading(NamedTuple):
    """The encoder's reading of a text: its vector `(dim,)`, and the last states of its tokens.

    `states` are float32 `(tokens, width)`, `spans` the characters `[start, end)` of each token; special
    tokens and those of a prefix are left out. One forward pass gives both.
    """

    vector: Vectors
    states: Vectors
    spans: tuple[tuple[int, int], ...]


class Encoder(Protocol):
    """Interface of an encoder for search and reindexing.

    `similarity` is "cosine" (vectors of length 1) or "ip". `max_tokens` includes [CLS] and [SEP].
    `fingerprint` identifies weights and usage; precision and backend do not change it. Further abilities are
    in an attribute `offers`, an `Offers`.
    """

    @property
    def dim(self) -> int:
        """Return the dimension of a vector."""

    @property
    def similarity(self) -> str:
        """Return the similarity of two vectors, "cosine" or "ip"."""

    @property
    def max_tokens(self) -> int:
        """Return the input limit in tokens."""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of weights and usage, 64 hex digits."""

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of queries, float32 `(n, dim)`, in the order of `texts`."""

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of documents, float32 `(n, dim)`, in the order of `texts`."""


class TokenSource(Protocol):
    """Interface of an encoder for splitting into passages: limit and positions of tokens."""

    @property
    def max_tokens(self) -> int:
        """Return the input limit, with [CLS] and [SEP]."""

    def token_spans(self, text: str, limit: int) -> Sequence[Token]:
        """Return the first `limit` tokens of a text, without special ones."""

    def room(self, side: str, max_tokens: int | None = None) -> int:
        """Return the tokens of a text that fit besides the special ones and the prefix of its side
        ("query" or "document"), at least 1.
        """


@dataclass(frozen=True)
class Offers:
    """Abilities of an encoder beyond `Encoder`; the defaults are those of an encoder without `offers`.

    `languages` are ISO 639-1 codes, empty if unknown. Other processes can open the encoder from `folder`.
    `precision` and `backend` are those for documents; `precision_reason` says why, if a measurement chose
    them. Up to `calls_at_once` threads may call the encoder, best with `documents_at_once` texts each.
    `counts` returns the number of tokens of each text, with special ones, uncut and without a prefix; `spans`
    returns the positions of tokens; `width` is the dimension of a token's state of a `TokenEncoder`.
    """

    languages: tuple[str, ...] = ()
    folder: Path | None = None
    precision: str = "fp32"
    backend: str = "onnx"
    precision_reason: str = ""
    calls_at_once: int = 1
    documents_at_once: int = ENCODED_TOGETHER
    counts: Callable[[Sequence[str]], list[int]] | None = None
    spans: TokenSource | None = None
    width: int | None = None

    @property
    def takes_many(self) -> bool:
        """Return whether the encoder is fastest with larger batches than a CPU needs, as on a GPU."""
        return self.documents_at_once > ENCODED_TOGETHER

    @property
    def arithmetic(self) -> dict[str, str]:
        """Return precision and backend, on which the last digits of vectors depend."""
        return {"precision": self.precision, "backend": self.backend}


class TokenEncoder(Encoder, Protocol):
    """An encoder that also returns the states of tokens."""

    @property
    def width(self) -> int:
        """Return the dimension of a token's state."""

    def read_queries(self, texts: Sequence[str]) -> list[Reading]:
        """Return the readings of queries, in the order of `texts`; vectors are those of `encode_queries`."""

    def read_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> list[Reading]:
        """Return the readings of documents, in the order of `texts`; vectors as by `encode_documents`."""


DEFAULT_OFFERS = Offers()


def reads_tokens(encoder: object) -> TypeGuard[TokenEncoder]:
    """Return whether an encoder returns the states of tokens."""
    return offers_of(encoder).width is not None


def offers_of(encoder: object) -> Offers:
    """Return the abilities of an encoder; the defaults if it names none."""
    return getattr(encoder, "offers", DEFAULT_OFFERS)


def checked_texts(texts: Sequence[str]) -> Sequence[str]:
    """Return `texts` unchanged. Raises DataError for a single string, or an item that is not a string."""
    if isinstance(texts, str):
        raise DataError("a list of texts is needed; one string was given", hint="encode([text])")
    for position, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"text {position} is a {type(text).__name__}; a string is needed")
    return texts


def with_prefix(texts: Sequence[str], prefix: str) -> Sequence[str]:
    """Return the texts with `prefix` before each. Raises DataError like `checked_texts`."""
    return [prefix + text for text in checked_texts(texts)] if prefix else checked_texts(texts)


def checked_limit(max_tokens: int | None, default: int, longest: int) -> int:
    """Return the token limit to use, `default` for None. Raises DataError for one outside 3 to `longest`."""
    if max_tokens is None:
        return default
    if not 3 <= max_tokens <= longest:
        raise DataError(f"max_tokens {max_tokens} is outside 3..{longest}, the encoder's range")
    return max_tokens


def longest_input(config: Any) -> int:
    """Return the longest input, in tokens, that a backbone has positions for.

    RoBERTa and its relatives number positions from the padding id + 1, so earlier positions are unusable.
    """
    positions = int(getattr(config, "max_position_embeddings", 512))
    relatives = {"roberta", "xlm-roberta", "camembert", "mpnet"}
    return positions - config.pad_token_id - 1 if config.model_type in relatives else positions


def hidden_size(config: Any) -> int:
    """Return the dimension of a token's state in a backbone; DistilBERT's files call it `dim`."""
    return int(config.dim if config.model_type == "distilbert" else config.hidden_size)


def base_model_name(folder: Path | None) -> str:
    """Return the name of the model that a folder was made from; empty without a folder."""
    if folder is None:
        return ""
    name = ((read_manifest(folder) or {}).get("encoder") or {}).get("base")
    return str(name or model_name(folder))


def model_name(folder: Path) -> str:
    """Return the name of the model in a folder: the folder's name, or the repository's in the hub's cache."""
    cached = folder.parent.parent.name if folder.parent.name == "snapshots" else ""
    return cached.rpartition("--")[2] or folder.name


def weights_digest(weights: Iterable[tuple[str, NDArray[np.float32]]]) -> str:
    """Return the sha256 of names, shapes and fp32 values of the weights, in their order; 64 hex digits."""
    digest = hashlib.sha256()
    for name, values in weights:
        digest.update(f"{name} {tuple(values.shape)}\n".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def encoder_fingerprint(digest: str, tokenizer: str, usage: Usage) -> str:
    """Return the fingerprint of weights (their `weights_digest`), tokenizer and usage; 64 hex digits."""
    return fingerprint({"weights": digest, "tokenizer": json.loads(tokenizer)} | usage.record())


def require_no_links(folder: Path) -> None:
    """Raise ModelError if a file of the folder is a link to a place outside it."""
    try:
        require_own_files(folder)
    except ValueError as error:
        raise ModelError(
            f"the model {folder} is not opened: {error}", hint="copy the files into it"
        ) from None


def unit_length(states: Vectors) -> Vectors:
    """Return states `(n, width)` scaled to length 1; zeros stay zeros."""
    lengths = np.linalg.norm(states, axis=1, keepdims=True).astype(np.float32)
    return np.asarray(states * (1 / np.where(lengths > 0, lengths, np.float32(1))), dtype=np.float32)
