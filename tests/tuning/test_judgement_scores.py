"""Variants scored from one retrieval per leg, against what their formulas give."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.similarities import Similarity
from hybridr.records import Query
from hybridr.search.fusions import Legs
from hybridr.search.fusions.pipeline import fuse
from hybridr.tuning.evidence import Asked, postings, rows_of
from hybridr.tuning.judgement import Variant, best_of, cut_legs, measured, score_all, scores_of
from hybridr.tuning.k1_and_b import errors_of
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


def document(doc_id: str) -> dict[str, Any]:
    held = {
        term: {"term_freq": count, "doc_freq": sum(term in other for other in TERMS.values())}
        for term, count in TERMS[doc_id].items()
    }
    statistics = {"doc_count": len(TERMS), "sum_ttf": sum(sum(terms.values()) for terms in TERMS.values())}
    return {"text": {"terms": held, "field_statistics": statistics}}


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
    one = Asked(Query("q", "sea tide"), Legs(listed, scores), 9.0)
    rows = [
        row
        for place, doc in enumerate(one.candidates)
        for row in rows_of(place, {"text": ASKED}, document(doc))
    ]
    return one._replace(words=postings(rows))


def positive(scores: dict[str, float]) -> dict[str, float]:
    return {doc: score for doc, score in scores.items() if score > 0}


@pytest.mark.parametrize("similarity", [Similarity(), Similarity(0.4, 0.0), Similarity(2.4, 1.0)], ids=str)
def test_another_k1_and_b_change_the_lexical_leg(asked: Asked, similarity: Similarity) -> None:
    lexical = formula(ASKED, similarity)
    found = scores_of(Variant(STOCK, 0.1), asked, 1.0, similarity)
    assert found == pytest.approx(fuse([positive(lexical), asked.legs.scores["dense"]], weights=[0.6, 0.4]))
    found, words = scores_of(Variant(ABSOLUTE, 0.1), asked, 2.0, similarity), 0.6 / 12 * (similarity.k1 + 1)
    assert found == pytest.approx(
        {doc: words / 2.2 * lexical[doc] + 1.6 * asked.legs.scores["dense"].get(doc, 0.5) for doc in TEXTS}
    )
    old = asked._replace(words=asked.words._replace(old=True)) if asked.words else asked
    assert scores_of(Variant(ABSOLUTE, 0.1), old, 2.0, similarity) == pytest.approx(
        {doc: score + 1.2 * words / 2.2 * lexical[doc] for doc, score in found.items()}
    )


def test_short_lists_hold_the_best_of_each_leg(asked: Asked) -> None:
    short = cut_legs(asked.legs, 1)
    assert short.listed == {name: dict(list(of.items())[:1]) for name, of in asked.legs.listed.items()}
    assert set(chain(*short.scores.values())) == set(short.documents)
    assert cut_legs(asked.legs, 100) is asked.legs


def test_what_was_not_looked_up_is_not_guessed(asked: Asked) -> None:
    with pytest.raises(ValueError, match="words"):
        scores_of(Variant(STOCK, 0.1), asked._replace(words=None), 1.0, Similarity(0.4, 0.0))


def test_the_formula_is_held_against_the_server(asked: Asked) -> None:
    assert errors_of(asked).max() < 1e-9
    doubled = {doc: 2 * score for doc, score in asked.legs.scores["lexical"].items()}
    off = errors_of(asked._replace(legs=asked.legs._replace(scores={"lexical": doubled})))
    assert off.tolist() == pytest.approx([0.5, 0.5, 0.5])


def test_a_measure_sees_what_it_looks_at(asked: Asked) -> None:
    row = np.array([0.5, np.nan, 0.9, 0.5])
    assert best_of("abcd", row, 2) == {"c": 0.9, "a": 0.5, "d": 0.5}
    assert best_of("abcd", row, None) == {"a": 0.5, "c": 0.9, "d": 0.5}
    tried = [Variant(ABSOLUTE | {"dense_weight": weight}, 0.1) for weight in (0.0, 1.0)]
    best = [max(found, key=found.__getitem__) for found in (scores_of(one, asked, 1.0) for one in tried)]
    assert best[0] != best[1]
    values = measured([asked], {"q": {best[1]: 1}}, "nDCG@1", lambda one: score_all(tried, one, 1.0))
    assert values.tolist() == [[0.0, 1.0]]
