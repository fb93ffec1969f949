"""`dis_max`: the best of several queries, where all look for the same text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import Clause, NotRanked, ParsedQuery, QueryReader, is_limited, joined, setting_scores


class DisMax(Clause):
    """Takes the best of several queries."""

    name = "dis_max"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the text that its queries look for; they may score by more."""
        queries = body.get("queries")
        if not isinstance(queries, list) or not queries:
            return NotRanked("no_text")
        read = [(query, reader.read(query)) for query in queries]
        parts = [(query, part) for query, part in read if isinstance(part, ParsedQuery)]
        if not parts:
            return next(part for _, part in read if isinstance(part, NotRanked))
        parsed = joined(parts)
        if isinstance(parsed, NotRanked) or (parsed.words is None and len(parts) == len(read)):
            return parsed
        if setting := setting_scores(parsed):
            return NotRanked("scores", f"{setting} in {self.name}")
        demand = parsed.demand or ("clauses" if is_limited(parsed) else None)
        return ParsedQuery(parsed.text, demand=demand, words={self.name: body}, typed=parsed.typed)
