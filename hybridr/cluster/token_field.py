"""The field of token vectors: how an index keeps them, what it remembers, and what scores by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import DataError
from .record import Record

TOKENS_FIELD, TOKENS_IMPRINT = "hybridr_tokens", "token_vectors"
TOKENS_MAPPING: dict[str, Any] = {"type": "object", "enabled": False}
LATE_INTERACTION = (3, 3, 0)  # since when a script may ask the k-NN plugin for it
TOKEN_DECIMALS = 6
SCRIPT = (
    f"params._source.containsKey('{TOKENS_FIELD}') && !params._source.{TOKENS_FIELD}.isEmpty() "
    f"? lateInteractionScore(params.query, '{TOKENS_FIELD}', params._source, 'cosinesimil') : 0"
)
"""Sums (1 + cosine) / 2 of the nearest vector over the vectors of a query; 0 for a document without any."""


class TokenState(BaseModel):
    """What an index remembers of its token vectors: which encoder made them, the form of values, and how mean
    scores spread; None where that could not be measured."""

    model_config = ConfigDict(frozen=True)
    encoder: str = Field(pattern=r"^[0-9a-f]{64}$")
    values: Literal["float", "byte"]
    spread: float | None = Field(None, gt=0)

    @classmethod
    def read(cls, text: str) -> TokenState:
        """Read what a record holds. Raises DataError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            said = error.errors()[0]["msg"].lower()
            raise DataError(f"hybridr's record says something odd of the token vectors: {said}") from None

    @classmethod
    def of(cls, record: Record) -> TokenState | None:
        """Read what an index remembers; None where it has no such vectors."""
        text = record.imprints.get(TOKENS_IMPRINT)
        return cls.read(text) if text else None


def tokens_value(vectors: NDArray[Any]) -> dict[str, Any]:
    """Give the field the vectors `(tokens, dim)` of a document, as bytes or to 6 decimals."""
    whole = np.issubdtype(vectors.dtype, np.integer)
    return {
        TOKENS_FIELD: (vectors if whole else np.round(vectors.astype(np.float64), TOKEN_DECIMALS)).tolist()
    }


def tokens_query(query: NDArray[np.float32], doc_ids: Sequence[str]) -> dict[str, Any]:
    """Score exactly these documents by the vectors `(tokens, dim)` of a query; see `max_sims`."""
    asked = {"ids": {"values": list(doc_ids)}}
    params = {"query": np.round(query.astype(np.float64), TOKEN_DECIMALS + 2).tolist()}
    return {"script_score": {"query": asked, "script": {"source": SCRIPT, "params": params}}}


def max_sims(scores: Mapping[str, float], query: NDArray[np.float32]) -> dict[str, float]:
    """Make sums of cosines of what `tokens_query` found; documents without vectors fall out."""
    return {doc_id: 2 * score - len(query) for doc_id, score in scores.items() if score > 0}


def token_vectors_in(source: Mapping[str, Any]) -> NDArray[np.float32]:
    """Read the vectors `(tokens, dim)` of a document, brought to length 1; none where it has none."""
    held = np.array(source.get(TOKENS_FIELD) or np.zeros((0, 0)), dtype=np.float32)
    found: NDArray[np.float32] = held / np.maximum(np.linalg.norm(held, axis=-1, keepdims=True), 1e-12)
    return found
