"""Adapters: they fit an encoder to documents without gradients and without torch, one file each.

The class of a member assigns literals to `name` (that of the file), `help` for the command line, and
`on = "documents"`. It is made as Member(base, settings, progress) and chosen by `adapt --objective`.
"""

from __future__ import annotations

from typing import Any, Protocol

from ...records import Progress
from ...settings import Stage
from ..contract import Encoder
from ..export.model_files import Exportable

DOCUMENT_TOKENS = 128
"""Tokens of each document that adapters and the gate read: enough, in half the time."""


class Adapter(Protocol):
    """Fits an encoder to documents; its Settings have `fields`, `max_documents`, `held_out` and `seed`."""

    name: str
    """Name of the adapter, which is that of its file."""
    title: str
    """Name in words, for manifests."""
    strength: float
    """Default share (0..1) of the change or of the second retriever."""
    fingerprint: str
    """Fingerprint of all inputs, 64 hex digits."""
    candidate: Exportable
    """The fitted encoder, set by the fit."""
    encoder: Encoder
    """A faster encoder with the vectors of `candidate`."""
    old_encoder: Encoder
    """A fast encoder with the vectors of the base, with which the gate compares."""
    Settings: type[Stage]
    """Class of the adapter's settings."""

    def fit(self, texts: list[str], unseen: list[str], strength: float, progress: Progress) -> dict[str, Any]:
        """Fit `candidate` to documents; return facts for a manifest."""
