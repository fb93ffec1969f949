"""Words as Lucene counts them, and text without markup."""

from __future__ import annotations

import math
import re

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
    "they this to was will with".split()
)
"""Lucene's English stop words."""
TAG = re.compile(
    r"</?(?:a|abbr|b|blockquote|br|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|span|strong|table|tbody|td|th|thead|"
    r"tr|u|ul)(?:\s[^<>]*|/)?>",
    re.IGNORECASE,
)


def idf(containing: float, documents: float) -> float:
    """Give the idf of a term that `containing` of so many documents hold."""
    return math.log(1 + (documents - containing + 0.5) / (containing + 0.5))


def without_tags(text: str) -> str:
    """Give a text on one line without its tags; other angle brackets stay."""
    return " ".join(TAG.sub(" ", text).split())
