"""BERT and its kin (BERT, RoBERTa, XLM-R, DistilBERT), described once for any arithmetic.

What torch's modules compute in transformers' `modeling_bert.py`, `modeling_roberta.py` and
`modeling_distilbert.py`: said as operations, which numpy carries out and an ONNX graph writes down.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

KINDS = ("bert", "roberta", "xlm-roberta", "distilbert")
"""The values of `model_type` that are described here."""
EPSILON = 1e-12  # DistilBERT's, which its configuration does not say, and BERT's default


class Algebra(Protocol):
    """The operations of a backbone. Values are arrays of numpy, or names in a graph."""

    def rows(self, table: str, places: Any) -> Any:
        """Look rows of a table of weights up: `(n, tokens)` to `(n, tokens, width)`."""

    def first_rows(self, table: str, like: Any) -> Any:
        """Give as many of the first rows of a table as `like` has tokens."""

    def first_row(self, table: str) -> Any:
        """Give the first row of a table, for every token."""

    def places_after(self, ids: Any, padding: int) -> Any:
        """Count the tokens that are no padding, from `padding` + 1, as RoBERTa counts positions."""

    def add(self, left: Any, right: Any) -> Any:
        """Add two values."""

    def linear(self, value: Any, name: str) -> Any:
        """Multiply with a matrix of weights, and add its bias."""

    def norm(self, value: Any, name: str, epsilon: float) -> Any:
        """Scale each row to mean 0 and variance 1, then by weights and bias (LayerNorm)."""

    def gelu(self, value: Any) -> Any:
        """Apply the exact GELU."""

    def attend(self, query: Any, key: Any, value: Any, mask: Any, heads: int) -> Any:
        """Weigh values by the softmax of scaled products, masked tokens left out; heads side by side."""


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


def token_states(arithmetic: Algebra, config: Any, ids: Any, mask: Any, kinds: Any = None) -> Any:
    """Give the last states of tokens `(n, tokens, width)` of ids and mask `(n, tokens)`.

    `kinds` are the kinds of tokens, of a backbone that has several.
    """
    epsilon = float(getattr(config, "layer_norm_eps", EPSILON))
    states = arithmetic.norm(embedded(arithmetic, config, ids, kinds), EMBEDDED, epsilon)
    for layer in layers(config):
        query, key, value = (arithmetic.linear(states, name) for name in layer[:3])
        mixed = arithmetic.attend(query, key, value, mask, heads_of(config))
        mixed = arithmetic.add(arithmetic.linear(mixed, layer.mixed), states)
        states = arithmetic.norm(mixed, layer.mixed_norm, epsilon)
        wide = arithmetic.gelu(arithmetic.linear(states, layer.wide))
        narrow = arithmetic.add(arithmetic.linear(wide, layer.narrow), states)
        states = arithmetic.norm(narrow, layer.narrow_norm, epsilon)
    return states


def embedded(arithmetic: Algebra, config: Any, ids: Any, kinds: Any) -> Any:
    """Add up what stands for words, positions and kinds of tokens."""
    states = arithmetic.rows(WORDS, ids)
    if config.model_type != "distilbert":
        one_kind = kinds is None
        added = arithmetic.first_row(KINDS_OF_TOKENS) if one_kind else arithmetic.rows(KINDS_OF_TOKENS, kinds)
        states = arithmetic.add(states, added)
    if config.model_type in ("roberta", "xlm-roberta"):
        places = arithmetic.places_after(ids, config.pad_token_id)
        return arithmetic.add(states, arithmetic.rows(POSITIONS, places))
    return arithmetic.add(states, arithmetic.first_rows(POSITIONS, ids))


def layers(config: Any) -> Iterator[Layer]:
    """Name the weights of each layer."""
    small = config.model_type == "distilbert"
    stem, names = ("transformer.layer", DISTILBERT) if small else ("encoder.layer", BERT)
    for number in range(int(config.n_layers if small else config.num_hidden_layers)):
        yield Layer(*(f"{stem}.{number}.{name}" for name in names))


def heads_of(config: Any) -> int:
    """Count the heads of attention."""
    return int(config.n_heads if config.model_type == "distilbert" else config.num_attention_heads)


def names_of_weights(config: Any) -> list[str]:
    """Name every weight that reaches the states, in order."""
    tables = [WORDS, POSITIONS] + [KINDS_OF_TOKENS] * (config.model_type != "distilbert")
    modules = [EMBEDDED, *(name for layer in layers(config) for name in layer)]
    both = [f"{module}.{part}" for module in modules for part in ("weight", "bias")]
    return sorted([*(f"{table}.weight" for table in tables), *both])


def problem_with(config: SimpleNamespace) -> str:
    """Say what of a configuration is not described here; empty where all is."""
    kind = getattr(config, "model_type", None)
    if kind not in KINDS:
        return f"the kind of model '{kind}'"
    activation = getattr(config, "activation" if kind == "distilbert" else "hidden_act", "gelu")
    if activation != "gelu":
        return f"the activation '{activation}'"
    position = getattr(config, "position_embedding_type", "absolute")
    return "" if position == "absolute" else f"positions of the kind '{position}'"
