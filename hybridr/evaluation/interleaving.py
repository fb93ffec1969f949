"""Two rankings in one list, and which of them people choose from: a test that may be looked at every day.

Team draft (Radlinski et al. 2008): in each round a coin says who picks first, and each ranking picks its best
document that is not there yet. Both have equally long lists, so that neither gets a click for being longer;
what both rank alike from the top on belongs to neither, since a click there tells nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from random import Random
from typing import Literal, NamedTuple, TypeAlias

from scipy.special import betaln

Team: TypeAlias = Literal["a", "b", ""]
PSEUDO = 10
"""Wins and losses that the alternative starts from: it expects a share of about .4 to .6."""
ALPHA = 0.05


class Picked(NamedTuple):
    """A document of an interleaved list, and the ranking that picked it; of neither where both agree."""

    doc_id: str
    team: Team


class Standoff(NamedTuple):
    """How often people chose more from `b` (a win) than from `a` (a loss); queries that tie are left out."""

    wins: int
    losses: int

    @property
    def evidence(self) -> float:
        """Give how many times likelier these are if one ranking is better than if neither is.

        2^(w+l) B(w+10, l+10) / B(10, 10). Without a difference it ever reaches 1 / alpha with a chance of at
        most alpha, however often one looks (Ville 1939).
        """
        decided = self.wins + self.losses
        log = (
            decided * math.log(2) + betaln(self.wins + PSEUDO, self.losses + PSEUDO) - betaln(PSEUDO, PSEUDO)
        )
        return math.exp(min(log, 700.0))

    @property
    def better(self) -> Team:
        """Name the better ranking, once that is decided at a level of 5 %."""
        if self.evidence < 1 / ALPHA:
            return ""
        return "b" if self.wins > self.losses else "a"


def team_draft(a: Sequence[str], b: Sequence[str], random: Random) -> list[Picked]:
    """Make one list of two, as long as the shorter one; each is of different documents, best first."""
    length = min(len(a), len(b))
    first, second = a[:length], b[:length]
    alike = next((place for place in range(length) if first[place] != second[place]), length)
    picks = [Picked(doc_id, "") for doc_id in first[:alike]]
    taken = set(first[:alike])
    while len(picks) < length:
        sides: list[tuple[Team, Sequence[str]]] = [("a", first), ("b", second)]
        random.shuffle(sides)
        for team, ranking in sides[: length - len(picks)]:
            doc_id = next(doc_id for doc_id in ranking if doc_id not in taken)
            taken.add(doc_id)
            picks.append(Picked(doc_id, team))
    return picks


def preferred(teams: Collection[Team]) -> Team:
    """Name the ranking of which more documents were clicked, by the teams of these; none where that ties."""
    a, b = (sum(team == side for team in teams) for side in ("a", "b"))
    return "a" if a > b else "b" if b > a else ""


def standoff(preferences: Collection[Team]) -> Standoff:
    """Count what was preferred, query by query."""
    a, b = (sum(team == side for team in preferences) for side in ("a", "b"))
    return Standoff(b, a)
