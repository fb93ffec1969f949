"""Representation with a vector for each passage of a document, and the passage's place in its text."""

from __future__ import annotations

from typing import Any

from ...cluster.connection import Cluster
from ...cluster.dialects import Version
from ...cluster.record import PASSAGE_VECTOR, Record
from ...cluster.retrievers.dense import to_stored_values
from ...encoders.contract import Encoder
from ...encoders.passages import require_tokens
from ...errors import SettingsError
from ...records import Windows
from ..settings import ReindexSettings
from . import EncodedDocument
from .one_vector import OneVector, are_near


class PassageVectors(OneVector):
    """Vectors of overlapping windows of a document; the best-scoring passage counts."""

    name = "passage_vectors"
    help = "a vector for each window of a document"
    setting = "passages"
    works_in_place = False
    windows: Windows

    def __init__(self, settings: ReindexSettings, encoder: Encoder, state: Windows | None = None) -> None:
        super().__init__(settings, encoder)
        self.windows = state or chosen_windows(settings, encoder)

    @classmethod
    def is_chosen(cls, named: ReindexSettings | Record) -> bool:
        """Return whether documents are split into passages."""
        return not super().is_chosen(named)

    @classmethod
    def settings_in(cls, record: Record) -> dict[str, Any]:
        """Return the settings of passages that an index was written with, as `chosen_windows` reads them."""
        if (windows := record.passages) is None:
            return {"passages": False}
        return {"passages": True, "passage_overlap": windows.overlap, "max_passages": windows.most}

    @classmethod
    def described(cls, record: Record) -> str:
        """Return a line on how documents are split."""
        windows = record.passages
        assert windows
        return f"passages of {windows.tokens} tokens, {windows.overlap} shared, at most {windows.most}"

    @classmethod
    def check(cls, cluster: Cluster, encoder: Encoder, settings: ReindexSettings) -> None:
        """Raise what `OneVector.check` raises, and ModelError or SettingsError for impossible windows."""
        super().check(cluster, encoder, settings)
        chosen_windows(settings, encoder)

    @property
    def job(self) -> dict[str, Any]:
        """Return length, overlap and number of the windows."""
        return {self.setting: self.windows.to_json()}

    def mapping(self, version: Version) -> dict[str, Any]:
        """Return the nested mapping of passages: their vectors, and start and end, which are stored only."""
        [(field, vector)] = super().mapping(version).items()
        offset = {"type": "integer", "index": False, "doc_values": False}
        properties = {PASSAGE_VECTOR: vector, "start": offset, "end": offset}
        return {field: {"type": "nested", "dynamic": "false", "properties": properties}}

    def fitted(self, sample: object) -> Windows:
        """Return the windows, which follow from settings and encoder alone."""
        return self.windows

    def values(self, encoded: EncodedDocument) -> dict[str, Any]:
        """Return the vector, start and end of each passage."""
        vectors = to_stored_values(encoded.vectors, self.settings.vectors)
        passages = [
            {PASSAGE_VECTOR: vector, "start": start, "end": end}
            for vector, (start, end) in zip(vectors, encoded.split.spans, strict=True)
        ]
        return {self.settings.vector_field: passages}

    def fits(self, encoded: EncodedDocument, stored: Any) -> bool:
        """Return whether a document holds exactly the passages of its text, each with its vector."""
        parts = stored if isinstance(stored, list) else []
        has_spans = [(part.get("start"), part.get("end")) for part in parts] == list(encoded.split.spans)
        vectors = [part.get(PASSAGE_VECTOR) for part in parts]
        return has_spans and all(vectors) and are_near(encoded.vectors, vectors)

    def planned(self, vectors: int, size: int) -> str:
        """Return a line of the plan with the number of passages."""
        windows = self.windows
        return (
            f"passages: about {vectors:,}, of {windows.tokens} tokens, {windows.overlap} of them shared, "
            f"at most {windows.most} a document"
        )


def chosen_windows(settings: ReindexSettings, encoder: Any) -> Windows:
    """Return the windows that the settings select.

    Raises ModelError for an encoder that does not report where its tokens are, SettingsError if windows would
    share more than half of their tokens.
    """
    source = require_tokens(encoder)
    tokens = settings.max_tokens or source.max_tokens
    half = source.room("document", tokens) // 2
    if settings.passage_overlap > half:
        raise SettingsError(
            f"passage_overlap {settings.passage_overlap} is more than half of a window of {tokens} tokens",
            hint=f"[reindex] passage_overlap = {max(0, half)} at most, or a larger --max-tokens",
        )
    return Windows(tokens, settings.passage_overlap, settings.max_passages)
