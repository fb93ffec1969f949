"""Bi-encoders without torch: weights from safetensors, arithmetic in numpy, the reference for graphs.

The BERT family (BERT, RoBERTa, XLM-R, DistilBERT) is described once, as operations. `NumpyArithmetic`
computes them, `GraphArithmetic` (graphs.py) writes them as an ONNX graph. They follow transformers'
`modeling_bert.py`, `modeling_roberta.py` and `modeling_distilbert.py`.

An ensemble joins two bi-encoders: both read a text, and their concatenated vectors are projected.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from scipy.special import erf
from threadpoolctl import threadpool_limits

from ...errors import MissingExtra, ModelError
from ...files.local import read_within
from ..contract import (
    Usage,
    Vectors,
    base_model_name,
    encoder_fingerprint,
    hidden_size,
    longest_input,
    unit_length,
    weights_digest,
)
from ..model_usage import configured_tokenizer, read_usage
from ..stored_models import (
    FETCH_AGAIN,
    backbone_folder,
    explain_errors,
    known_configuration,
    require_embeddings,
    require_intact,
    weight_files,
)
from ..tokens import TOKENIZER_FILE, TextModel, TextTokenizer, canonical_tokenizer

KINDS = ("bert", "roberta", "xlm-roberta", "distilbert")
"""The supported values of `model_type`."""
EPSILON = 1e-12  # BERT's default, and DistilBERT's constant, which its configuration lacks


class Layer(NamedTuple):
    """The names of a layer's weights, without `.weight` and `.bias`."""

    query: str
    key: str
    value: str
    mixed: str
    mixed_norm: str
    wide: str
    narrow: str
    narrow_norm: str


BERT = Layer(
    *("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"),
    *("attention.output.LayerNorm", "intermediate.dense", "output.dense", "output.LayerNorm"),
)
DISTILBERT = Layer(
    *("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin"),
    *("sa_layer_norm", "ffn.lin1", "ffn.lin2", "output_layer_norm"),
)
WORDS, POSITIONS = "embeddings.word_embeddings", "embeddings.position_embeddings"
KINDS_OF_TOKENS, EMBEDDED = "embeddings.token_type_embeddings", "embeddings.LayerNorm"


def token_states(arithmetic: Any, config: Any, ids: Any, mask: Any, kinds: Any = None) -> Any:
    """Return the last states of tokens `(n, tokens, width)` for ids and mask `(n, tokens)`.

    `kinds` are the token types of a backbone with several. Values are arrays, or names in a graph, depending
    on `arithmetic`.
    """
    epsilon = float(getattr(config, "layer_norm_eps", EPSILON))
    states = arithmetic.rows(WORDS, ids)
    if config.model_type != "distilbert":
        table = KINDS_OF_TOKENS
        rows = arithmetic.first_row(table) if kinds is None else arithmetic.rows(table, kinds)
        states = arithmetic.add(states, rows)
    if config.model_type in ("roberta", "xlm-roberta"):
        places = arithmetic.rows(POSITIONS, arithmetic.places_after(ids, config.pad_token_id))
    else:
        places = arithmetic.first_rows(POSITIONS, ids)
    states = arithmetic.norm(arithmetic.add(states, places), EMBEDDED, epsilon)
    for layer in layers(config):
        query, key, value = (arithmetic.linear(states, name) for name in layer[:3])
        mixed = arithmetic.attend(query, key, value, mask, head_count(config))
        mixed = arithmetic.add(arithmetic.linear(mixed, layer.mixed), states)
        states = arithmetic.norm(mixed, layer.mixed_norm, epsilon)
        wide = arithmetic.gelu(arithmetic.linear(states, layer.wide))
        narrow = arithmetic.add(arithmetic.linear(wide, layer.narrow), states)
        states = arithmetic.norm(narrow, layer.narrow_norm, epsilon)
    return states


def layers(config: Any) -> Iterator[Layer]:
    """Yield the weight names of each layer."""
    small = config.model_type == "distilbert"
    stem, names = ("transformer.layer", DISTILBERT) if small else ("encoder.layer", BERT)
    for number in range(int(config.n_layers if small else config.num_hidden_layers)):
        yield Layer(*(f"{stem}.{number}.{name}" for name in names))


def head_count(config: Any) -> int:
    """Return the number of attention heads."""
    return int(config.n_heads if config.model_type == "distilbert" else config.num_attention_heads)


