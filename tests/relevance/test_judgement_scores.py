"""Variants scored from one retrieval per leg, against what their formulas give."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest

from hybridr.cluster.word_fields import Similarity
from hybridr.records import Query
from hybridr.relevance.evidence import Asked
from hybridr.relevance.judgement import Variant, best_of, cut_legs, measured, score_all, scores_of
from hybridr.search.fusions import CandidateLists
from hybridr.search.fusions.pipeline import fuse
from rankings import Formula

TEXTS = {"a": "sea sea sea", "b": "sea wind " * 8, "c": "wind wave", "d": "tide tide"}
TERMS = {doc_id: Counter(text.split()) for doc_id, text in TEXTS.items()}
ASKED = {"sea": 1.0, "tide": 1.0}
ABSOLUTE = {"fusion": "absolute", "dense_weight": 0.4}
STOCK = {"fusion": "pipeline", "normalization": "min_max", "dense_weight": 0.4}


def formula(weights: dict[str, float], similarity: Similarity) -> dict[str, float]:
    made = Formula(list(TERMS.values()), *similarity, in_bytes=True)
    scores = sum(weight * made.scores({term: 1}) for term, weight in weights.items())
    return dict(zip(TERMS, np.asarray(scores).tolist(), strict=True))


@pytest.fixture
def vectors() -> dict[str, np.ndarray]:
    """Unit vectors of all documents but the last, which has none."""
    made = np.random.default_rng(3).normal(size=(3, 5)).astype(np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return dict(zip("abc", made, strict=True))


@pytest.fixture
def query() -> np.ndarray:
    made = np.random.default_rng(4).normal(size=5).astype(np.float32)
    return made / np.linalg.norm(made)


@pytest.fixture
def asked(vectors: dict[str, np.ndarray], query: np.ndarray) -> Asked:
    lexical = {doc: score for doc, score in formula(ASKED, Similarity()).items() if score > 0}
    dense = {doc: float((1 + vector @ query) / 2) for doc, vector in vectors.items()}
    scores = {"lexical": lexical, "dense": dense}
    listed = {name: dict(sorted(of.items(), key=lambda item: -item[1])) for name, of in scores.items()}
    return Asked(Query("q", "sea tide"), CandidateLists(listed, scores), 9.0)


def test_a_variant_scores_as_its_formula(asked: Asked) -> None:
    lexical, dense = asked.legs.scores["lexical"], asked.legs.scores["dense"]
    found = scores_of(Variant(STOCK, 0.1), asked, 1.0)
    assert found == pytest.approx(fuse([lexical, dense], weights=[0.6, 0.4]))
    found = scores_of(Variant(ABSOLUTE, 0.1), asked, 2.0)
    assert found == pytest.approx(
        {doc: 0.6 / 12 * lexical.get(doc, 0.0) + 1.6 * dense.get(doc, 0.5) for doc in TEXTS}
    )


def test_short_lists_hold_the_best_of_each_leg(asked: Asked) -> None:
    short = cut_legs(asked.legs, 1)
    assert short.listed == {name: dict(list(of.items())[:1]) for name, of in asked.legs.listed.items()}
    assert set(chain(*short.scores.values())) == set(short.documents)
    assert cut_legs(asked.legs, 100) is asked.legs


def test_a_measure_sees_what_it_looks_at(asked: Asked) -> None:
    row = np.array([0.5, np.nan, 0.9, 0.5])
    assert best_of("abcd", row, 2) == {"c": 0.9, "a": 0.5, "d": 0.5}
    assert best_of("abcd", row, None) == {"a": 0.5, "c": 0.9, "d": 0.5}
    tried = [Variant(ABSOLUTE | {"dense_weight": weight}, 0.1) for weight in (0.0, 1.0)]
    best = [max(found, key=found.__getitem__) for found in (scores_of(one, asked, 1.0) for one in tried)]
    assert best[0] != best[1]
    values = measured([asked], {"q": {best[1]: 1}}, "nDCG@1", lambda one: score_all(tried, one, 1.0))
    assert values.tolist() == [[0.0, 1.0]]
