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
        one = reader.read(body.get("query"))
        if isinstance(one, str):
            return one
        outside = {name: value for name, value in body.items() if name != "query"}
        if body.get("boost_mode", "multiply") != "multiply" or "min_score" in body:
            return "functions"
        if "_score" in str(scripts_of(body)):
            return "functions"
        return one._replace(around=(*one.around, ("query", {self.name: outside})))


def scripts_of(body: Mapping[str, Any]) -> list[Any]:
    """List the scripts among the functions: one that reads the score knows its scale."""
    functions = body.get("functions", [body])
    return [one.get("script_score") for one in functions if isinstance(one, Mapping)]
