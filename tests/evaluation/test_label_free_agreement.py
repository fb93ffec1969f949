"""How much two rankings have in common, against values worked out by hand."""

from __future__ import annotations

import pytest

from hybridr.evaluation.label_free import overlap, rank_biased_overlap


@pytest.mark.parametrize(
    ("a", "b", "depth", "value"),
    [("abc", "abc", 3, 1), ("abc", "cba", 2, 0.5), ("abc", "a", 3, 1 / 3), ("", "", 3, 1), ("a", "", 3, 0)],
)
def test_overlap_is_a_share_of_the_longer_list(a: str, b: str, depth: int, value: float) -> None:
    assert overlap([*a], [*b], depth) == pytest.approx(value)


def test_the_top_counts_most() -> None:
    # Persistence .5 and two hits: (1 - .5) (X1/1 + .5 X2/2) + .25 X2/2, of which X1, X2 are shared hits.
    assert rank_biased_overlap(["a", "b"], ["a", "c"], 0.5) == pytest.approx(0.5 * (1 + 0.25) + 0.125)
    assert rank_biased_overlap(["a", "b"], ["b", "a"], 0.5) == pytest.approx(0.5 * 0.5 + 0.25)
    assert rank_biased_overlap([*"abcd"], [*"abcd"]) == pytest.approx(1)
    assert rank_biased_overlap([*"abcd"], [*"wxyz"]) == 0
    swapped_at_the_top = rank_biased_overlap([*"abcdef"], [*"bacdef"])
    assert swapped_at_the_top < rank_biased_overlap([*"abcdef"], [*"abcdfe"]) < 1
    assert rank_biased_overlap([], []) == 1
