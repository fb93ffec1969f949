from __future__ import annotations

import numpy as np
import pytest

from hybridr.evaluation.label_free import (
    Rankings,
    compare_kept,
    compare_overlap,
    compare_own_documents,
    compared,
    kept_share,
    lexical_overlap,
    own_document,
)

TEN = [str(i) for i in range(10)]


def test_the_statistics_by_hand() -> None:
    assert own_document([["a", "b", "c"], ["a"], TEN], ["c", "b", "0"]).tolist() == [0.5, 0.0, 1.0]
    assert own_document([[*TEN, "late"]], ["late"]).tolist() == [0.0]
    words = [f"w{i}" for i in range(19)]
    assert lexical_overlap([["3", "w0", *TEN]], [[*words, "3", "0"]]).tolist() == [0.2]  # "0" is the 21st
    assert kept_share([TEN, ["a", "b"], []], [TEN[5:], ["b", "c"], ["a"]]).tolist() == [0.5, 0.5, 0.0]


def test_two_systems_are_compared_by_all_of_them() -> None:
    old = Rankings([["a", "b"]] * 2, [["a", "b"], ["b", "a"]], [["a", "b"], ["a", "b"]])
    new = Rankings([["a", "b"]] * 2, [["b", "x"], ["y", "x"]], [["b", "a"], ["x", "a"]])
    dense, hybrid = compare_own_documents(old, new, ["a", "a"])
    assert (dense.name, dense.new, dense.queries) == ("dense nDCG@10, own document", 0.0, 2)
    assert dense.old == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert (hybrid.old, hybrid.new) == (1.0, pytest.approx(1 / np.log2(3)))
    assert compare_overlap(old, new).old == 0.2
    assert compare_overlap(old, new).new == 0.05
    assert compare_kept(old, new).new == 0.75
    assert compare_kept(old.of([0]), new.of([0])).new == 1.0


def test_the_paired_test_by_hand() -> None:
    row = compared("x", np.array([1.0, 0, 1, 0]), np.array([1.0, 1, 1, 1]))
    assert (row.old, row.new, row.queries) == (0.5, 1.0, 4)
    assert row.p == pytest.approx(0.1817, abs=1e-4)  # t = 1.732 with 3 degrees of freedom
    assert compared("x", np.array([1.0]), np.array([0.0])).p == 1.0
