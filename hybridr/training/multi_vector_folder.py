"""Reads and exports folders of multi-vector encoders: a ColBERT of `assemble`, or of PyLate and
sentence-transformers.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from ..encoders.contract import WEIGHTS_FILE, Usage, longest_input, require_no_links
from ..encoders.export.parity import FP32_TOLERANCE, GENERATED, generated_texts, measure_fp32
from ..encoders.graph_folders import MultiVectorEncoder
from ..encoders.model_usage import own_limit
from ..encoders.stored_models import explaining, named_modules, read_object
from ..encoders.tokens import TOKENIZER_FILE
from ..errors import ModelError, extra
from ..files.folders import below
from ..files.foreign import read_within
from ..files.manifest import fingerprint
from .graph_exports import GraphExport, write_graph_folder
from .ranker import Ranker
from .torch_models import BackboneModel, digest_weights, drop_missing, read_model, stored_tensors

with extra("train", "exporting a multi-vector encoder"):
    import torch

MASK_TOKEN = "[MASK]"
KNOWN = {"Transformer", "Dense", "Normalize", "MultiVectorMask"}
MASK, PYLATE = "MultiVectorMask", "ColBERT"
USUAL_QUERY = 32  # tokens, where PyLate's file names none
SIDES = ("query", "document")


class TokenProjection(BackboneModel):
    """A backbone, linear layers on its token states, and scaling of each vector to length 1."""

    ranker = "colbert"

    def __init__(self, backbone: Any, layers: list[torch.nn.Linear], usage: Usage, folder: Path) -> None:
        super().__init__(backbone, usage, folder)
        self.layers = torch.nn.ModuleList(layers)

    @property
    def dim(self) -> int:
        """The size of a token's vector."""
        return int(self.layers[-1].out_features)  # type: ignore[arg-type]

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, kinds: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return vectors `(n, tokens, dim)` for ids and mask `(n, tokens)`."""
        more = {} if kinds is None else {"token_type_ids": kinds}
        states = self.backbone(input_ids=ids, attention_mask=mask, **more).last_hidden_state
        for layer in self.layers:
            states = layer(states)
        result: torch.Tensor = torch.nn.functional.normalize(states.float(), dim=-1)
        return result


def read_projection(folder: Path) -> tuple[TokenProjection, Tokenizer, dict[str, Any]]:
    """Read a folder of PyLate or of a MultiVectorEncoder; return model, tokenizer, and the manifest's entry
    about its use.

    Raises ModelError.
    """
    require_no_links(folder)
    modules, whole = named_modules(folder), read_object(folder, "config_sentence_transformers.json")
    kinds = [kind for kind, _ in modules]
    scaled = "Normalize" in kinds or whole.get("model_type") == PYLATE
    if set(kinds) - KNOWN or kinds[0] != "Transformer" or "Dense" not in kinds or not scaled:
        raise ModelError(f"{folder} makes vectors by {kinds}; a Transformer, Dense and Normalize are needed")
    inside = below(folder, modules[0][1]) if modules[0][1] else folder
    layers = [read_layer(below(folder, path)) for kind, path in modules if kind == "Dense"]
    masks = [read_object(below(folder, path), "config.json") for kind, path in modules if kind == MASK]
    backbone, definition, missing = read_model(inside)
    drop_missing(backbone, missing, inside)
    knobs = whole | read_object(inside, "sentence_bert_config.json")
    prompts, tokens = knobs.get("prompts") or {}, {side: knobs.get(f"{side}_prefix") or "" for side in SIDES}
    prefixes = {
        side: token + str(prompts.get(side) or "").removeprefix(token) for side, token in tokens.items()
    }
    tokenizer = tokenizer_with(definition, list(tokens.values()))
    limit = min(knobs.get("document_length") or own_limit(inside), longest_input(backbone.config))
    model = TokenProjection(backbone, layers, Usage("cls", "cosine", prefixes, limit), folder).eval()
    longest = min(model.max_positions, own_limit(folder))
    return model, tokenizer, {"prefixes": prefixes} | usage_entry(knobs, masks, tokenizer, longest)


def tokenizer_with(definition: str, prefixes: Sequence[str]) -> Tokenizer:
    """Return the tokenizer of a definition, changed so that prefixes in its vocabulary are read as one
    token.
    """
    tokenizer = Tokenizer.from_str(definition)
    words = tokenizer.get_vocab()
    for text in prefixes:
        marker = next((word for word in (text, *text.split()[:1]) if word in words), "")
        if marker and tokenizer.encode(marker, add_special_tokens=False).tokens != [marker]:
            tokenizer.add_special_tokens([AddedToken(marker, normalized=False)])
    return tokenizer


def usage_entry(
    knobs: Mapping[str, Any], masks: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, longest: int
) -> dict[str, Any]:
    """Return the manifest's entry about the use: query length, query expansion, and the ids of documents left
    out.

    `knobs` are the settings of both configuration files; no query is longer than `longest`. Raises
    ModelError.
    """
    by_pylate = any(f"{side}_prefix" in knobs for side in SIDES)  # it fills queries up unless it says no
    usual = None
    if by_pylate and knobs.get("do_query_expansion") is not False:
        attended = bool(knobs.get("attend_to_expansion_tokens"))
        usual = {"length": knobs.get("query_length") or USUAL_QUERY, "attend": attended}
    setting, expansion = knobs.get("query_expansion", usual), None
    if setting is not None:
        token = tokenizer.token_to_id(str(setting.get("token") or MASK_TOKEN))
        if setting.get("strategy", "fixed") != "fixed" or token is None:
            raise ModelError(f"queries that are filled up by {setting} are not read")
        expansion = {"token": token, "length": setting["length"], "attended": bool(setting.get("attend"))}
    words = knobs.get("skiplist_words")
    words = list(string.punctuation) if words is None and by_pylate else words or []
    for mask in masks:
        words = mask.get("skiplist_words") or []
        if mask.get("skiplist_tasks", ["document"]) != ["document"] or mask.get("keep_only_token_ids"):
            raise ModelError("queries that leave tokens out, or documents that keep a few, are not read")
    query_tokens = expansion["length"] if expansion else knobs.get("query_length") or longest
    skipped = {tokenizer.token_to_id(word) for word in words} - {None, tokenizer.token_to_id("[UNK]")}
    return {
        "query_tokens": min(query_tokens, longest),
        "skipped": sorted(skipped),
        "expansion": expansion,
    }


def read_layer(folder: Path) -> torch.nn.Linear:
    """Read a linear layer. Raises ModelError for one with an activation or residual."""
    record = read_object(folder, "config.json", needed=True)
    bent = str(record.get("activation_function", "Identity")).rsplit(".", 1)[-1]
    if bent != "Identity" or record.get("use_residual"):
        raise ModelError(f"{folder} does more than a linear layer ({bent}), which is not read")
    with explaining(folder):
        weights = stored_tensors(folder / WEIGHTS_FILE)
        matrix, bias = weights["linear.weight"].float(), weights.get("linear.bias")
    layer = torch.nn.Linear(matrix.shape[1], matrix.shape[0], bias=bias is not None)
    layer.load_state_dict({"weight": matrix} | ({} if bias is None else {"bias": bias.float()}))
    return layer


def export_multi_vector(source: Ranker | Path, folder: Path, precision: Any = "fp32") -> Path:
    """Export a multi-vector encoder into `folder`, which is replaced as a whole. Raises ModelError."""
    if precision != "fp32":
        raise ModelError("a multi-vector encoder is exported in fp32", hint="--precision fp32")
    model: Any
    definition: str | None
    inputs: Sequence[str] = ("input_ids", "attention_mask")
    if isinstance(source, Path):
        model, tokenizer, entry = read_projection(source)
        inputs, definition = model.input_names, tokenizer.to_str()
        weights = digest_weights(model.backbone), digest_weights(model.layers)
        entry["fingerprint"] = fingerprint([*weights, json.loads(definition), entry, model.max_tokens])
    else:
        model, definition = source, source.tokens.definition
        entry = {"prefixes": dict.fromkeys(SIDES, ""), "query_tokens": source.max_tokens}
        entry |= {"fingerprint": source.fingerprint}
    entry |= {"dim": model.dim, "ranker": model.ranker}
    parity = partial(token_parity, model, len(inputs))
    graph = GraphExport(model, definition, MultiVectorEncoder, entry, parity, inputs)
    return write_graph_folder(graph, folder)


def token_parity(model: Any, inputs: int, opened: MultiVectorEncoder) -> dict[str, Any]:
    """Compare the token vectors of the exported graph with torch's and return the gaps. Raises ModelError."""
    definition = read_within(opened.folder / TOKENIZER_FILE).decode()
    rows = opened.rows(generated_texts(definition, opened.max_tokens, GENERATED))
    ids = [np.array([row]) for row in rows]
    expected = [model.run(*(row, np.ones_like(row), np.zeros_like(row))[:inputs])[0] for row in ids]
    vectors = np.concatenate(opened.run(rows, [len(row) for row in rows]))
    compared = "torch", f"the vectors of {len(vectors)} tokens"
    gaps = measure_fp32(np.concatenate(expected), vectors, compared, FP32_TOLERANCE)
    return {"reference": "torch", "texts": len(rows), **gaps}
