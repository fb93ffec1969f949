from __future__ import annotations

from hybridr.encoding.tokens import batches, padded


def test_batches_hold_every_position_once_within_the_budget() -> None:
    lengths = [5, 300, 7, 7, 120, 3, 90, 90, 2]
    found = [list(batch) for batch in batches(lengths, budget=200)]
    assert sorted(sum(found, [])) == list(range(9))
    assert found == [[8, 5, 0, 2, 3], [6, 7], [4], [1]]  # 5 x 7, 2 x 90, 1 x 120, and one over the budget
    assert list(batches([], budget=10)) == []


def test_padding_is_masked() -> None:
    ids, mask = padded([[2, 9, 3], [2, 3]])
    assert ids.tolist() == [[2, 9, 3], [2, 3, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0]]
