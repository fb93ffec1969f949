"""`constant_score`: a text that says which documents there are, and of none that it is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import Clause, NotRanked, ParsedQuery, QueryReader


class ConstantScore(Clause):
    """Gives all that match one score: who asks so wants the text to count for nothing."""

    name = "constant_score"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Find no text, and say so of one that is there."""
        parsed = reader.read(body.get("filter"))
        return parsed if isinstance(parsed, NotRanked) else NotRanked("only_a_filter", self.name)
