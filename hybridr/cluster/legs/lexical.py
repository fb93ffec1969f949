"""The lexical leg: what matches the words of a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..record import Record


@dataclass(frozen=True)
class LexicalLeg:
    """BM25 over some text fields, asked by a text, or by a query that feedback made of it."""

    fields: tuple[str, ...]
    name: ClassVar[str] = "lexical"
    reads: ClassVar[Literal["text", "vector"]] = "text"

    @classmethod
    def of(cls, record: Record, fields: Sequence[str]) -> LexicalLeg:
        """Search these fields."""
        return cls(tuple(fields))

    def mapping(self, version: tuple[int, int, int]) -> dict[str, Any]:
        """Map nothing: the texts are there."""
        return {}

    def value(self, encoded: Any, spans: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
        """Give nothing: the texts are there."""
        return {}

    def query(
        self,
        asked: str | Mapping[str, Any],
        k: int,
        *,
        filter: dict[str, Any] | None = None,
        shown: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        """Match the words of the text; the size of the search says how many are found, not `k`."""
        clause = lexical_query(asked, self.fields) if isinstance(asked, str) else dict(asked)
        return lexical_leg(clause, self.name if shown else None, filter, boost)

    def scores_of(self, asked: str | Mapping[str, Any], doc_ids: Sequence[str]) -> dict[str, Any]:
        """Score exactly these documents; those without a word of the query stay away."""
        return among(doc_ids, self.query(asked, len(doc_ids)))


def lexical_query(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Match the text in one field, or as the best sum over several."""
    if len(fields) == 1:
        return {"match": {fields[0]: {"query": text}}}
    return {"multi_match": {"query": text, "fields": list(fields), "type": "most_fields"}}


def lexical_leg(
    query: dict[str, Any],
    name: str | None = None,
    filter: dict[str, Any] | None = None,
    boost: float | None = None,
) -> dict[str, Any]:
    """Name a lexical query, weigh it, and limit it to what matches `filter`; its own scores stay."""
    added: dict[str, Any] = {"filter": [filter]} if filter is not None else {}
    added |= {key: value for key, value in {"_name": name, "boost": boost}.items() if value is not None}
    return {"bool": {"must": [query], **added}} if added else query


def among(doc_ids: Sequence[str], query: dict[str, Any]) -> dict[str, Any]:
    """Ask about these documents only; the scores stay."""
    return {"bool": {"must": [query], "filter": [{"ids": {"values": list(doc_ids)}}]}}


def highlight(fields: Sequence[str], text: str) -> dict[str, Any]:
    """Mark the query's words in the best fragment of each field; the document's own HTML is escaped."""
    fragment = {"number_of_fragments": 1, "fragment_size": 160, "no_match_size": 160}
    fields_marked = dict.fromkeys(fields, fragment)
    return {"encoder": "html", "highlight_query": lexical_query(text, fields), "fields": fields_marked}
