"""`dis_max`: the best of several queries, where all look for the same text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import AboutReason, Clause, QueryReader, Reason, Wanted, is_limited, joined, setting_scores


class DisMax(Clause):
    """Takes the best of several queries."""

    name = "dis_max"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> Wanted | Reason:
        """Take the text that its queries look for; they may score by more."""
        queries = body.get("queries")
        if not isinstance(queries, list) or not queries:
            return "no_text"
        read = [(query, reader.read(query)) for query in queries]
        found = [(query, one) for query, one in read if isinstance(one, Wanted)]
        if not found:
            return next(one for _, one in read if isinstance(one, str))
        one = joined(found)
        if isinstance(one, str) or (one.words is None and len(found) == len(read)):
            return one
        if setting := setting_scores(one):
            return AboutReason("scores", f"{setting} in {self.name}")
        demand = one.demand or ("clauses" if is_limited(one) else None)
        return Wanted(one.text, demand=demand, words={self.name: body}, typed=one.typed)
