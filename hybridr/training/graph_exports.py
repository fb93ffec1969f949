"""Exports models that give no vector as graph folders: sparse and multi-vector encoders, and re-rankers.

A model is traced by torch to ONNX, described in a manifest, and compared with the original. The source is a
ranker of `assemble`, or a folder: of sentence-transformers' SparseEncoder (uniCOIL and SPLADE), of PyLate or
a MultiVectorEncoder (ColBERT), or a sequence classifier of transformers.
"""

from __future__ import annotations

import json
import logging
import string
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer

from ..encoders.contract import (
    WEIGHTS_FILE,
    Precision,
    Usage,
    Vectors,
    base_model_name,
    longest_input,
    require_no_links,
)
from ..encoders.engines import GRAPHS, OUTPUT, STATES
from ..encoders.export.exporting import FP32_TOLERANCE, GENERATED, generated_texts, measure_fp32
from ..encoders.export.graphs import OPSET, SCATTERING_OPSET
from ..encoders.graph_folders import TABLE_FILE, GraphFolder, MultiVectorEncoder, PairScorer, SparseEncoder
from ..encoders.model_usage import configured_limit
from ..encoders.quantization import quantize
from ..encoders.stored_models import (
    CLASSIFIER,
    FETCH_AGAIN,
    class_name,
    explain_errors,
    inner_folder,
    read_modules,
    read_object,
)
from ..encoders.tokens import TOKENIZER_FILE
from ..errors import ModelError, extra
from ..files.local import fingerprint, write_manifest
from ..files.staging import staged_folder
from .backbone import read_dam
from .ranker import Ranker, Tokens
from .rankers import Splade, score_pairs
from .torch_models import (
    BackboneModel,
    digest_weights,
    drop_missing,
    read_configuration,
    read_model,
    stored_tensors,
)

with extra("train", "exporting a model"):
    import torch


@dataclass(frozen=True)
class GraphExport:
    """Inputs of an export: a torch model (a `BackboneModel`), its tokenizer as JSON, and details for the
    manifest.

    `parity` compares the opened folder with the model; `files` are further files by name.
    """

    model: Any
    definition: str | None
    opened: type[GraphFolder]
    details: Mapping[str, Any]
    parity: Callable[[Any], dict[str, Any]]
    inputs: Sequence[str] = ("input_ids", "attention_mask")
    opset: int = OPSET
    files: Mapping[str, bytes] = field(default_factory=dict)


def write_graph_folder(exported: GraphExport, folder: Path, precision: Precision = "fp32") -> Path:
    """Export a model into `folder`, which is replaced as a whole, and return its path. Raises ModelError."""
    if exported.definition is None:
        raise ModelError("the DAM has no tokenizer, which an encoder needs", hint="add its tokenizer.json")
    with staged_folder(folder) as staged:
        (staged / TOKENIZER_FILE).write_text(exported.definition, encoding="utf-8")
        for name, content in exported.files.items():
            (staged / name).write_bytes(content)
        graph = staged / GRAPHS["fp32"]
        graph.parent.mkdir()
        trace(exported.model.eval(), graph, list(exported.inputs), [OUTPUT], exported.opset)
        if precision == "int8":
            quantize(graph, staged / GRAPHS["int8"])
        model = exported.model
        entry = {
            "max_tokens": model.max_tokens,
            "max_positions": model.max_positions,
            "precision": precision,
            "base": base_model_name(model.folder),
            **exported.details,
        }
        origins = {"assembly": model.origins} if hasattr(model, "origins") else {}  # the names of DAM and REM
        manifest: dict[str, Any] = {
            "stage": "export",
            "settings": {"precision": precision, "opset": exported.opset},
            "inputs": {"model": entry["base"]},
            "outputs": [path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file()],
        }
        records = {exported.opened.entry: entry, **origins}
        write_manifest(staged, **manifest, extra=records)
        parity = exported.parity(exported.opened(staged))
        write_manifest(staged, **manifest, extra={**records, "parity": parity})
    return folder


