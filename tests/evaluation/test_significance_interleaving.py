"""Interleaving gives neither ranking an advantage, and its test keeps its level at every look."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from scipy.special import betaln

from hybridr.evaluation.significance import (
    ALPHA,
    PSEUDO,
    Preferences,
    count_preferences,
    preferred_team,
    team_draft,
)

A, B = list("abcdefghij"), list("bcaxyzdefg")


class Coin(Random):
    """Falls as it is told: for each round whether `b` picks first."""

    def __init__(self, *falls: bool) -> None:
        super().__init__()
        self.falls = list(falls)

    def shuffle(self, x: list[object]) -> None:  # type: ignore[override]
        if self.falls.pop(0):
            x.reverse()


def test_each_ranking_picks_its_best_document_that_is_left() -> None:
    picked = team_draft(list("pqrst"), list("qpvws"), Coin(True, False, True))
    assert picked == [("q", "b"), ("p", "a"), ("r", "a"), ("v", "b"), ("w", "b")]


def test_what_both_rank_alike_from_the_top_belongs_to_neither() -> None:
    picked = team_draft(list("xyabc"), list("xybac"), Coin(False, False))
    assert [one.team for one in picked] == ["", "", "a", "b", "a"]
    assert {one.team for one in team_draft(A, A, Random(1))} == {""}


@pytest.mark.parametrize("others", [B, B[:4], B + list("klmno"), []])
def test_lists_count_as_equally_long(others: list[str]) -> None:
    for seed in range(50):
        picked = team_draft(A, others, Random(seed))
        assert len(picked) == min(len(A), len(others))
        assert len({one.doc_id for one in picked}) == len(picked)
        counts = Counter(one.team for one in picked)
        assert abs(counts["a"] - counts["b"]) <= 1


def test_neither_ranking_has_an_advantage_by_its_place() -> None:
    """Whoever looks from the top and clicks without reading prefers none: ranks fall to both alike."""
    teams = [[one.team for one in team_draft(A, B, Random(seed))] for seed in range(4_000)]
    for rank in range(10):
        share = sum(row[rank] == "b" for row in teams) / len(teams)
        assert share == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(len(teams)))
    swapped = [[one.team for one in team_draft(B, A, Random(seed))] for seed in range(4_000)]
    wins = [Counter(preferred_team(row[:3]) for row in rows) for rows in (teams, swapped)]
    assert wins[0]["b"] == pytest.approx(wins[1]["b"], rel=0.1)


def test_more_clicks_decide_a_query() -> None:
    assert preferred_team(["a", "b", "b", ""]) == "b"
    assert preferred_team(["a"]) == "a"
    assert preferred_team(["a", "b", ""]) == preferred_team([]) == ""
    assert count_preferences(["a", "", "b", "b"]) == Preferences(2, 1)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (3, 1), (40, 12), (12, 40)])
def test_evidence_is_the_formula_in_exact_numbers(wins: int, losses: int) -> None:
    def beta(a: int, b: int) -> Fraction:
        return Fraction(math.factorial(a - 1) * math.factorial(b - 1), math.factorial(a + b - 1))

    exact = 2 ** (wins + losses) * beta(wins + PSEUDO, losses + PSEUDO) / beta(PSEUDO, PSEUDO)
    assert Preferences(wins, losses).evidence == pytest.approx(float(exact), rel=1e-9)


def test_evidence_is_a_fair_game_without_a_difference() -> None:
    """A martingale: the mean of both next states is the present one, wherever one stands."""
    for wins in range(0, 60, 7):
        for losses in range(0, 60, 11):
            now, up, down = (Preferences(wins + w, losses + v).evidence for w, v in ((0, 0), (1, 0), (0, 1)))
            assert (up + down) / 2 == pytest.approx(now, rel=1e-9)


def test_a_decision_needs_evidence_of_one_in_twenty() -> None:
    decided = next(Preferences(wins, 0) for wins in range(100) if Preferences(wins, 0).better)
    assert decided.evidence >= 1 / ALPHA > Preferences(decided.wins - 1, 0).evidence
    assert decided.better == "b"
    assert Preferences(0, decided.wins).better == "a"
    assert Preferences(5_000, 1).evidence > 1e300


def test_the_level_holds_at_every_look_and_a_real_difference_is_found_soon() -> None:
    """1,000 runs of 3,000 deciding queries, looked at after each."""
    assert stops(0.5).size <= 0.05 * 1_000
    found = stops(0.6)
    assert found.size >= 990
    assert np.median(found) <= 210


def stops(share: float, runs: int = 1_000, queries: int = 3_000) -> np.ndarray:
    """After how many queries the runs that stop do so, if `b` wins with this chance."""
    wins = np.cumsum(np.random.default_rng(7).random((runs, queries)) < share, axis=1)
    decided = np.arange(1, queries + 1)
    evidence = decided * math.log(2) + betaln(wins + PSEUDO, decided - wins + PSEUDO) - betaln(PSEUDO, PSEUDO)
    reached = evidence >= -math.log(ALPHA)
    return np.argmax(reached, axis=1)[reached.any(axis=1)] + 1
