"""`match`: words in one field, `{"field": "text"}` or `{"field": {"query": "text", …}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from . import Clause, NotRanked, ParsedQuery, QueryReader


class Match(Clause):
    """Looks for words in one field."""

    name = "match"
    demand: ClassVar[str | None] = None

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the text, where the field is one of the index's texts."""
        if len(body) != 1:
            return NotRanked("kind", self.name)
        [(field, value)] = body.items()
        options = value if isinstance(value, Mapping) else {"query": value}
        return reader.text_of({self.name: {field: options}}, [field], options, self.demand)
