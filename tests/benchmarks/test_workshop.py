from __future__ import annotations

import numpy as np
import pytest

from hybridr.records import Document, Query
from rankings import completed
from workshop import Vectors, dense_run, hybrid_run


def test_hybrid_fuses_the_true_scores_of_both() -> None:
    corpus = [Document("words", "red fox"), Document("near", "a dog"), Document("both", "red wolf")]
    vectors = Vectors(np.array([[-1.0], [2.0], [1.5]]), np.array([[1.0]]))
    asked = [Query("q", "red")]
    dense, hybrid = dense_run(vectors, corpus, asked)["q"], hybrid_run(vectors, corpus, asked)["q"]
    assert sorted(dense, key=dense.__getitem__, reverse=True) == ["near", "both", "words"]
    assert max(hybrid, key=hybrid.__getitem__) == "both"
    assert hybrid.keys() == dense.keys()  # shifted to above 0, or the first would be missing


def test_completed_adds_up_z_scores_over_the_union() -> None:
    # lexical 2, 0, 1 -> z = +1.2247, -1.2247, 0; dense .9, .6, .6 -> z = 1.4142, -.7071, -.7071
    found = completed({"a": 2.0, "c": 1.0}, {"a": 0.9, "b": 0.6, "c": 0.6})
    assert list(found) == ["a", "c", "b"]
    assert found["a"] == pytest.approx(0.4 * 1.224745 + 0.6 * 1.414214, abs=1e-5)
    assert found["c"] == pytest.approx(0.4 * 0.0 - 0.6 * 0.707107, abs=1e-5)
    assert completed({}, {}) == {}
    assert completed({"a": 1.0}, {"a": 1.0}) == {"a": 0.0}