def trace(model: BackboneModel, path: Path, names: list[str], outputs: list[str], opset: int = OPSET) -> None:
    """Run a model once in torch and write it as an ONNX graph with these inputs and outputs."""
    ids = torch.randint(0, model.config.vocab_size, (2, 9), generator=torch.Generator())
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    example = (ids, mask, torch.zeros_like(ids))[: len(names)]
    axes = {name: {0: "batch", 1: "tokens"} for name in [*names, STATES]} | {OUTPUT: {0: "batch"}}
    device = model.device
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)  # tracing logs many warnings
        try:
            torch.onnx.export(
                model.cpu().eval(),
                example,
                str(path),
                input_names=names,
                output_names=outputs,
                dynamic_axes=axes,
                opset_version=opset,
                dynamo=False,
            )
        finally:
            logging.disable(logging.NOTSET)
    model.to(device)


POOLING, TABLE, ROUTER = "SpladePooling", "SparseStaticEmbedding", "Router"
TRANSFORMERS = ("MLMTransformer", "Transformer")


class PooledSplade(Splade):
    """SPLADE with sentence-transformers' pooling: by sum or maximum, with one logarithm or two."""

    summed, logarithms = False, 1

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return weights `(n, vocabulary)` for ids and mask `(n, tokens)`."""
        logits = self.model(input_ids=ids, attention_mask=mask).logits.float()
        weights = torch.relu(logits * mask.unsqueeze(-1))
        for _ in range(self.logarithms):
            weights = torch.log1p(weights)
        return weights.sum(1) if self.summed else weights.amax(1)


def read_sparse(source: Path) -> tuple[PooledSplade, Vectors | None, int]:
    """Read a folder of sentence-transformers' SparseEncoder. Raises ModelError.

    Return the ranker of documents, the table `(vocabulary,)` of query weights if any, and the input limit.
    """
    require_no_links(source)
    routes = read_routes(source)
    documents, queries = routes["document"], routes["query"]
    if [kind in TRANSFORMERS for kind, _ in documents] != [True, False] or documents[1][0] != POOLING:
        raise ModelError(f"{source} encodes documents by {documents}; a masked-LM and {POOLING} are needed")
    if queries != documents and [kind for kind, _ in queries] != [TABLE]:
        problem = f"{queries}; a {TABLE}, or the modules of the documents, are needed"
        raise ModelError(f"{source} encodes queries by {problem}")
    prompts = read_object(source, "config_sentence_transformers.json").get("prompts") or {}
    if any(prompts.values()):
        raise ModelError(f"{source} puts prompts before texts, which is not supported for sparse encoders")
    backbone, pooling = (inner_folder(source, path) for _, path in documents)
    ranker = read_splade(backbone, read_object(pooling, "config.json", needed=True))
    table = None if queries == documents else read_query_table(inner_folder(source, queries[0][1]), ranker)
    return ranker, table, min(ranker.max_tokens, configured_limit(backbone))


def read_routes(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return for "query" and "document" the (kind, path) of the modules that texts go through."""
    modules = read_modules(folder)
    if [kind for kind, _ in modules] != [ROUTER]:
        return {"query": modules, "document": modules}
    router = inner_folder(folder, modules[0][1])
    record = read_object(router, "router_config.json", needed=True)
    kinds, structure = record.get("types"), record.get("structure")
    if (
        not isinstance(kinds, dict)
        or not isinstance(structure, dict)
        or {"query", "document"} - set(structure)
    ):
        raise ModelError(f"{folder} has no routes for queries and documents", hint=FETCH_AGAIN)
    return {
        side: [(class_name(kinds.get(route)), str(route)) for route in structure[side]]
        for side in ("query", "document")
    }


