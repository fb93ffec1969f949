"""`simple_query_string`: as `query_string`, with a smaller language."""

from __future__ import annotations

import re

from .query_string import QueryString


class SimpleQueryString(QueryString):
    """Looks for words, or for what signs between them say."""

    name = "simple_query_string"
    signs = re.compile(r'[+|"()~*\\]|(?<!\w)-|-(?!\w)')