def needed_weights(config: Any) -> list[str]:
    """Return the names of the weights needed for the token states, sorted."""
    tables = [WORDS, POSITIONS, *([] if config.model_type == "distilbert" else [KINDS_OF_TOKENS])]
    modules = [EMBEDDED, *(name for layer in layers(config) for name in layer)]
    names = [f"{module}.{part}" for module in modules for part in ("weight", "bias")]
    return sorted([*(f"{table}.weight" for table in tables), *names])


WRAPPERS = ("bert.", "roberta.", "distilbert.")  # prefixes of names if a head was saved with the backbone
OLD_NAMES = {".gamma": ".weight", ".beta": ".bias"}  # ends of LayerNorm's names in files of early models
LAYER_MARK = ".layer."
ONE_THREAD: dict[str, Any] = {"limits": 1, "user_api": "blas"}
"""Limits numpy's BLAS to one thread, since on a busy machine several threads would spin while waiting."""
StoredWeights = Mapping[str, NDArray[np.float32]]


@dataclass
class NumpyArithmetic:
    """The operations of a backbone on fp32 arrays."""

    weights: StoredWeights

    def rows(self, table: str, places: NDArray[np.int64]) -> Vectors:
        """Return rows of a table."""
        return self.weights[f"{table}.weight"][places]

    def first_rows(self, table: str, like: NDArray[np.int64]) -> Vectors:
        """Return as many first rows of a table as `like` has tokens."""
        return self.weights[f"{table}.weight"][: like.shape[1]]

    def first_row(self, table: str) -> Vectors:
        """Return the first row of a table."""
        return self.weights[f"{table}.weight"][:1]

    def places_after(self, ids: NDArray[np.int64], padding: int) -> NDArray[np.int64]:
        """Return positions: non-padding tokens counted from `padding` + 1."""
        present = (ids != padding).astype(np.int64)
        result: NDArray[np.int64] = np.cumsum(present, axis=1) * present + padding
        return result

    def add(self, left: Vectors, right: Vectors) -> Vectors:
        """Return the sum of two arrays."""
        return left + right

    def linear(self, value: Vectors, name: str) -> Vectors:
        """Return the product with a weight matrix, plus its bias."""
        return value @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, value: Vectors, name: str, epsilon: float) -> Vectors:
        """Return the layer normalisation of each row."""
        centred = value - value.mean(axis=-1, keepdims=True)
        scale = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(epsilon))
        result: Vectors = centred / scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return result

    def gelu(self, value: Vectors) -> Vectors:
        """Return the exact GELU."""
        result: Vectors = value * np.float32(0.5) * (1 + erf(value * np.float32(math.sqrt(0.5))))
        return result

    def attend(
        self, query: Vectors, key: Vectors, value: Vectors, mask: NDArray[np.int64], heads: int
    ) -> Vectors:
        """Return multi-head attention: values weighted by the softmax of products of unmasked tokens."""
        texts, tokens, width = query.shape
        head_shape = (texts, tokens, heads, width // heads)
        query, key, value = (part.reshape(head_shape).transpose(0, 2, 1, 3) for part in (query, key, value))
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(math.sqrt(width // heads))
        scores = np.where(mask[:, None, None, :] > 0, scores, np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        result: Vectors = (weights @ value).transpose(0, 2, 1, 3).reshape(texts, tokens, width)
        return result


class NumpyBiEncoder(TextModel):
    """A bi-encoder of the BERT family in numpy: slow, but without torch. Exports use it like `BiEncoder`."""

    graph_only = False
    """Whether transformers cannot open the exported form."""

    def __init__(
        self,
        weights: StoredWeights,
        config: SimpleNamespace,
        tokenizer: str,
        usage: Usage,
        folder: Path | None,
        name: str = "",
    ) -> None:
        self.weights, self.base = weights, name or base_model_name(folder)
        self.config, self.max_positions = config, longest_input(config)
        self.usage = usage
        self.folder = folder
        self.tokenizer_json = canonical_tokenizer(tokenizer)
        self.tokenizer = TextTokenizer(self.tokenizer_json)
        self.arithmetic = NumpyArithmetic(weights)

    @cached_property
    def fingerprint(self) -> str:
        """Return the fingerprint of weights, tokenizer and usage, equal to that of torch's `BiEncoder`."""
        return encoder_fingerprint(
            weights_digest(sorted(self.weights.items())), self.tokenizer_json, self.usage
        )

    def read(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> tuple[Vectors, Vectors]:
        """Return the states `(n, tokens, width)` and vectors `(n, dim)` of one batch."""
        kinds = np.zeros_like(ids) if "token_type_ids" in self.input_names else None
        with threadpool_limits(**ONE_THREAD):
            states = token_states(self.arithmetic, self.config, ids, mask, kinds)
        return states, self.pool(states, mask)

    def run(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        """Return the vectors `(n, dim)` of one batch."""
        return self.read(ids, mask)[1]

    def pool(self, states: Vectors, mask: NDArray[np.int64]) -> Vectors:
        """Return vectors `(n, dim)` pooled from states `(n, tokens, dim)`."""
        if self.usage.pooling == "cls":
            vectors = states[:, 0]
        else:
            weights = mask[:, :, None].astype(np.float32)
            vectors = (states * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1e-9)
        vectors = vectors[:, : self.usage.truncate_dim]
        if self.similarity != "cosine":
            return vectors
        result: Vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return result


def open_without_torch(folder: Path | str, *, usage: Usage | None = None) -> NumpyBiEncoder:
    """Return a sentence-transformers bi-encoder of the BERT family in fp32, opened without torch.

    `usage` None means that of the folder. Raises ModelError if the folder is missing or damaged, MissingExtra
    if only torch can read it: other kinds of models, weights or tokenizers.
    """
    folder = Path(folder)
    require_intact(folder)
    usage, module = usage or read_usage(folder), backbone_folder(folder)
    config = SimpleNamespace(**known_configuration(module))
    kind = config.model_type
    activation = getattr(config, "activation" if kind == "distilbert" else "hidden_act", "gelu")
    problem = ""
    if kind not in KINDS:
        problem = f"the kind of model '{kind}'"
    elif activation != "gelu":
        problem = f"the activation '{activation}'"
    elif weight_files(module)[0].suffix != ".safetensors":
        problem = "a folder without weights as safetensors"
    elif not (module / TOKENIZER_FILE).is_file():
        problem = "a folder without a fast tokenizer"
    if problem:
        raise MissingExtra("torch", "train", f"{problem} ({module.name}; without torch: {', '.join(KINDS)})")
    with explain_errors(folder):
        weights = read_tables(module, config)
        tokenizer = configured_tokenizer(module, read_within(module / TOKENIZER_FILE).decode())
        rows, width = weights[f"{WORDS}.weight"].shape
        require_embeddings(folder, tokenizer, rows)
        shapes = {weights[f"{name}.weight"].shape for layer in layers(config) for name in layer[:4]}
        fits = width == hidden_size(config) and width % head_count(config) == 0
    if not fits or shapes != {(width, width)}:
        raise ModelError(f"the weights of {folder} have other sizes than config.json says", hint=FETCH_AGAIN)
    limit = min(usage.max_tokens, longest_input(config))
    return NumpyBiEncoder(weights, config, tokenizer, replace(usage, max_tokens=limit), folder)


def read_tables(folder: Path, config: SimpleNamespace) -> StoredWeights:
    """Return the weights needed for vectors, in fp32. Raises ModelError for missing or unexpected ones."""
    names = needed_weights(config)
    excess: list[str] = []
    weights: dict[str, NDArray[np.float32]] = {}
    for path in weight_files(folder):
        with explain_errors(folder), safe_open(path, framework="np") as file:
            stored_names = {}
            for name in file.keys():  # noqa: SIM118 (no mapping)
                plain = name
                for wrapper in WRAPPERS:
                    plain = plain.removeprefix(wrapper)
                for suffix, replacement in OLD_NAMES.items():
                    plain = plain.removesuffix(suffix) + replacement if plain.endswith(suffix) else plain
                stored_names[plain] = name
            excess += sorted(name for name in stored_names if LAYER_MARK in name and name not in names)
            weights |= {name: file.get_tensor(stored_names[name]) for name in names if name in stored_names}
    missing = [name for name in names if name not in weights]
    if missing:
        raise ModelError(
            f"the model {folder} lacks {len(missing)} weights, such as {missing[0]}", hint=FETCH_AGAIN
        )
    if excess:
        raise ModelError(
            f"the model {folder} has more layers than config.json says, such as {excess[0]}", hint=FETCH_AGAIN
        )
    return {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in weights.items()}


class EnsembleBiEncoder(NumpyBiEncoder):
    """Two bi-encoders with the same vocabulary, whose vectors are joined.

    A text's vector is `joined(first, second)`. Only the second may need a prefix: the first reads the text
    without the `prefix_tokens` that follow the first token. A prefix for queries only is ignored.
    """

    graph_only = True

    def __init__(
        self, first: NumpyBiEncoder, second: NumpyBiEncoder, centre: Vectors, components: Vectors
    ) -> None:
        """Join two encoders by a `centre` `(second.dim,)` and `components` `(first.dim + second.dim, dim)`.

        Raises ModelError if they cannot be joined.
        """
        names = f"{first.base} and {second.base}"
        if json.loads(first.tokenizer_json) != json.loads(second.tokenizer_json):
            raise ModelError(f"{names} have different vocabularies", hint="join two with the same vocabulary")
        if any(first.usage.prefixes.values()):
            raise ModelError(
                f"{first.base} needs a prefix before texts", hint=f"join them the other way round: {names}"
            )
        if {first.similarity, second.similarity} != {"cosine"}:
            raise ModelError(f"{names} cannot be joined: one compares by inner product")
        if second.usage.prefixes["query"] and not second.usage.prefixes["document"]:
            # In one graph both prefixes need the same length, and bge reads queries nearly as well without.
            usage = replace(second.usage, prefixes={"query": "", "document": ""})
            second = NumpyBiEncoder(
                second.weights, second.config, second.tokenizer_json, usage, second.folder, second.base
            )
        sides = ["", *(second.usage.prefixes[side] for side in ("query", "document"))]
        empty, query, document = (len(ids) for ids in second.tokenizer.ids(sides, None))
        if query != document:
            raise ModelError(f"{second.base} has prefixes of different length for queries and documents")
        self.first, self.second = first, second
        self.parts = {"first": first, "second": second}
        self.prefix_tokens = query - empty
        limit = min(first.max_tokens + self.prefix_tokens, second.max_tokens)
        usage = Usage("mean", "cosine", second.usage.prefixes, limit)
        projection = {"centre": centre.astype(np.float32), "components": components.astype(np.float32)}
        weights = {
            f"{name}.{key}": value
            for name, retriever in self.parts.items()
            for key, value in retriever.weights.items()
        }
        base = " + ".join(retriever.base for retriever in self.parts.values())
        super().__init__(weights | projection, first.config, first.tokenizer_json, usage, first.folder, base)

    @property
    def dim(self) -> int:
        """Return the dimension of a vector."""
        return int(self.weights["components"].shape[1])

    def read(self, ids: NDArray[np.int64], mask: NDArray[np.int64]) -> tuple[Vectors, Vectors]:
        """Return the first encoder's token states `(n, tokens, width)` and the joined vectors `(n, dim)`.

        The states of the prefix's tokens are those of the second encoder; they are not used.
        """
        prefix_end = 1 + self.prefix_tokens
        states, first_vectors = self.first.read(
            *(np.delete(value, np.s_[1:prefix_end], axis=1) for value in (ids, mask))
        )
        second_states, second_vectors = self.second.read(ids, mask)
        spliced = np.concatenate([states[:, :1], second_states[:, 1:prefix_end], states[:, 1:]], axis=1)
        with threadpool_limits(**ONE_THREAD):
            return spliced, self.joined(first_vectors, second_vectors)

    def joined(self, first: Vectors, second: Vectors) -> Vectors:
        """Return the joined vectors `(n, dim)` of both encoders' vectors."""
        return unit_length(self.projected(first, second))

    def projected(self, first: Vectors, second: Vectors) -> Vectors:
        """Return the joined vectors before scaling; components that are left out make them shorter than 1."""
        pairs = np.hstack([first, unit_length(second - self.weights["centre"])])
        return pairs @ self.weights["components"]


def fit_ensemble(
    first: NumpyBiEncoder, second: NumpyBiEncoder, vectors: tuple[Vectors, Vectors], share: float, dim: int
) -> EnsembleBiEncoder:
    """Return two encoders joined by the principal components of their `vectors` of documents.

    The vectors are `(n, first.dim)` and `(n, second.dim)`. `share` is the second encoder's part (0..1) of a
    cosine if all dimensions are kept.
    """
    first_vectors, second_vectors = vectors
    centre = second_vectors.mean(axis=0)
    weights = np.sqrt(np.repeat([1 - share, share], [first.dim, second.dim])).astype(np.float32)
    rows = np.hstack([first_vectors, unit_length(second_vectors - centre)]) * weights
    _, directions = np.linalg.eigh(rows.T @ rows / len(rows))  # principal components about 0 (Hotelling 1933)
    components = np.ascontiguousarray(directions[:, ::-1][:, :dim])
    return EnsembleBiEncoder(first, second, centre, weights[:, None] * components)
