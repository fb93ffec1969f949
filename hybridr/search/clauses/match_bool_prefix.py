"""`match_bool_prefix`: words in one field, the last of them a beginning."""

from __future__ import annotations

from .match import Match


class MatchBoolPrefix(Match):
    """Looks for words, of which the last may go on."""

    name = "match_bool_prefix"
    demand = "phrase"
