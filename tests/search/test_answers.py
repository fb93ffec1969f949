"""Confidence is the share of foreign queries whose best hit scores less; a cut is made by it."""

from __future__ import annotations

import pytest

from hybridr.cluster.record_parts import Calibrated
from hybridr.errors import SettingsError
from hybridr.records import Hit
from hybridr.search.answers import Answers, those_that_fit

KNOWN = Calibrated(ranking="0" * 64, scores=(0.5, 0.6, 0.7, 0.8, 0.9), queries=400, answered=3, documents=20)


def test_confidence_and_threshold_are_each_other_turned_round() -> None:
    answers = Answers(KNOWN)
    assert [answers.confidence(one) for one in (0.1, 0.5, 0.65, 0.9, 3)] == [0, 0, 0.375, 1, 1]
    assert answers.threshold(0.375) == pytest.approx(0.65)


def test_of_one_score_all_over_what_is_higher_is_sure() -> None:
    answers = Answers(KNOWN.model_copy(update={"scores": (0.7, 0.7, 0.7)}))
    assert answers.confidence(0.69) == 0
    assert answers.confidence(0.71) == 1


def test_without_a_calibration_it_says_why() -> None:
    unknown = Answers(None, "nobody measured")
    assert unknown.told([Hit("d", 1.0, 1)]) == [Hit("d", 1.0, 1)]
    assert unknown.reachable(0) == 0
    with pytest.raises(SettingsError, match="nobody measured"):
        unknown.reachable(0.9)


@pytest.mark.parametrize("at_least", [-0.1, 1, float("nan")])
def test_a_confidence_is_a_share(at_least: float) -> None:
    with pytest.raises(SettingsError, match="is none"):
        Answers(KNOWN).reachable(at_least)


def test_each_hit_is_cut_for_itself() -> None:
    hits = Answers(KNOWN).told([Hit("a", 0.8, 1), Hit("b", 0.6, 2), Hit("c", 0.9, 3)])
    assert [hit.doc_id for hit in those_that_fit(hits, 0.5)] == ["a", "c"]
    assert those_that_fit(hits, 0.5).nearest is None
    assert those_that_fit(hits[:2], 0.9).nearest == hits[0]
    assert those_that_fit([], 0.9).nearest is None
