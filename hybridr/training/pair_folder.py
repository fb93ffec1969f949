"""Reads and exports folders of re-rankers: one of `assemble`, or a sequence classifier of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.contract import Usage, longest_input, require_no_links
from ..encoders.export.parity import FP32_TOLERANCE, GENERATED, generated_texts, measure_fp32
from ..encoders.graph_folders import PairScorer
from ..encoders.model_usage import own_limit
from ..encoders.stored_models import CLASSIFIER
from ..errors import ModelError, extra
from ..files.manifest import fingerprint
from .graph_exports import GraphExport, write_graph_folder
from .ranker import Ranker, Tokens
from .rankers import score_pairs
from .torch_models import BackboneModel, digest_weights, read_configuration, read_model

with extra("train", "exporting a re-ranker"):
    import torch

INT8_CORRELATION = 0.9  # the least with fp32 scores that still counts as the same re-ranker


class PairClassifier(BackboneModel):
    """A sequence classifier with one label, whose logit is the score of a pair of query and document."""

    ranker = "rerank"

    def __init__(self, model: Any, definition: str, folder: Path) -> None:
        limit = min(own_limit(folder), longest_input(model.config))
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
            f"{folder} sorts texts into {labels} classes, a re-ranker gives one score",
            hint="a cross-encoder with one label is needed, as those that are trained on MS MARCO",
        )
    model, definition, missing = read_model(folder, CLASSIFIER)
    if missing:
        raise ModelError(f"{folder} is no re-ranker: it lacks {len(missing)} weights, such as {min(missing)}")
    return PairClassifier(model, definition, folder)


def export_pairs(source: Ranker | Path, folder: Path, precision: Any = "fp32") -> Path:
    """Export a re-ranker to `folder`, which is replaced atomically, and return its path. Raise ModelError."""
    model: Any = read_classifier(source) if isinstance(source, Path) else source
    entry = {"fingerprint": model.fingerprint, "ranker": model.ranker}

    def parity(opened: PairScorer) -> dict[str, Any]:
        """Compare the exported graph's scores with torch's and return the gaps. Raises ModelError."""
        texts = generated_texts(str(model.tokens.definition), model.max_tokens, 2 * GENERATED)
        pairs = list(zip(texts[::2], reversed(texts[1::2]), strict=True))
        expected, compared = model.score(pairs), ("torch", f"{len(pairs)} pairs")
        scores = PairScorer(opened.folder, "fp32").score(pairs)
        record: dict[str, Any] = {"reference": "torch", "texts": len(pairs)}
        record |= measure_fp32(expected, scores, compared, FP32_TOLERANCE)
        if precision == "int8":
            correlation = float(np.corrcoef(expected, PairScorer(opened.folder).score(pairs))[0, 1])
            if not correlation >= INT8_CORRELATION:
                raise ModelError(
                    f"int8 scores have a correlation of {correlation:.3f} to fp32, {INT8_CORRELATION} is "
                    "needed",
                    hint="this model does not bear int8: export with --precision fp32",
                )
            record["int8_correlation"] = correlation
        return record

    graph = GraphExport(model, model.tokens.definition, PairScorer, entry, parity, model.input_names)
    return write_graph_folder(graph, folder, precision)
