"""The mark beside a vector: which encoder made it, of which text. One that fits proves the vector current."""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

from ..cluster import IndexInfo
from ..manifest import fingerprint
from ..reading import text_of

MARK_FIELD = "hybridr_mark"
ENCODER_DIGITS, TEXT_DIGITS = 16, 32  # 64 bits tell encoders apart, 128 bits texts


class Marks(NamedTuple):
    """What the marks of an index are made of: the encoder's fingerprint, its input limit, the text fields."""

    encoder: str
    max_tokens: int | None
    fields: tuple[str, ...]

    @classmethod
    def of_index(cls, info: IndexInfo) -> Marks:
        """Read from the index's record what its marks are made of."""
        return cls(info.meta["encoder"], info.meta["max_tokens"], tuple(info.meta["fields"]))

    @property
    def encoder_part(self) -> str:
        """Give what all marks of this encoder begin with."""
        return fingerprint([self.encoder, self.max_tokens])[:ENCODER_DIGITS] + "-"

    @property
    def of_no_text(self) -> str:
        """Give the mark of a document without text, which has no vector."""
        return self.of("")

    @property
    def read_fields(self) -> tuple[str, ...]:
        """Name what must be read of a document to tell whether its mark fits."""
        return (*self.fields, MARK_FIELD)

    def of(self, text: str) -> str:
        """Give the mark of a vector of this text."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return self.encoder_part + digest[:TEXT_DIGITS]

    def of_source(self, source: dict[str, Any]) -> str:
        """Give the mark that a document should bear."""
        return self.of(text_of(source, self.fields))

    def fits(self, source: dict[str, Any]) -> bool:
        """Tell whether the document bears the mark of its present text."""
        return bool(source.get(MARK_FIELD) == self.of_source(source))

    def by_encoder(self, source: dict[str, Any]) -> bool:
        """Tell whether this encoder looked at the document, in whatever state."""
        return str(source.get(MARK_FIELD, "")).startswith(self.encoder_part)


def marked_query(marks: Marks) -> dict[str, Any]:
    """Match the documents that this encoder looked at, in whatever state."""
    return {"prefix": {MARK_FIELD: marks.encoder_part}}


def broken_query(marks: Marks, vector_field: str) -> dict[str, Any]:
    """Match documents whose mark speaks of a vector that is not there, or of none where one is."""
    vector: dict[str, Any] = {"exists": {"field": vector_field}}
    no_text: dict[str, Any] = {"term": {MARK_FIELD: marks.of_no_text}}
    lacking = {"bool": {"must_not": [vector, no_text]}}
    return {"bool": {"filter": [marked_query(marks)], "should": [lacking, both(vector, no_text)],
                     "minimum_should_match": 1}}  # fmt: skip


def held_query(vector_field: str) -> dict[str, Any]:
    """Match the documents that hold a vector or a mark."""
    exists: list[dict[str, Any]] = [{"exists": {"field": name}} for name in (vector_field, MARK_FIELD)]
    return {"bool": {"should": exists, "minimum_should_match": 1}}


def both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Match what both queries match."""
    return {"bool": {"filter": [one, other]}}


def other_than(query: dict[str, Any]) -> dict[str, Any]:
    """Match what a query does not."""
    return {"bool": {"must_not": [query]}}
