"""What an adaptation starts from and ends with, whatever is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..languages import guess_language
from ..records import Document
from ..retriever import Retriever
from ..training import thinned

LANGUAGE_SAMPLE = 500  # documents


@dataclass(frozen=True)
class Fitted:
    """The candidate, and how its training went."""

    candidate: Retriever
    steps: int
    losses: Sequence[float]
    """One per step, or evenly spread ones of them."""
    loss_start: float
    """Mean of the first tenth of the steps."""
    loss_end: float
    unseen: tuple[float | None, float | None]
    """The loss on documents that were not trained on, before and after, at full strength."""
    documents: int
    """How many were trained on."""
    seconds: float
    resumed_from: int
    strength: float
    """The share of the change that the candidate keeps."""
    attachments: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders that are kept beside the encoder, by name."""

    def record(self) -> dict[str, Any]:
        """Describe the training as JSON for a manifest."""
        return {
            "documents": self.documents,
            "steps": self.steps,
            "loss_start": self.loss_start,
            "loss_end": self.loss_end,
            "unseen_loss": list(self.unseen),
            "losses": thinned(self.losses),
            "seconds": round(self.seconds, 1),
            "resumed_from": self.resumed_from,
        }


@dataclass(frozen=True)
class Start:
    """The encoder as it is, the documents for the gate, and what is still to be done."""

    old: Retriever
    held_out: Sequence[Document]
    """Not trained on."""
    others: Sequence[Document]
    read: int
    """Documents read."""
    language: str
    identity: Mapping[str, Any]
    """What the result follows from, as JSON, beside the gate's settings."""
    fit: Callable[[], Fitted]
    records: Mapping[str, Any] = field(default_factory=dict)
    """What the manifest of the encoder says besides."""


def language_of(documents: Sequence[Document]) -> str:
    """Guess the language of most documents; "und" where it cannot be told."""
    return guess_language(document.contents for document in documents[:LANGUAGE_SAMPLE]).code


def require_language(language: str, needed: str, model: str) -> None:
    """Raise DataError when the documents are in another language than the model reads."""
    if language not in (needed, "und"):
        raise DataError(
            f"most documents look like language '{language}'; {model} reads '{needed}'",
            hint="give a model of that language with --base, or --yes to go on all the same",
        )
