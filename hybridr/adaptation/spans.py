"""The label-free objective: two spans of one document attract each other, those of others repel."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray

from ..errors import ModelError
from ..records import Document
from ..retriever import Retriever

LEAST_SPAN = 8  # tokens; shorter spans say too little about their document
LONGEST_DOCUMENT = 512  # tokens that are kept of a document; spans come from there


class SpanCorpus:
    """Token ids of documents that are long enough for two spans, without special tokens."""

    def __init__(self, documents: Sequence[Document], retriever: Retriever) -> None:
        self.before, self.after = frame(retriever)
        texts = [document.contents for document in documents]
        cut = LONGEST_DOCUMENT + 2
        inner = (ids[1:-1] for ids in retriever.tokenizer.ids(texts, cut))
        self.rows = [np.asarray(ids, dtype=np.int32) for ids in inner if len(ids) >= 2 * LEAST_SPAN]

    def __len__(self) -> int:
        return len(self.rows)

    def pairs(self, positions: Iterable[int], longest: int, random: Generator) -> list[list[int]]:
        """Draw two disjoint spans of each document: `2n` rows with special tokens, a1 b1 a2 b2 …"""
        rows = []
        for position in positions:
            for span in draw_spans(self.rows[position], longest, random):
                rows.append([*self.before, *span.tolist(), *self.after])
        return rows


def draw_spans(
    ids: NDArray[np.int32], longest: int, random: Generator
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Cut two disjoint windows of 8 to `longest` tokens out of a document, in random order."""
    border = int(random.integers(LEAST_SPAN, len(ids) - LEAST_SPAN + 1))
    left, right = window(ids[:border], longest, random), window(ids[border:], longest, random)
    return (left, right) if random.random() < 0.5 else (right, left)


def window(ids: NDArray[np.int32], longest: int, random: Generator) -> NDArray[np.int32]:
    """Cut a random window of 8 to `longest` tokens."""
    size = int(random.integers(LEAST_SPAN, min(longest, len(ids)) + 1))
    start = int(random.integers(0, len(ids) - size + 1))
    return ids[start : start + size]


def frame(retriever: Retriever) -> tuple[list[int], list[int]]:
    """Give the ids that stand before and after a document: special tokens and the model's prefix."""
    empty, prefix = retriever.tokenizer.ids(["", retriever.usage.prefixes["document"]], None)
    if len(empty) != 2:
        raise ModelError(f"the tokenizer adds {len(empty)} special tokens to a text; 2 are supported")
    return prefix[:-1], prefix[-1:]


def span_loss(vectors: torch.Tensor, temperature: float) -> torch.Tensor:
    """Symmetric cross entropy of cosine / temperature over the batch's own pairs.

    `vectors` is `(2n, dim)` in the order a1 b1 a2 b2 …; every a must find its b among all b, and back
    (Gao and Callan 2022 with in-batch negatives of the other side; methods B.1).
    """
    unit = torch.nn.functional.normalize(vectors, dim=-1)
    scores = unit[0::2] @ unit[1::2].T / temperature  # (n, n)
    own = torch.arange(len(scores), device=scores.device)
    crossed = torch.nn.functional.cross_entropy
    return (crossed(scores, own) + crossed(scores.T, own)) / 2
