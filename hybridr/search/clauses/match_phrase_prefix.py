"""`match_phrase_prefix`: words side by side, the last of them a beginning."""

from __future__ import annotations

from .match import Match


class MatchPhrasePrefix(Match):
    """Looks for words side by side, of which the last may go on."""

    name = "match_phrase_prefix"
    demand = "phrase"
