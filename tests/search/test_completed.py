"""Completion, with the arithmetic in the assertions."""

from __future__ import annotations

import pytest

from hybridr.search.fusions.completed import completed


def test_union_of_true_scores() -> None:
    # lexical 2, 0, 1 -> z = +1.2247, -1.2247, 0; dense .9, .6, .6 -> z = 1.4142, -.7071, -.7071
    found = completed({"a": 2.0, "c": 1.0}, {"a": 0.9, "b": 0.6, "c": 0.6}, dense_weight=0.5)
    assert [one.doc_id for one in found] == ["a", "c", "b"]
    assert found[0].score == pytest.approx(0.5 * 1.224745 + 0.5 * 1.414214, abs=1e-5)
    assert found[1].score == pytest.approx(0.5 * 0.0 - 0.5 * 0.707107, abs=1e-5)
    assert (found[2].lexical, found[2].dense) == (0.0, 0.6)


def test_documents_without_vector_and_equal_scores() -> None:
    found = completed({"a": 2.0, "b": 1.0}, {"b": 0.7})
    assert [(one.doc_id, one.dense) for one in found] == [("a", 0.7), ("b", 0.7)]
    assert completed({}, {}) == []
    assert completed({"a": 1.0}, {"a": 1.0})[0].score == 0.0
