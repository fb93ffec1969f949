"""`match_phrase`: words of one field that stand side by side."""

from __future__ import annotations

from .match import Match


class MatchPhrase(Match):
    """Looks for words side by side."""

    name = "match_phrase"
    demand = "phrase"
