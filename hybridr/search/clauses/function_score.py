"""`function_score`: a text whose score is changed by popularity, recency and the like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...cluster.retrievers.lexical import scripts_in
from . import Clause, NotRanked, ParsedQuery, QueryReader


class FunctionScore(Clause):
    """Changes the score of the query within."""

    name = "function_score"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the text within, where its score counts."""
        functions = {name: value for name, value in body.items() if name != "query"}
        asks = any("_score" in script for script in scripts_in(functions))
        if body.get("boost_mode") == "replace" and not asks:
            return NotRanked("functions", "boost_mode replace")
        return reader.inside(self.name, body, "query")
