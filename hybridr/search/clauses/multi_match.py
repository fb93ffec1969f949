"""`multi_match`: words in several fields, or in all where it names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import Clause, NotRanked, ParsedQuery, QueryReader

BY_WORDS = ("best_fields", "most_fields", "cross_fields")


class MultiMatch(Clause):
    """Looks for words in several fields; phrases and prefixes ask for exactly those letters."""

    name = "multi_match"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the text, where a field is among the index's texts."""
        demand = None if body.get("type", "best_fields") in BY_WORDS else "phrase"
        return reader.text_of({self.name: body}, body.get("fields"), body, demand)
