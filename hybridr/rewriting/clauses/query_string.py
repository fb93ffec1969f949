"""`query_string`, which `?q=` becomes: plain words in it look for a text, signs and operators for more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import Clause, QueryReader, Reason, Wanted

SIGNS = re.compile(r'[+=&|><!(){}\[\]^"~*?:\\/]|(?<!\w)-|-(?!\w)|\b(AND|OR|NOT)\b')
"""What may be syntax in a query of Lucene; a hyphen within a word is none."""


class QueryString(Clause):
    """Looks for words, or for what a language of its own says."""

    name = "query_string"
    signs = SIGNS

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> Wanted | Reason:
        """Take the text, where it holds no sign of the language."""
        text, kind = body.get("query"), body.get("type", "best_fields")
        if kind not in ("best_fields", "most_fields", "cross_fields"):
            return "phrase"
        if isinstance(text, str) and self.signs.search(text):
            return "syntax"
        return reader.text_of(text, named_fields(body), body)


def named_fields(body: Mapping[str, Any]) -> Any:
    """Give the fields that such a query names; `*` is all of them."""
    named = body.get("fields") or body.get("default_field")
    return None if named in ("*", ["*"], ["*^1.0"]) else named
