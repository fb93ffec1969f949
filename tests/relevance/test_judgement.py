"""Judged queries: variants, their scores, and the choice among them; nothing is chosen without evidence."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import pytest

from hybridr.cluster.word_fields import Similarity
from hybridr.records import Query
from hybridr.relevance.judgement import (
    Landscape,
    QueryCandidates,
    Variant,
    best_scores,
    choose,
    choose_variant,
    cut_lists,
    held_out_gains,
    measure_scores,
    score_all,
    variants,
    weight_landscape,
)
from hybridr.search.fusions import CandidateLists
from hybridr.search.fusions.pipeline import fuse, search_pipeline
from hybridr.search.settings import SearchSettings
from rankings import Formula

VERSION = (3, 6, 0)
ALONE = Landscape(np.array([0.0, 0.09, 0.25]), np.eye(3), np.zeros(3))
TRIED = variants((3, 6, 0), ["absolute"])
DEFAULT = next(i for i, one in enumerate(TRIED) if not one.distance)
TEXTS = {"a": "sea sea sea", "b": "sea wind " * 8, "c": "wind wave", "d": "tide tide"}
TERMS = {doc_id: Counter(text.split()) for doc_id, text in TEXTS.items()}
ASKED = {"sea": 1.0, "tide": 1.0}
ABSOLUTE = {"fusion": "absolute", "dense_weight": 0.4}
STOCK = {"fusion": "pipeline", "normalization": "min_max", "dense_weight": 0.4}


def values_with(gain: float, spread: float) -> np.ndarray:
    """Thirty queries whose gain rises with the words' weight, with a spread of its own a query."""
    random = np.random.default_rng(7)
    weights = np.array([one.settings["dense_weight"] for one in TRIED])
    drawn = random.normal(size=(30, 1))
    slopes = gain + spread * (drawn - drawn.mean()) / drawn.std()
    return 0.5 + slopes * (weights[DEFAULT] - weights)


def scores_of(variant: Variant, answer: QueryCandidates, dense_scale: float) -> dict[str, float]:
    """The scores of a query's candidates by one variant."""
    [row] = score_all([variant], answer, dense_scale)
    return {doc: of for doc, of in zip(answer.lists.documents, row.tolist(), strict=True) if of == of}


def test_a_gain_whose_interval_reaches_zero_is_not_applied() -> None:
    choice = choose_variant(TRIED, weight_landscape(TRIED), values_with(0.45, 1.4), "nDCG@10")
    assert choice.gain > 0
    assert choice.low <= 0
    assert choice.chosen.distance
    assert not choice.applied
    assert choice.settings is None
    assert not choice.best.distance


def test_a_gain_above_zero_is_applied() -> None:
    choice = choose_variant(TRIED, weight_landscape(TRIED), values_with(0.5, 0.1), "nDCG@10")
    assert choice.low > 0
    assert choice.applied
    assert choice.settings == choice.chosen.settings


def test_few_queries_stay_near_the_default() -> None:
    better = np.array([[0.5, 0.5, 0.54]])
    assert choose(np.repeat(better, 10, axis=0), ALONE) == 0
    assert choose(np.repeat(better, 100, axis=0), ALONE) == 2


def test_held_out_gains_are_those_of_the_better_variant() -> None:
    noise = np.random.default_rng(1).normal(0, 0.05, (200, 3))
    gains = held_out_gains(noise + np.array([0.4, 0.4, 0.5]), ALONE)
    assert gains.mean() == pytest.approx(0.1, abs=0.02)


def test_held_out_gains_of_noise_are_not_above_zero() -> None:
    """The best of many by chance gains on its own queries, and nothing on others."""
    found, free = [], Landscape(np.zeros(30), np.eye(30), np.zeros(30))
    for seed in range(20):
        values = np.random.default_rng(seed).normal(0.5, 0.3, (40, 30))
        chosen = choose(values, free)
        found.append(((values[:, chosen] - values[:, 0]).mean(), held_out_gains(values, free).mean()))
    seen, unseen = np.mean(found, axis=0)
    assert seen > 0.05
    assert abs(unseen) < 0.03


