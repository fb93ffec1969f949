"""`function_score`: a text whose score is multiplied by popularity, recency and the like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import Clause, QueryReader, Reason, Wanted


class FunctionScore(Clause):
    """Changes the score of the query within."""

    name = "function_score"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> Wanted | Reason:
        """Take the text within, where functions multiply its score: they mean the same on any scale."""
        one = reader.inside(self.name, body, "query")
        if isinstance(one, str):
            return one
        multiplied = body.get("boost_mode", "multiply") == "multiply" and "min_score" not in body
        return one if multiplied and "_score" not in str(scripts_of(body)) else "functions"


def scripts_of(body: Mapping[str, Any]) -> list[Any]:
    """List the scripts among the functions: one that reads the score knows its scale."""
    functions = body.get("functions", [body])
    return [one.get("script_score") for one in functions if isinstance(one, Mapping)]
