"""`nested`: a text in objects inside a document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import Clause, NotRanked, ParsedQuery, QueryReader


class Nested(Clause):
    """Looks for a text in the objects of one path."""

    name = "nested"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the text within; what else objects must match stays with it."""
        parsed = reader.read(body.get("query"))
        if isinstance(parsed, NotRanked):
            return parsed
        return ParsedQuery(parsed.text, demand="clauses", words={self.name: body}, typed=parsed.typed)
