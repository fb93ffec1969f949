from __future__ import annotations

import numpy as np

from hybridr.records import Document, Query
from workshop import Vectors, dense_run, hybrid_run


def test_hybrid_fuses_the_true_scores_of_both() -> None:
    corpus = [Document("words", "red fox"), Document("near", "a dog"), Document("both", "red wolf")]
    vectors = Vectors(np.array([[-1.0], [2.0], [1.5]]), np.array([[1.0]]))
    asked = [Query("q", "red")]
    dense, hybrid = dense_run(vectors, corpus, asked)["q"], hybrid_run(vectors, corpus, asked)["q"]
    assert sorted(dense, key=dense.__getitem__, reverse=True) == ["near", "both", "words"]
    assert max(hybrid, key=hybrid.__getitem__) == "both"
    assert hybrid.keys() == dense.keys()  # shifted to above 0, or the first would be missing
