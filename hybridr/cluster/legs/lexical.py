"""The lexical leg: what matches the words of a query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def lexical_query(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Match the text in one field, or as the best sum over several."""
    if len(fields) == 1:
        return {"match": {fields[0]: {"query": text}}}
    return {"multi_match": {"query": text, "fields": list(fields), "type": "most_fields"}}


def lexical_leg(
    query: dict[str, Any], name: str | None = None, filter: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Name a lexical query, and limit it to what matches `filter`; its scores stay."""
    added: dict[str, Any] = {"filter": [filter]} if filter is not None else {}
    added |= {"_name": name} if name else {}
    return {"bool": {"must": [query], **added}} if added else query


def among(doc_ids: Sequence[str], query: dict[str, Any]) -> dict[str, Any]:
    """Ask about these documents only; the scores stay."""
    return {"bool": {"must": [query], "filter": [{"ids": {"values": list(doc_ids)}}]}}


def highlight(fields: Sequence[str], text: str) -> dict[str, Any]:
    """Mark the query's words in the best fragment of each field."""
    fragment = {"number_of_fragments": 1, "fragment_size": 160, "no_match_size": 160}
    return {"highlight_query": lexical_query(text, fields), "fields": dict.fromkeys(fields, fragment)}
