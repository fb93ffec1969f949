"""The base of the five rankers: a DAM with a REM in it, merging, head, fingerprint, tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn

from ..encoders.contract import Usage, checked_texts, longest_input
from ..encoders.tokens import TextTokenizer, pad_rows
from ..errors import DataError, ModelError
from ..files.local import fingerprint, read_manifest
from . import adapters
from .adapters import read_design, unsupported_error
from .backbone import FETCH_AGAIN, HEAD_CONFIG, HEAD_WEIGHTS, WEIGHTS, Dam, RemFiles, Tensors, read_record
from .torch_models import BackboneModel, BiEncoder, digest_weights

MAX_TOKENS = 512  # the input limit of DDR at test time
Texts: TypeAlias = Sequence[str] | Sequence[Sequence[int]]
Pairs: TypeAlias = Sequence[tuple[str, str]] | Sequence[Sequence[int]]
Ids: TypeAlias = NDArray[np.int64]


class Ranker(BackboneModel):
    """A DAM with at most one REM in it; each subclass defines how it scores."""

    folder: Path
    ranker: ClassVar[str]
    outputs: ClassVar[int | None] = None
    """Width of the linear head; 0 if it may have any width, None if the ranker has no such head."""

    def __init__(self, dam: Dam, pooling: str = "mean", similarity: str = "ip") -> None:
        limit = min(MAX_TOKENS, longest_input(dam.model.config))
        super().__init__(
            dam.model.base_model, Usage(pooling, similarity, {"query": "", "document": ""}, limit), dam.folder
        )
        self.special_tokens = dam.special_tokens
        words = Tokenizer.from_str(dam.tokenizer).get_vocab() if dam.tokenizer else {}
        tokens = dam.special_tokens.items()
        self.special_ids = {role: words[token] for role, token in tokens if token in words}
        self.tokens = Tokens(
            dam.tokenizer,
            padding=int(self.config.pad_token_id or 0),
            separator=self.special_ids.get("sep_token"),
            vocabulary=int(self.config.vocab_size),
        )
        self.rem: RemFiles | None = None
        self.merged = False  # whether the LoRA is folded into the weights
        self._fingerprint = ""
        self.head: nn.Module = nn.Identity()
        self.take_head(dam.heads)

    @property
    def origins(self) -> dict[str, str | None]:
        """The names of DAM and REM without paths, and the source of the training's method."""
        return read_origins(self.folder, self.rem.origin if self.rem else None)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of weights (LoRA merged), tokenizer and usage, the same before and after
        merging.

        For a dense ranker whose REM is LoRA only, it equals that of the exported encoder. It is computed
        once, and again after training.
        """
        if not self._fingerprint:
            tokenizer = json.loads(self.tokens.definition) if self.tokens.definition else None
            parts: dict[str, Any] = {
                "weights": digest_weights(adapters.plain_copy(self.backbone)),
                "tokenizer": tokenizer,
            } | self.usage.record()
            if not isinstance(self.own_head(), nn.Identity):
                parts |= {"ranker": self.ranker, "head": digest_weights(self.own_head())}
            self._fingerprint = fingerprint(parts)
        return self._fingerprint

    def head_weights(self, name: str) -> dict[str, nn.Parameter]:
        """Return the head's parameters by their keys in a REM called `name`; empty without a head."""
        return {f"heads.{name}.1.{key}": weight for key, weight in self.head.named_parameters()}

    def own_head(self) -> nn.Module:
        """Return the module on top of the backbone; an identity if there is none."""
        return self.head

    def train(self, mode: bool = True) -> Ranker:
        """Switch training mode (dropout) on or off; training mode forgets the computed fingerprint."""
        if mode:
            self._fingerprint = ""
        super().train(mode)
        return self

    def add_rem(self, rem: RemFiles, *, load_embeddings: bool = True) -> None:
        """Add a REM to the backbone, unmerged.

        Raises ModelError if there is one already or it does not fit; the ranker is unusable after that.
        """
        if self.rem is not None:
            state = "is merged into" if self.merged else "is in"
            raise ModelError(
                f"a REM, '{self.rem.name}', {state} the backbone already; only one is possible",
                hint="assemble the DAM and the other REM anew",
            )
        for subject, value, expected in (
            ("a backbone of the kind", rem.record["model_type"], self.config.model_type),
            ("a backbone of the width", rem.record["hidden_size"], self.config.hidden_size),
            ("the ranker", rem.ranker or self.ranker, self.ranker),
        ):
            if value != expected:
                raise ModelError(
                    f"the REM {rem.origin} was made for {subject} {value}; this one is {expected}",
                    hint="`hybridr models` shows which REM goes with which DAM",
                )
        design = read_design(rem.record["config"])
        tensors, head = rem.tensors(WEIGHTS), rem.tensors(HEAD_WEIGHTS)
        adapters.attach(self.backbone, design)
        adapters.fill_weights(
            adapters.adapter_weights(self.backbone, rem.name), tensors, rem.path_of(WEIGHTS)
        )
        self.rem, self._fingerprint = rem, ""
        self.take_rem_head(rem, head, load_embeddings)

    def take_head(self, heads: Tensors, name: str | None = None) -> None:
        """Set the head from `heads.NAME.1.*` of a REM or the first of a full model. Raises ModelError."""
        if self.outputs is None:
            return
        name = name or (next(iter(heads)).split(".")[1] if heads else "")
        weight, bias = heads.get(f"heads.{name}.1.weight"), heads.get(f"heads.{name}.1.bias")
        if weight is None or bias is None:
            return
        if weight.shape[1:] != (self.config.hidden_size,) or self.outputs not in (0, len(weight)):
            raise ModelError(
                f"the head has the shape {tuple(weight.shape)}; ({self.outputs or 'n'}, "
                f"{self.config.hidden_size}) is needed"
            )
        self.head = nn.Linear(weight.shape[1], weight.shape[0], device=self.device)
        self.head.load_state_dict({"weight": weight, "bias": bias})

    def take_rem_head(self, rem: RemFiles, head: Tensors, load_embeddings: bool) -> None:
        """Set the head from a REM's files, if the ranker has a head. Raises ModelError."""
        if self.outputs is None:
            return
        record: Any = {}
        if HEAD_CONFIG in rem.files:
            name = rem.path_of(HEAD_CONFIG)
            record = read_record(rem.files[HEAD_CONFIG], name).get("config") or {}
            if not isinstance(record, dict):
                raise ModelError(f"{name} holds a wrong 'config'", hint=FETCH_AGAIN)
        for option, expected in (("layers", 1), ("use_pooler", False)):  # dropout and one linear layer
            if record.get(option, expected) != expected:
                raise unsupported_error(option, record[option], f"{expected} (in head_config.json)")
        self.take_head(head, rem.name)

    def require_complete(self) -> None:
        """Raise ModelError if the ranker needs a head and neither DAM nor REM had one."""
        if self.outputs is not None and isinstance(self.head, nn.Identity):
            raise ModelError(
                f"the ranker {self.ranker} needs a head, and neither the DAM nor the REM has one",
                hint=f"give the REM that was trained as {self.ranker}",
            )

    def merge(self) -> None:
        """Fold the LoRA into the weights. Raises ModelError if that was done already, or without LoRA."""
        if self.merged:
            raise ModelError("the REM is merged already", hint="assemble(…, merge=False)")
        layers = list(adapters.lora_layers(self.backbone))
        if not layers:
            raise ModelError("there is no LoRA to merge (a parallel adapter cannot be)", hint="give a REM")
        for _, layer in layers:
            layer.merge()
        self.merged = True

    def states(self, ids: torch.Tensor, mask: torch.Tensor, **kinds: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states `(n, tokens, width)` for ids and mask `(n, tokens)`, in fp32."""
        states: torch.Tensor = self.backbone(input_ids=ids, attention_mask=mask, **kinds).last_hidden_state
        return states.float()

    def retriever(self) -> BiEncoder:
        """Return the plain encoder that can be exported. Raises ModelError, except for dense rankers."""
        raise ModelError(f"a {self.ranker} ranker gives no vector", hint="the dense ranker does")


def read_origins(dam: Path, rem: Path | None) -> dict[str, str | None]:
    """Return the names of a DAM and a REM, and the source of the method that trained the folder."""
    folder = rem or dam
    manifest = read_manifest(folder) or {}
    training = manifest["rem"].get("method") if manifest.get("stage") == "rem" else None
    method = {"method": str(training["source"])} if training else {}
    return {"dam": dam.name, "rem": rem.name if rem else None, **method}


class Tokens:
    """The tokenizer of a DAM, for texts or for given token ids; without a tokenizer only ids are accepted."""

    def __init__(self, definition: str | None, padding: int, separator: int | None, vocabulary: int) -> None:
        """Take the tokenizer as JSON, the ids of padding and separator, and the size of the vocabulary."""
        self.definition = definition
        self.padding = padding
        self.separator = separator
        self.vocabulary = vocabulary
        self._texts = None if definition is None else TextTokenizer(definition)

    def rows(self, inputs: Texts, limit: int) -> list[list[int]]:
        """Return each input's ids with special tokens, at most `limit`. Raises DataError, ModelError."""
        if holds_ids(inputs):
            return [self.checked(row, limit) for row in inputs]
        return list(self._tokenizer().ids(checked_texts(inputs), limit))  # type: ignore[arg-type]

    def pair_rows(self, pairs: Pairs, limit: int) -> tuple[list[list[int]], list[list[int]]]:
        """Return the token ids of each pair, and for each id 0 or 1 for the first or second text.

        The longer text of a pair is cut first. Token ids are given as one row of both texts. Raises
        DataError, ModelError.
        """
        if holds_ids(pairs):
            rows = [self.checked(row, limit) for row in pairs]
            return rows, [self.segments(row) for row in rows]
        for position, pair in enumerate(pairs):
            if isinstance(pair, str) or len(pair) != 2:
                raise DataError(f"pair {position} is not a pair of a query and a document")
            checked_texts(list(pair))  # type: ignore[arg-type]
        encoded = list(self._tokenizer().pairs([tuple(pair) for pair in pairs], limit))  # type: ignore[misc]
        return [ids for ids, _ in encoded], [kinds for _, kinds in encoded]

    def checked(self, row: Any, limit: int) -> list[int]:
        """Return a row of ids without padding, cut to `limit` but with its last id kept. Raises DataError."""
        ids = [int(value) for value in row]
        if not ids or min(ids) < 0 or max(ids) >= self.vocabulary:
            raise DataError(f"needed token ids from 0 to {self.vocabulary - 1}, found {ids[:8]}")
        while len(ids) > 1 and ids[-1] == self.padding:
            ids.pop()
        return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]

    def segments(self, row: list[int]) -> list[int]:
        """Return 0 for each id up to the first separator, 1 after it. Raises ModelError."""
        if self.separator is None:
            self._tokenizer()
        first_length = row.index(self.separator) + 1 if self.separator in row else len(row)
        return [0] * first_length + [1] * (len(row) - first_length)

    def batch(self, rows: Sequence[Sequence[int]]) -> tuple[Ids, Ids]:
        """Return ids and mask, both int64 `(rows, longest)`, padded with the model's padding id."""
        ids, mask = pad_rows(rows)
        return np.where(mask == 1, ids, self.padding), mask

    def _tokenizer(self) -> TextTokenizer:
        """Return the tokenizer. Raises ModelError if the DAM has none."""
        if self._texts is None:
            raise ModelError(
                "the DAM has no tokenizer, so texts cannot be read",
                hint="put its tokenizer.json or vocab.txt into the folder, or give token ids",
            )
        return self._texts


def holds_ids(inputs: Any) -> bool:
    """Return whether the inputs are rows of token ids (lists, tuples or an array) and not texts."""
    if isinstance(inputs, str) or len(inputs) == 0:
        return False
    first = inputs[0]
    is_sequence = not isinstance(first, str) and hasattr(first, "__len__")
    return is_sequence and len(first) > 0 and not isinstance(first[0], str)
