"""The weight of vectors by queries that nobody judged: what each retriever says of the other's best hit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hybridr.errors import DataError
from hybridr.records import Query
from hybridr.relevance import tuning
from hybridr.relevance.judgement import QueryCandidates
from hybridr.relevance.tuning import HALF_EVIDENCE, MAX_LOG_ODDS, MAX_LOGGED, MIN_LOGGED, weigh_by_log
from hybridr.search.fusions import CandidateLists

TEXTS = [f"query {number}" for number in range(200)]


@pytest.fixture
def weighed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Weigh by queries for which the other's best hit is worth so much to words, and to vectors."""

    def weigh(words: float, vectors: float, texts: Sequence[str] = TEXTS, mean: float = 0.1) -> Any:
        near = {"a": (1 + mean + vectors * 0.4) / 2, "b": (1 + mean + 0.4) / 2}
        lexical = {"a": 8.0, "b": 8.0 * words} if words else {"a": 8.0}
        legs = CandidateLists({}, {"lexical": lexical, "dense": near})
        recipe = SimpleNamespace(compared=lambda queries, _: np.full((len(queries), 3), mean))
        asked: list[Query] = []

        def ask(_: Any, queries: Sequence[Query], __: Any) -> list[QueryCandidates]:
            asked.extend(queries)
            return [QueryCandidates(query, legs, 1.0) for query in queries]

        monkeypatch.setattr(tuning, "fetch_candidates", ask)
        monkeypatch.setattr(tuning, "sample_texts", lambda *_: ["text"])
        monkeypatch.setattr(tuning.TextRecipe, "of", lambda *_: recipe)
        search: Any = SimpleNamespace(info=SimpleNamespace(record=None), cluster=None)
        weight = weigh_by_log(search, object(), texts)  # type: ignore[arg-type]
        assert len(asked) <= MAX_LOGGED
        return weight

    return weigh


def test_the_better_witness_weighs_more(weighed: Any) -> None:
    trusting_words, even, trusting_vectors = weighed(0.70, 0.75), weighed(0.7, 0.72), weighed(0.75, 0.72)
    assert trusting_words.dense_weight < even.dense_weight < trusting_vectors.dense_weight
    assert even.support == pytest.approx(math.log(0.7 / 0.72), abs=1e-4)
    odds = even.dense_weight / (1 - even.dense_weight)
    expected = len(TEXTS) / (len(TEXTS) + HALF_EVIDENCE) * (tuning.SLOPE * even.support + tuning.OFFSET)
    assert math.log(odds) == pytest.approx(expected, abs=0.03)


def test_it_stays_within_its_bounds_and_few_queries_move_it_less(weighed: Any) -> None:
    assert weighed(0.0, 0.99).dense_weight == round(1 / (1 + math.exp(MAX_LOG_ODDS)), 2)
    assert weighed(1.0, 0.1).dense_weight == round(1 / (1 + math.exp(-MAX_LOG_ODDS)), 2)
    few, many = weighed(0.72, 0.75, TEXTS[:100]), weighed(0.72, 0.75, TEXTS * 5)
    assert abs(few.dense_weight - 0.5) < abs(many.dense_weight - 0.5)
    assert many.queries <= MAX_LOGGED


def test_too_few_queries_are_refused(weighed: Any) -> None:
    with pytest.raises(DataError, match=f"99 queries of the log found something; {MIN_LOGGED} are needed"):
        weighed(0.7, 0.7, TEXTS[:99])
