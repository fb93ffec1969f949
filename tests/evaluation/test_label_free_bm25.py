"""BM25 in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridr.evaluation.label_free import Bm25, best_scores, terms_of
from hybridr.training.judged import read_judged_beir
from support.rem_training import write_toy


def test_bm25_by_hand() -> None:
    bm25 = Bm25(["red wings", "blue wing", "blue sky and the sea"], k1=1.2, b=0.75)
    length = 1.2 * (0.25 + 0.75 * 2 / (7 / 3))
    expected = np.log(1 + 1.5 / 2.5) * 2.2 / (1 + length)
    assert bm25.scores("wing").tolist() == pytest.approx([expected, expected, 0])
    assert (list(bm25.search("blue wings", 10)), bm25.search("unknown", 10)) == (["1", "0", "2"], {})
    assert terms_of("The Libraries' classes, 深度学习") == ["library", "classe", "深度", "度学", "学习"]
    assert list(best_scores(np.array([0.2, 0.9, 0.0, 0.9]), 3)) == ["1", "3", "0"]


def test_bm25_reads_postings_and_scores_as_rank_bm25(tmp_path: Path) -> None:
    from rank_bm25 import BM25Okapi

    judged = read_judged_beir(write_toy(tmp_path / "beir"))
    texts = [document.contents for document in judged.documents()] + ["", "the of"]
    found = Bm25(texts)
    other = BM25Okapi([terms_of(text) or [""] for text in texts], k1=1.2, b=0.75)
    other.idf = found.idf
    for query in [*judged.queries.values(), "", "nowhere", "the"]:
        known = [term for term in terms_of(query) if term in found.idf]
        assert np.array_equal(found.scores(query), np.asarray(other.get_scores(known)))
