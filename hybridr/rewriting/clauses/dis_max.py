"""`dis_max`: the best of several queries, where all look for the same text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import Clause, QueryReader, Reason, Wanted, joined


class DisMax(Clause):
    """Takes the best of several queries."""

    name = "dis_max"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> Wanted | Reason:
        """Take the text that all of its queries look for."""
        queries = body.get("queries")
        if not isinstance(queries, list) or not queries:
            return "no_text"
        texts = []
        for query in queries:
            one = reader.read(query)
            if isinstance(one, str):
                return one
            texts.append(one)
        return joined(texts)
