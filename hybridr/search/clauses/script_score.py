"""`script_score`: a text whose score a script makes anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import Clause, NotRanked, ParsedQuery, QueryReader


class ScriptScore(Clause):
    """Changes the score of the query within."""

    name = "script_score"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the text within."""
        return reader.inside(self.name, body, "query")
