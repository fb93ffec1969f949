"""`combined_fields`: words in several fields that count as one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import Clause, NotRanked, ParsedQuery, QueryReader


class CombinedFields(Clause):
    """Looks for words in several fields as if they were one."""

    name = "combined_fields"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the text, where a field is among the index's texts."""
        return reader.text_of({self.name: body}, body.get("fields"), body)
