"""Adapters: what fits an encoder to documents without gradients and without torch, one file each.

The class of a member states in plain lines its `name`, that of the file, a `help` for the command line, and
`on = "documents"`. It is made as Member(base, settings, progress) and chosen by `adapt --objective`.
"""

from __future__ import annotations

from typing import Any, Protocol

from ...records import Progress
from ...settings import Stage
from ..contract import Encoder
from ..export.model_files import Exportable

DOCUMENT_TOKENS = 128
"""Of each document that an adapter is fitted to and that the gate compares: enough, and half the time."""


class Adapter(Protocol):
    """Fits an encoder to documents; its Settings have `fields`, `max_documents`, `held_out` and `seed`."""

    name: str
    """That of the file."""
    title: str
    """Its name in words, for manifests."""
    strength: float
    """The share (0..1) of what is new, unless another is asked for."""
    fingerprint: str
    """Of all that it starts from; 64 hex digits."""
    candidate: Exportable
    """What was fitted, once it is."""
    encoder: Encoder
    """What encodes as `candidate` does, and fast."""
    old_encoder: Encoder
    """What encodes as the base does, likewise; the gate compares both."""

    @property
    def Settings(self) -> type[Stage]:  # noqa: N802
        """Return the class of the adapter's settings."""

    def fit(self, texts: list[str], unseen: list[str], strength: float, progress: Progress) -> dict[str, Any]:
        """Fit `candidate` to documents; return facts for a manifest."""
