"""`query_string`, which `?q=` becomes: words, and what signs and operators between them say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...languages import says_something
from . import Clause, NotRanked, ParsedQuery, QueryReader

SIGNS = re.compile(r'[+=&|><!(){}\[\]^"~*?:\\/]|(?<!\w)-|-(?!\w)|\b(AND|OR|NOT)\b')
"""What may be syntax in a query of Lucene; a hyphen within a word is none."""
NO_WORDS = re.compile(r"[\[\]{}\\/<>]|\b_exists_:")
"""What stands in ranges, regular expressions and escapes: what users look for by these is no text."""
UNWANTED = re.compile(r'(?:(?<![^\s(])[-!]|\bNOT\s+)(?:[\w.]+:)?(?:"[^"]*"|\([^()]*\)|[^\s()]+)')
OF_A_FIELD = re.compile(r'(?<![\w.*])([\w.*]+):("[^"]*"|\([^()]*\)|[^\s()]+)')
AMONG_WORDS = re.compile(r'[~^][\d.]*|&&|\|\||\b(?:AND|OR|NOT)\b|(?<!\w)-|-(?!\w)|[+=&|!()"*?:]')


class QueryString(Clause):
    """Looks for words, or for what a language of its own says."""

    name = "query_string"
    signs = SIGNS

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the text; of one that holds signs of the language the words that are wanted."""
        text, kind = body.get("query"), body.get("type", "best_fields")
        options = {**body, "fuzziness": None}  # of words that a sign in the text says it of
        demand = None if kind in ("best_fields", "most_fields", "cross_fields") else "phrase"
        if not isinstance(text, str) or not self.signs.search(text):
            return reader.text_of({self.name: body}, named_fields(body), options, demand)
        words = words_wanted(text, reader)
        if NO_WORDS.search(text) or not says_something(words):
            return NotRanked("syntax", self.name)
        parsed = reader.text_of({self.name: body}, named_fields(body), options, "syntax")
        return parsed._replace(text=words, typed=(text,)) if isinstance(parsed, ParsedQuery) else parsed


def words_wanted(text: str, reader: QueryReader) -> str:
    """Give the words that a text looks for in texts: no operators, no names of fields, nothing unwanted."""
    cleaned = UNWANTED.sub(" ", text)
    in_texts = OF_A_FIELD.sub(lambda match: match[2] if reader.has(match[1]) else " ", cleaned)
    return " ".join(AMONG_WORDS.sub(" ", in_texts).split())


def named_fields(body: Mapping[str, Any]) -> Any:
    """Give the fields that such a query names; `*` is all of them."""
    named = body.get("fields") or body.get("default_field")
    return None if named in ("*", ["*"], ["*^1.0"]) else named