def read_splade(backbone: Path, pooling: dict[str, Any]) -> PooledSplade:
    """Read the masked-LM model of a folder as SPLADE with the configured pooling. Raises ModelError."""
    strategy, activation = pooling.get("pooling_strategy", "max"), pooling.get("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise ModelError(f"{backbone} pools by '{strategy}' of '{activation}', which is not supported")
    ranker = PooledSplade(read_dam(backbone))
    ranker.require_complete()
    ranker.summed, ranker.logarithms = strategy == "sum", 2 if activation == "log1p_relu" else 1
    return ranker


def read_query_table(folder: Path, ranker: Ranker) -> Vectors:
    """Read the weights of query tokens; negative ones, [CLS] and [SEP] become 0. Raises ModelError."""
    with explain_errors(folder):
        token_weights = stored_tensors(folder / WEIGHTS_FILE)["weight"].float().numpy()
        vocabulary = read_object(folder, TOKENIZER_FILE, needed=True)["model"]["vocab"]
    if vocabulary != json.loads(str(ranker.tokens.definition))["model"]["vocab"]:
        raise ModelError(f"{folder} has other words than the model of documents", hint=FETCH_AGAIN)
    words, limit = len(vocabulary), ranker.tokens.vocabulary
    if token_weights.ndim != 1 or not words <= len(token_weights) <= limit:
        raise ModelError(
            f"{folder} has weights of the shape {token_weights.shape}, {words:,} to {limit:,} are needed"
        )
    table = np.zeros(ranker.tokens.vocabulary, dtype=np.float32)
    table[: len(token_weights)] = np.maximum(token_weights, 0)
    table[[ranker.special_ids[role] for role in ("cls_token", "sep_token")]] = 0
    return table


def export_sparse(source: Ranker | Path, folder: Path, precision: Precision = "fp32") -> Path:
    """Export a sparse encoder into `folder`, which is replaced as a whole, and return its path. Raises
    ModelError.
    """
    if precision != "fp32":
        raise ModelError("a sparse encoder is exported in fp32", hint="--precision fp32")
    ranker: Any
    table: Vectors | None = None
    if isinstance(source, Path):
        ranker, table, limit = read_sparse(source)
        weights = None if table is None else table.tolist()
        identity = fingerprint([ranker.fingerprint, ranker.summed, ranker.logarithms, weights])
    else:
        ranker, limit, identity = source, source.max_tokens, source.fingerprint
    entry = {
        "vocabulary": ranker.dim,
        "max_tokens": limit,
        "fingerprint": identity,
        "table": table is not None,
        "ranker": ranker.ranker,
        "base": base_model_name(source if isinstance(source, Path) else source.folder),
    }

    def parity(opened: SparseEncoder) -> dict[str, Any]:
        """Compare the exported graph's weights with torch's and return the differences. Raises ModelError."""
        texts = generated_texts(str(ranker.tokens.definition), limit, GENERATED)
        expected = ranker.encode_documents(texts, max_tokens=limit)
        description = "torch", f"{len(texts)} texts"
        gaps = measure_fp32(expected, opened.weights(texts), description, FP32_TOLERANCE)
        return {"reference": "torch", "texts": len(texts), **gaps}

    files = {} if table is None else {TABLE_FILE: table.astype("<f4").tobytes()}
    graph = GraphExport(
        ranker, ranker.tokens.definition, SparseEncoder, entry, parity, opset=SCATTERING_OPSET, files=files
    )
    return write_graph_folder(graph, folder)


INT8_CORRELATION = 0.9  # the least that is accepted between int8 and fp32 scores


class PairClassifier(BackboneModel):
    """A sequence classifier with one label, whose logit is the score of a pair of query and document."""

    ranker = "rerank"

    def __init__(self, model: Any, definition: str, folder: Path) -> None:
        limit = min(configured_limit(folder), longest_input(model.config))
        super().__init__(model, Usage("cls", "ip", {"query": "", "document": ""}, limit), folder)
        self.tokens = Tokens(
            definition,
            padding=int(model.config.pad_token_id or 0),
            separator=None,
            vocabulary=int(model.config.vocab_size),
        )

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of weights, tokenizer and input limit; 64 hex digits."""
        tokenizer = json.loads(str(self.tokens.definition))
        return fingerprint([digest_weights(self.backbone), tokenizer, self.max_tokens])

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return scores `(n,)`; ids, mask and segments (0 query, 1 document) are `(n, tokens)`."""
        kinds = {} if segments is None else {"token_type_ids": segments}
        logits = self.backbone(input_ids=ids, attention_mask=mask, **kinds).logits
        scores: torch.Tensor = logits.float().squeeze(-1)
        return scores

    def score(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        """Return the scores of pairs (query, document), float32 `(n,)`, in their order."""
        return score_pairs(self, self.tokens, pairs, self.max_tokens)


def read_classifier(folder: Path) -> PairClassifier:
    """Read a sequence classifier with one label. Raises ModelError."""
    require_no_links(folder)
    if (labels := len(read_configuration(folder).id2label)) != 1:
        raise ModelError(
            f"{folder} classifies texts into {labels} classes; a re-ranker gives one score",
            hint="give a cross-encoder with one label, such as those trained on MS MARCO",
        )
    model, definition, missing = read_model(folder, CLASSIFIER)
    if missing:
        problem = f"it lacks {len(missing)} weights, such as {min(missing)}"
        raise ModelError(f"{folder} is not a re-ranker: {problem}")
    return PairClassifier(model, definition, folder)


def export_pairs(source: Ranker | Path, folder: Path, precision: Any = "fp32") -> Path:
    """Export a re-ranker to `folder`, which is replaced atomically, and return its path. Raise ModelError."""
    model: Any = read_classifier(source) if isinstance(source, Path) else source
    entry = {"fingerprint": model.fingerprint, "ranker": model.ranker}

    def parity(opened: PairScorer) -> dict[str, Any]:
        """Compare the exported graph's scores with torch's and return the differences. Raises ModelError."""
        texts = generated_texts(str(model.tokens.definition), model.max_tokens, 2 * GENERATED)
        pairs = list(zip(texts[::2], reversed(texts[1::2]), strict=True))
        expected, description = model.score(pairs), ("torch", f"{len(pairs)} pairs")
        scores = PairScorer(opened.folder, "fp32").score(pairs)
        record: dict[str, Any] = {"reference": "torch", "texts": len(pairs)}
        record |= measure_fp32(expected, scores, description, FP32_TOLERANCE)
        if precision == "int8":
            correlation = float(np.corrcoef(expected, PairScorer(opened.folder).score(pairs))[0, 1])
            if not correlation >= INT8_CORRELATION:
                raise ModelError(
                    f"int8 scores have a correlation of {correlation:.3f} to fp32; {INT8_CORRELATION} is "
                    "needed",
                    hint="int8 is too coarse for this model: export with --precision fp32",
                )
            record["int8_correlation"] = correlation
        return record

    graph = GraphExport(model, model.tokens.definition, PairScorer, entry, parity, model.input_names)
    return write_graph_folder(graph, folder, precision)


MASK_TOKEN = "[MASK]"
KNOWN = {"Transformer", "Dense", "Normalize", "MultiVectorMask"}
MASK, PYLATE = "MultiVectorMask", "ColBERT"
USUAL_QUERY = 32  # tokens, if PyLate's file gives no length
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
        extra_inputs = {} if kinds is None else {"token_type_ids": kinds}
        states = self.backbone(input_ids=ids, attention_mask=mask, **extra_inputs).last_hidden_state
        for layer in self.layers:
            states = layer(states)
        result: torch.Tensor = torch.nn.functional.normalize(states.float(), dim=-1)
        return result


def read_projection(folder: Path) -> tuple[TokenProjection, Tokenizer, dict[str, Any]]:
    """Read a folder of PyLate or of a MultiVectorEncoder. Raises ModelError.

    Return the model, its tokenizer (with prefix markers as one token each), and the manifest's usage entry.
    """
    require_no_links(folder)
    modules, model_settings = read_modules(folder), read_object(folder, "config_sentence_transformers.json")
    kinds = [kind for kind, _ in modules]
    normalized = "Normalize" in kinds or model_settings.get("model_type") == PYLATE
    if set(kinds) - KNOWN or kinds[0] != "Transformer" or "Dense" not in kinds or not normalized:
        raise ModelError(f"{folder} makes vectors by {kinds}; a Transformer, Dense and Normalize are needed")
    module = inner_folder(folder, modules[0][1])
    layers = [read_layer(inner_folder(folder, path)) for kind, path in modules if kind == "Dense"]
    masks = [read_object(inner_folder(folder, path), "config.json") for kind, path in modules if kind == MASK]
    backbone, definition, missing = read_model(module)
    drop_missing(backbone, missing, module)
    usage = model_settings | read_object(module, "sentence_bert_config.json")
    prompts, tokens = usage.get("prompts") or {}, {side: usage.get(f"{side}_prefix") or "" for side in SIDES}
    prefixes = {
        side: token + str(prompts.get(side) or "").removeprefix(token) for side, token in tokens.items()
    }
    tokenizer = Tokenizer.from_str(definition)
    words = tokenizer.get_vocab()
    for text in tokens.values():  # a prefix in the vocabulary becomes one token
        marker = next((word for word in (text, *text.split()[:1]) if word in words), "")
        if marker and tokenizer.encode(marker, add_special_tokens=False).tokens != [marker]:
            tokenizer.add_special_tokens([AddedToken(marker, normalized=False)])
    limit = min(usage.get("document_length") or configured_limit(module), longest_input(backbone.config))
    model = TokenProjection(backbone, layers, Usage("cls", "cosine", prefixes, limit), folder).eval()
    query_limit = min(model.max_positions, configured_limit(module))
    return model, tokenizer, {"prefixes": prefixes} | usage_entry(usage, masks, tokenizer, query_limit)


def usage_entry(
    usage: Mapping[str, Any], masks: Sequence[Mapping[str, Any]], tokenizer: Tokenizer, limit: int
) -> dict[str, Any]:
    """Return the manifest's usage entry: query length, query expansion, and the skipped ids of documents.

    `usage` holds the options of both configuration files; no query is longer than `limit`. Raises ModelError.
    """
    by_pylate = any(f"{side}_prefix" in usage for side in SIDES)  # PyLate expands queries by default
    default = None
    if by_pylate and usage.get("do_query_expansion") is not False:
        attended = bool(usage.get("attend_to_expansion_tokens"))
        default = {"length": usage.get("query_length") or USUAL_QUERY, "attend": attended}
    setting, expansion = usage.get("query_expansion", default), None
    if setting is not None:
        token = tokenizer.token_to_id(str(setting.get("token") or MASK_TOKEN))
        if setting.get("strategy", "fixed") != "fixed" or token is None:
            raise ModelError(f"queries that are expanded by {setting} are not supported")
        expansion = {"token": token, "length": setting["length"], "attended": bool(setting.get("attend"))}
    words = usage.get("skiplist_words")
    words = list(string.punctuation) if words is None and by_pylate else words or []
    for mask in masks:
        words = mask.get("skiplist_words") or []
        if mask.get("skiplist_tasks", ["document"]) != ["document"] or mask.get("keep_only_token_ids"):
            raise ModelError("queries that skip tokens, or documents that keep only some, are not supported")
    query_tokens = expansion["length"] if expansion else usage.get("query_length") or limit
    skipped = {tokenizer.token_to_id(word) for word in words} - {None, tokenizer.token_to_id("[UNK]")}
    return {
        "query_tokens": min(query_tokens, limit),
        "skipped": sorted(skipped),
        "expansion": expansion,
    }


def read_layer(folder: Path) -> torch.nn.Linear:
    """Read a linear layer. Raises ModelError for one with an activation or residual."""
    record = read_object(folder, "config.json", needed=True)
    activation = str(record.get("activation_function", "Identity")).rsplit(".", 1)[-1]
    if activation != "Identity" or record.get("use_residual"):
        raise ModelError(f"{folder} does more than a linear layer ({activation}), which is not supported")
    with explain_errors(folder):
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

    def parity(opened: MultiVectorEncoder) -> dict[str, Any]:
        """Compare the graph's token vectors with torch's and return the differences. Raises ModelError."""
        rows = opened.rows(generated_texts(str(definition), opened.max_tokens, GENERATED))
        expected = []
        for row in rows:
            ids = np.array([row])
            ids_mask_types = (ids, np.ones_like(ids), np.zeros_like(ids))
            expected.append(model.run(*ids_mask_types[: len(inputs)])[0])
        vectors = np.concatenate(opened.run(rows, [len(row) for row in rows]))
        description = "torch", f"the vectors of {len(vectors)} tokens"
        gaps = measure_fp32(np.concatenate(expected), vectors, description, FP32_TOLERANCE)
        return {"reference": "torch", "texts": len(rows), **gaps}

    graph = GraphExport(model, definition, MultiVectorEncoder, entry, parity, inputs)
    return write_graph_folder(graph, folder)
