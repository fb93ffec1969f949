"""`boosting`: a text, and what makes its documents count less."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import Clause, NotRanked, ParsedQuery, QueryReader


class Boosting(Clause):
    """Multiplies the score of documents that match another query, too."""

    name = "boosting"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the text of the positive query."""
        return reader.inside(self.name, body, "positive")
