"""Which tags of HTML stand in texts of documents, and a text without them."""

from __future__ import annotations

import re

TAG = re.compile(
    r"</?(?:a|abbr|b|blockquote|br|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|span|strong|table|tbody|td|th|thead|"
    r"tr|u|ul)(?:\s[^<>]*|/)?>",
    re.IGNORECASE,
)
"""A tag of HTML as documents hold it."""


def without_tags(text: str) -> str:
    """Give a text on one line without its tags; other angle brackets stay."""
    return " ".join(TAG.sub(" ", text).split())
