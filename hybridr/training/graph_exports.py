"""Exports models that give no vector as graph folders: sparse and multi-vector encoders, and re-rankers.

A model is traced by torch to ONNX, described in a manifest, and compared with the original. The source is a
ranker of `assemble`, or the folder of a sequence classifier of transformers.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..encoders.contract import (
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
from ..encoders.graph_folders import GraphFolder, MultiVectorEncoder, PairScorer, SparseEncoder
from ..encoders.model_usage import configured_limit
from ..encoders.quantization import quantize
from ..encoders.stored_models import (
    CLASSIFIER,
)
from ..encoders.tokens import TOKENIZER_FILE
from ..errors import ModelError
from ..files.local import fingerprint, write_manifest
from ..files.staging import staged_folder
from .ranker import Ranker, Tokens
from .rankers import score_pairs
from .torch_models import (
    BackboneModel,
    digest_weights,
    read_configuration,
    read_model,
)


def write_graph_folder(
    model: Any,
    kind: type[GraphFolder],
    folder: Path,
    precision: Precision,
    parity: Callable[[Any], dict[str, Any]],
    **details: Any,
) -> Path:
    """Export a model of torch into `folder`, which is replaced as a whole, and return its path.

    `kind` is the class that opens the folder, `parity` compares the opened folder with the model, and
    `details` are further fields of the manifest. Raises ModelError.
    """
    if model.tokens.definition is None:
        raise ModelError("the DAM has no tokenizer, which an encoder needs", hint="add its tokenizer.json")
    if precision != "fp32" and kind is not PairScorer:
        name = kind.entry.replace("_", " ")
        raise ModelError(f"a {name} is exported in fp32", hint="--precision fp32")
    inputs = model.input_names if kind is PairScorer else ["input_ids", "attention_mask"]
    opset = SCATTERING_OPSET if kind is SparseEncoder else OPSET
    with staged_folder(folder) as staged:
        (staged / TOKENIZER_FILE).write_text(model.tokens.definition, encoding="utf-8")
        graph = staged / GRAPHS["fp32"]
        graph.parent.mkdir()
        trace(model.eval(), graph, inputs, [OUTPUT], opset)
        if precision == "int8":
            quantize(graph, staged / GRAPHS["int8"])
        entry = {
            "max_tokens": model.max_tokens,
            "max_positions": model.max_positions,
            "precision": precision,
            "base": base_model_name(model.folder),
            "fingerprint": model.fingerprint,
            "ranker": model.ranker,
            **details,
        }
        origins = {"assembly": model.origins} if hasattr(model, "origins") else {}  # the names of DAM and REM
        manifest: dict[str, Any] = {
            "stage": "export",
            "settings": {"precision": precision, "opset": opset},
            "inputs": {"model": entry["base"]},
            "outputs": [path.relative_to(staged).as_posix() for path in staged.rglob("*") if path.is_file()],
        }
        records = {kind.entry: entry, **origins}
        write_manifest(staged, **manifest, extra=records)
        write_manifest(staged, **manifest, extra={**records, "parity": parity(kind(staged))})
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


def export_sparse(ranker: Any, folder: Path, precision: Precision = "fp32") -> Path:
    """Export uniCOIL or SPLADE into `folder`, replacing it; return its path. Raises ModelError."""

    def parity(opened: SparseEncoder) -> dict[str, Any]:
        """Compare the exported graph's weights with torch's and return the differences. Raises ModelError."""
        texts = generated_texts(str(ranker.tokens.definition), ranker.max_tokens, GENERATED)
        return compared(ranker.encode_documents(texts), opened.weights(texts), len(texts), "texts")

    return write_graph_folder(ranker, SparseEncoder, folder, precision, parity, vocabulary=ranker.dim)


def compared(expected: Vectors, rows: Vectors, count: int, noun: str) -> dict[str, Any]:
    """Return how far a graph's rows are from torch's for `count` texts. Raises ModelError if too far."""
    gaps = measure_fp32(expected, rows, ("torch", f"{len(rows)} {noun}"), FP32_TOLERANCE)
    return {"reference": "torch", "texts": count, **gaps}


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

    def parity(opened: PairScorer) -> dict[str, Any]:
        """Compare the exported graph's scores with torch's and return the differences. Raises ModelError."""
        texts = generated_texts(str(model.tokens.definition), model.max_tokens, 2 * GENERATED)
        pairs = list(zip(texts[::2], reversed(texts[1::2]), strict=True))
        expected, scores = model.score(pairs), PairScorer(opened.folder, "fp32").score(pairs)
        record = compared(expected, scores, len(pairs), "pairs")
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

    return write_graph_folder(model, PairScorer, folder, precision, parity)


def export_multi_vector(ranker: Any, folder: Path, precision: Precision = "fp32") -> Path:
    """Export ColBERT into `folder`, which is replaced as a whole, and return its path. Raises ModelError."""

    def parity(opened: MultiVectorEncoder) -> dict[str, Any]:
        """Compare the graph's token vectors with torch's and return the differences. Raises ModelError."""
        texts = generated_texts(str(ranker.tokens.definition), opened.max_tokens, GENERATED)
        expected = [ranker.encode_documents([text])[0] for text in texts]
        vectors = np.concatenate(opened.encode_documents(texts))
        return compared(np.concatenate(expected), vectors, len(texts), "vectors of tokens")

    return write_graph_folder(ranker, MultiVectorEncoder, folder, precision, parity, dim=ranker.dim)