def test_a_lone_peak_does_not_win_over_a_hill() -> None:
    tried = variants(VERSION)
    lying = weight_landscape(tried)
    assert lying.nearness.sum(axis=1) == pytest.approx(1.0)
    assert not tried[lying.default].distance
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    hill = np.where([variant.technique == "absolute" for variant in tried], 0.5 - (weights - 0.7) ** 2, 0.2)
    hill[next(i for i, variant in enumerate(tried) if str(variant) == "absolute, dense weight 0.1")] += 0.4
    chosen = tried[choose(np.repeat(hill[None], 1000, axis=0), lying)]
    assert chosen.settings["dense_weight"] == pytest.approx(0.7, abs=0.051)


def test_the_mean_of_what_is_likely_is_taken_where_the_peak_is_chance() -> None:
    tried = variants(VERSION)
    lying = weight_landscape(tried)
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    rising = np.where([variant.technique == "absolute" for variant in tried], 0.4 + 0.1 * weights, 0.2)
    few, many = (tried[choose(np.repeat(rising[None], n, axis=0), lying)] for n in (100, 10_000))
    assert 0.5 < few.settings["dense_weight"] < 0.9
    assert many.settings["dense_weight"] == pytest.approx(0.95)


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
def asked(vectors: dict[str, np.ndarray], query: np.ndarray) -> QueryCandidates:
    lexical = {doc: score for doc, score in formula(ASKED, Similarity()).items() if score > 0}
    dense = {doc: float((1 + vector @ query) / 2) for doc, vector in vectors.items()}
    scores = {"lexical": lexical, "dense": dense}
    listed = {name: dict(sorted(of.items(), key=lambda item: -item[1])) for name, of in scores.items()}
    return QueryCandidates(Query("q", "sea tide"), CandidateLists(listed, scores), 9.0)


@pytest.mark.parametrize("normalization", ["min_max", "l2"])
def test_a_variant_scores_as_its_formula(asked: QueryCandidates, normalization: str) -> None:
    lexical, dense = asked.lists.scores["lexical"], asked.lists.scores["dense"]
    found = scores_of(Variant(STOCK | {"normalization": normalization}, 0.1), asked, 1.0)
    assert found == pytest.approx(fuse([lexical, dense], normalization=normalization, weights=[0.6, 0.4]))
    found = scores_of(Variant(ABSOLUTE, 0.1), asked, 2.0)
    assert found == pytest.approx(
        {doc: 0.6 / 12 * lexical.get(doc, 0.0) + 1.6 * dense.get(doc, 0.5) for doc in TEXTS}
    )


def test_short_lists_hold_the_best_of_each_leg(asked: QueryCandidates) -> None:
    short = cut_lists(asked.lists, 1)
    assert short.listed == {name: dict(list(of.items())[:1]) for name, of in asked.lists.listed.items()}
    assert set(chain(*short.scores.values())) == set(short.documents)
    assert cut_lists(asked.lists, 100) is asked.lists


def test_a_measure_sees_what_it_looks_at(asked: QueryCandidates) -> None:
    row = np.array([0.5, np.nan, 0.9, 0.5])
    assert best_scores("abcd", row, 2) == {"c": 0.9, "a": 0.5, "d": 0.5}
    assert best_scores("abcd", row, None) == {"a": 0.5, "c": 0.9, "d": 0.5}
    tried = [Variant(ABSOLUTE | {"dense_weight": weight}, 0.1) for weight in (0.0, 1.0)]
    best = [max(found, key=found.__getitem__) for found in (scores_of(one, asked, 1.0) for one in tried)]
    assert best[0] != best[1]
    values = measure_scores([asked], {"q": {best[1]: 1}}, "nDCG@1", lambda one: score_all(tried, one, 1.0))
    assert values.tolist() == [[0.0, 1.0]]


def test_variants_hold_one_default_which_is_that_of_search() -> None:
    found = variants(VERSION)
    [default] = [variant for variant in found if not variant.distance]
    assert default.settings["dense_weight"] == SearchSettings().dense_weight
    assert default.technique == "absolute"
    assert len({str(variant) for variant in found}) == len(found)


def test_pipelines_alone_have_a_default_too() -> None:
    [default] = [one for one in variants(VERSION, ["pipeline"]) if not one.distance]
    assert (default.technique, default.settings["dense_weight"]) == ("min_max", 0.5)


def test_old_servers_are_offered_what_they_take() -> None:
    found = variants((2, 19, 1), ["pipeline"])
    assert {variant.technique for variant in found} == {"min_max", "l2", "rrf"}
    for variant in found:
        search_pipeline(SearchSettings(**variant.settings), (2, 19, 1))
