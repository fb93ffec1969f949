"""What adaptation starts from, and what comes of it: an encoder, documents, and how it is fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..encoders.contract import Encoder
from ..encoders.export.model_files import Exportable
from ..errors import DataError
from ..records import Document, Progress
from .corpus import DrawnSample, Source, draw_sample
from .settings import AdaptSettings, EnsembleSettings, SpanSettings

if TYPE_CHECKING:
    from .loop import Processes

USUAL = {"two": "ensemble", "retriever": "span", "dam": "mlm"}
"""The objective that is taken where none is asked for, by what is fitted."""
BASES_VERSION = 2  # of the procedure; a change of its results makes finished runs start anew


class OneProcess:
    """This process, where no others train with it."""

    is_main = True

    def wait(self) -> None:
        """Return at once."""


@dataclass(frozen=True)
class Start:
    """The encoder as it is, the documents for the gate, and what is still to be done."""

    old: Exportable
    old_encoder: Encoder
    """What encodes as `old` does, where that itself is slow."""
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
    processes: Processes | OneProcess = field(default_factory=OneProcess)
    """Those that train together."""


@dataclass(frozen=True)
class Fitted:
    """The candidate, and how its training went."""

    candidate: Exportable
    strength: float
    """The share of the change that the candidate keeps."""
    training: Mapping[str, Any]
    """What the manifest says of the run; its losses are thinned."""
    attachments: Mapping[str, Path] = field(default_factory=dict)
    """Files and folders that are kept beside the encoder, by name."""
    encoder: Encoder | None = None
    """What encodes as the candidate does, where that itself is slow."""


def read_sample(
    documents: Source, own: SpanSettings | EnsembleSettings, settings: AdaptSettings, progress: Progress
) -> DrawnSample:
    """Draw the documents of a retriever's adaptation. Raises DataError, also for another language than the
    packaged one reads."""
    sample = draw_sample(documents, own, progress)
    if settings.base == "minilm" and not settings.any_language:
        require_language(sample.language, "en", "the packaged model")
    return sample


def require_language(language: str, needed: str, model: str) -> None:
    """Raise DataError when the documents are in another language than the model reads."""
    if language not in (needed, "und"):
        raise DataError(
            f"most documents look like language '{language}'; {model} reads '{needed}'",
            hint="give a model of that language with --base, or --yes to go on all the same",
        )
