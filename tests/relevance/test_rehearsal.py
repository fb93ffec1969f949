"""What a rehearsal advises where nothing is gained for certain."""

from __future__ import annotations

import json

import pytest

from hybridr.relevance.learning import LearnResult
from hybridr.relevance.rehearsal import Gain, Rehearsal

NONE = Gain(0.0, 0.0, 0.0)


def rehearsal(returning: int, again: Gain) -> Rehearsal:
    return Rehearsal(100, returning, "nDCG@10", 0.4, again, NONE)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (rehearsal(0, NONE), "no two of them share a relevant document"),
        (rehearsal(40, Gain(0.01, -0.01, 0.03)), "about 400 such queries"),
        (rehearsal(40, Gain(-0.01, -0.02, 0.0)), "found as well without a memory"),
        (rehearsal(40, NONE), "found as well without a memory"),
    ],
)
def test_where_nothing_is_gained_it_says_what_was_tried_and_what_it_would_need(
    found: Rehearsal, said: str
) -> None:
    assert found.advice[0].startswith("nothing is gained for certain: 100 judged queries")
    assert said in found.advice[1]
    told = LearnResult("docs", "memory", 100, 90, 0, 0.8, found).to_json()["rehearsal"]
    assert json.loads(json.dumps(told))["advice"] == found.advice


def test_where_something_is_gained_it_says_nothing() -> None:
    assert rehearsal(40, Gain(0.02, 0.01, 0.03)).advice == []
