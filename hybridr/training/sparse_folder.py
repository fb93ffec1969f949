"""Reads and exports sparse encoders: uniCOIL and SPLADE as graphs, optionally with a table of query weights.

The source is a ranker of `assemble`, or a folder that sentence-transformers' SparseEncoder wrote.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.contract import WEIGHTS_FILE, Precision, Vectors, base_of, require_no_links
from ..encoders.export.graphs import SCATTERING_OPSET
from ..encoders.export.parity import FP32_TOLERANCE, GENERATED, generated_texts, measure_fp32
from ..encoders.graph_folders import TABLE_FILE, SparseEncoder
from ..encoders.model_usage import own_limit
from ..encoders.stored_models import FETCH_AGAIN, bare_name, explaining, named_modules, read_object
from ..encoders.tokens import TOKENIZER_FILE
from ..errors import ModelError, extra
from ..files.folders import below
from ..files.manifest import fingerprint
from .backbone import read_dam
from .graph_exports import GraphExport, write_graph_folder
from .ranker import Ranker
from .rankers import Splade
from .torch_models import stored_tensors

with extra("train", "exporting a sparse encoder"):
    import torch

POOLING, TABLE, ROUTER = "SpladePooling", "SparseStaticEmbedding", "Router"
TRANSFORMERS = ("MLMTransformer", "Transformer")


@dataclass(frozen=True)
class Weigher:
    """A sparse encoder to export: a ranker that weighs tokens, and a table `(vocabulary,)` of query weights
    if it has one.
    """

    ranker: Any
    fingerprint: str
    max_tokens: int
    table: Vectors | None = None


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


def weigher_of(source: Ranker | Path) -> Weigher:
    """Return the sparse encoder of a ranker or of a sentence-transformers folder. Raises ModelError."""
    if not isinstance(source, Path):
        return Weigher(source, source.fingerprint, source.max_tokens)
    require_no_links(source)
    routes = routes_of(source)
    documents, queries = routes["document"], routes["query"]
    if [kind in TRANSFORMERS for kind, _ in documents] != [True, False] or documents[1][0] != POOLING:
        raise ModelError(f"{source} makes documents by {documents}; a masked-LM and {POOLING} are needed")
    if queries != documents and [kind for kind, _ in queries] != [TABLE]:
        raise ModelError(f"{source} makes queries by {queries}; a {TABLE}, or what documents have, is needed")
    prompts = read_object(source, "config_sentence_transformers.json").get("prompts") or {}
    if any(prompts.values()):
        raise ModelError(f"{source} puts prompts before texts, which is not read of sparse encoders")
    backbone, pooling = (below(source, path) if path else source for _, path in documents)
    ranker = assembled_splade(backbone, read_object(pooling, "config.json", needed=True))
    table = None if queries == documents else query_table(below(source, queries[0][1]), ranker)
    parts = [ranker.fingerprint, ranker.summed, ranker.logarithms, None if table is None else table.tolist()]
    return Weigher(ranker, fingerprint(parts), min(ranker.max_tokens, own_limit(backbone)), table)


def routes_of(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Return for "query" and "document" the (kind, path) of the modules that texts go through."""
    modules = named_modules(folder)
    if [kind for kind, _ in modules] != [ROUTER]:
        return {"query": modules, "document": modules}
    inside = below(folder, modules[0][1]) if modules[0][1] else folder
    record = read_object(inside, "router_config.json", needed=True)
    kinds, structure = record.get("types"), record.get("structure")
    if (
        not isinstance(kinds, dict)
        or not isinstance(structure, dict)
        or {"query", "document"} - set(structure)
    ):
        raise ModelError(f"{folder} has no routes for queries and documents", hint=FETCH_AGAIN)
    return {
        side: [(bare_name(kinds.get(route)), str(route)) for route in structure[side]]
        for side in ("query", "document")
    }


def assembled_splade(backbone: Path, pooling: dict[str, Any]) -> PooledSplade:
    """Read the masked-LM model of a folder as SPLADE with the configured pooling. Raises ModelError."""
    strategy, activation = pooling.get("pooling_strategy", "max"), pooling.get("activation_function", "relu")
    if strategy not in ("max", "sum") or activation not in ("relu", "log1p_relu"):
        raise ModelError(f"{backbone} pools by '{strategy}' of '{activation}', which is not known")
    ranker = PooledSplade(read_dam(backbone))
    ranker.require_complete()
    ranker.summed, ranker.logarithms = strategy == "sum", 1 + (activation == "log1p_relu")
    return ranker


def query_table(folder: Path, ranker: Ranker) -> Vectors:
    """Read the weights of query tokens; special tokens get 0. Raises ModelError."""
    with explaining(folder):
        stored = stored_tensors(folder / WEIGHTS_FILE)["weight"].float().numpy()
    if stored.ndim != 1 or len(stored) > ranker.tokens.vocabulary:
        raise ModelError(
            f"{folder} weighs {stored.shape} tokens, the model knows {ranker.tokens.vocabulary:,}"
        )
    own = read_object(folder, TOKENIZER_FILE, needed=True)["model"]["vocab"]
    if own != json.loads(str(ranker.tokens.definition))["model"]["vocab"]:
        raise ModelError(f"{folder} has other words than the model of documents", hint=FETCH_AGAIN)
    table = np.zeros(ranker.tokens.vocabulary, dtype=np.float32)
    table[: len(stored)] = np.maximum(stored, 0)
    table[[ranker.special_ids[role] for role in ("cls_token", "sep_token")]] = 0
    return table


def export_sparse(source: Ranker | Path, folder: Path, precision: Precision = "fp32") -> Path:
    """Export a sparse encoder into `folder`, which is replaced as a whole, and return its path. Raises
    ModelError.
    """
    if precision != "fp32":
        raise ModelError("a sparse encoder is exported in fp32", hint="--precision fp32")
    weigher = weigher_of(source)
    ranker, table = weigher.ranker, weigher.table
    entry = {
        "vocabulary": ranker.dim,
        "max_tokens": weigher.max_tokens,
        "fingerprint": weigher.fingerprint,
        "table": table is not None,
        "ranker": ranker.ranker,
        "base": base_of(source if isinstance(source, Path) else source.folder),
    }
    files = {} if table is None else {TABLE_FILE: table.astype("<f4").tobytes()}
    parity = partial(weight_parity, weigher)
    graph = GraphExport(
        ranker, ranker.tokens.definition, SparseEncoder, entry, parity, opset=SCATTERING_OPSET, files=files
    )
    return write_graph_folder(graph, folder)


def weight_parity(weigher: Weigher, encoder: SparseEncoder) -> dict[str, Any]:
    """Compare the exported graph's weights of generated texts with torch's and return the gaps. Raises
    ModelError.
    """
    texts = generated_texts(str(weigher.ranker.tokens.definition), weigher.max_tokens, GENERATED)
    expected = weigher.ranker.encode_documents(texts, max_tokens=weigher.max_tokens)
    compared = "torch", f"{len(texts)} texts"
    gaps = measure_fp32(expected, encoder.weights(texts), compared, FP32_TOLERANCE)
    return {"reference": "torch", "texts": len(texts), **gaps}
