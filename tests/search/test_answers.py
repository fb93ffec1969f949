"""Confidence: the share of unanswerable queries whose best hit scores less; the best hit decides."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.record_parts import Calibrated
from hybridr.errors import SettingsError
from hybridr.records import Hit, Hits
from hybridr.search.answers import Answers, missing_parts_remark
from support.indices import index_with_vectors

KNOWN = Calibrated(ranking="0" * 64, scores=(0.5, 0.6, 0.7, 0.8, 0.9), queries=400, answered=3, documents=20)


def test_confidence_and_threshold_are_each_other_turned_round() -> None:
    answers = Answers(KNOWN)
    assert [answers.confidence(one) for one in (0.1, 0.5, 0.65, 0.9, 3)] == [0, 0, 0.375, 1, 1]
    assert answers.threshold(0.375) == pytest.approx(0.65)


def test_of_one_score_all_over_what_is_higher_is_sure() -> None:
    answers = Answers(KNOWN.model_copy(update={"scores": (0.7, 0.7, 0.7)}))
    assert (answers.confidence(0.69), answers.confidence(0.71)) == (0, 1)


def test_without_a_calibration_it_says_why() -> None:
    unknown, hits = Answers(None, "nobody measured"), Hits([Hit("d", 1.0, 1)], 1.0)
    assert (unknown.with_confidence(hits), unknown.checked_confidence(0)) == (hits, 0)
    with pytest.raises(SettingsError, match="nobody measured"):
        unknown.checked_confidence(0.9)


@pytest.mark.parametrize("at_least", [-0.1, 1, float("nan")])
def test_a_confidence_is_a_share(at_least: float) -> None:
    with pytest.raises(SettingsError, match="is not a confidence"):
        Answers(KNOWN).checked_confidence(at_least)


def told(*scores: float, first: int = 1, best: float | None = None) -> Hits:
    """Judge hits of these scores, from a rank on; what is asked is a score of .7."""
    hits = [Hit(f"d{rank}", score, rank) for rank, score in enumerate(scores, first)]
    return Answers(KNOWN).with_confidence(
        Hits(hits, best if best is not None else max(scores, default=None)), 0.5
    )


def test_where_the_best_hit_fits_those_not_far_below_it_stay() -> None:
    assert [hit.score for hit in told(0.7, 0.61, 0.6 - 1e-9)] == [0.7, 0.61]
    assert [hit.confidence for hit in told(0.7, 0.6)] == [0.5, 0.25]
    assert told(0.7).nearest is None


def test_where_it_does_not_nothing_fits_and_the_first_page_names_the_nearest() -> None:
    assert told(0.69, 0.68) == []
    assert told(0.69, 0.68).nearest == Hit("d1", 0.69, 1, confidence=0.475)
    assert told() == []
    assert told().nearest is None


def test_a_page_behind_the_first_is_judged_by_the_best_of_all() -> None:
    assert [hit.rank for hit in told(0.66, 0.5, first=11, best=0.7)] == [11]
    other = told(0.66, 0.5, first=11, best=0.69)
    assert (other, other.nearest) == ([], None)


def test_no_hit_answers_what_has_no_word() -> None:
    hits = Hits([Hit("d1", 0.95, 1), Hit("d2", 0.9, 2)], 0.95)
    assert [hit.confidence for hit in Answers(KNOWN).with_confidence(hits, wordless=True)] == [0, 0]
    none = Answers(KNOWN).with_confidence(hits, 0.5, wordless=True)
    assert (none, none.nearest) == ([], hits[0]._replace(confidence=0))
    assert Answers(KNOWN).min_score(0.5, wordless=True)["min_score"] > 1e9
    assert Answers(KNOWN).min_score(0, wordless=True) == {}


def test_a_pin_stays_and_has_no_confidence() -> None:
    pinned = Hits([Hit("p", 0.0, 1, rule="sale"), Hit("d", 0.6, 2)], 0.6)
    assert Answers(KNOWN).with_confidence(pinned, 0.5) == pinned[:1]
    assert Answers(KNOWN).with_confidence(pinned, 0.5).nearest is None


TABLE = {"fingerprint": "0" * 64, "terms": 100, "documents": 20, "parts": 1, "own_cosine": 0.8}


@pytest.mark.parametrize(
    ("record", "missing"),
    [
        ({}, "without soft terms and confidence:"),
        ({"term_table": TABLE}, "without confidence:"),
        ({"answers": KNOWN.model_dump(mode="json")}, "without soft terms:"),
        ({"term_table": TABLE, "answers": KNOWN.model_dump(mode="json")}, ""),
        ({"state": "filling"}, ""),
    ],
)
def test_what_a_complete_index_goes_without_is_told(record: dict[str, Any], missing: str) -> None:
    told = missing_parts_remark(index_with_vectors(**record))
    assert missing in told
    assert bool(told) == bool(missing)
    assert not told or "hybridr tune docs" in told
