"""Queries and documents read together (a cross-encoder) by a folder with the head in its graph: no torch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .contract import Vectors, checked_texts
from .engines import OUTPUT, sound_graph
from .graph_folders import GraphFolder
from .sessions import open_session, session_outputs
from .tokens import BATCH_TOKENS, batch_share, batches, of_shape, padded, work_off


class PairScorer(GraphFolder):
    """Scores how well a document answers a query: the raw logit, which has no bounds; the higher the better.

    >>> PairScorer("docs-reranker").score([("deep sea", "the floor of the ocean")])
    array([4.2], dtype=float32)
    """

    entry = "pair_scorer"
    how_to_make = (
        "hybridr export FOLDER makes one of a sequence classifier, or --dam DIR --rem DIR --ranker rerank"
    )
    named = "[search] rerank_settings = {folder = DIR}"

    def __init__(self, folder: Path | str, precision: str | None = None) -> None:
        """Open a folder of `hybridr export`; `precision` None is the one that it was exported for.

        Raises ModelError for another folder, or a damaged one.
        """
        super().__init__(folder)
        self._session = open_session(sound_graph(self.folder, precision or self.details.precision))
        self._inputs = [value.name for value in self._session.get_inputs()]

    def score(self, pairs: Sequence[tuple[str, str]], *, within_s: float | None = None) -> Vectors:
        """Score pairs of query and document to float32 `(n,)`, in their order. Raises DataError, ModelError.

        No batch begins later than `within_s` seconds from now: the first pairs are scored first, and what is
        left then is NaN. A batch that has begun is waited for.
        """
        checked_texts([text for pair in pairs for text in pair])
        read = list(self._texts.pairs(pairs, self.max_tokens))
        lengths, scores = [len(ids) for ids, _ in read], np.full(len(read), np.nan, dtype=np.float32)
        until = None if within_s is None else time.monotonic() + within_s

        def fill(batch: NDArray[np.int64]) -> None:
            if until is None or time.monotonic() < until:
                logits = self._run(*zip(*(read[place] for place in batch), strict=True))
                scores[batch] = of_shape(logits, (len(batch),))

        size = batch_share(lengths, BATCH_TOKENS, self._threads)
        work_off(fill, list(batches(lengths, size, sort=until is None)), self._threads)
        return scores

    def _run(self, rows: Sequence[list[int]], segments: Sequence[list[int]]) -> Vectors:
        ids, mask = padded(rows)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": padded(segments)[0]}
        [scores] = session_outputs(self._session, [OUTPUT], {name: inputs[name] for name in self._inputs})
        return scores
