"""The absolute fusion: true scores of all legs and of the signals, added up by one rescoring request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ...cluster.retrievers import FAMILY as LEGS
from ...cluster.retrievers import Retriever
from ...cluster.retrievers.dense import DenseRetriever
from ...cluster.retrievers.lexical import SCALE
from ...families import member_of
from ..signals import FAMILY as SIGNALS
from . import (
    BEYOND,
    CandidateLists,
    CompiledQuery,
    Fusion,
    Grid,
    Rescoring,
    Scales,
    Scores,
    surrounded,
    times,
)

TAKEN = 0.2  # by each signal of the words' weight
NO_SIGNALS: Mapping[str, float] = MappingProxyType({})
WINDOW = 2  # times the depth: what is scored again, the candidates of both legs
COSINES_LESS = 0.4  # a good document's cosine lies less above an unrelated one's than its words above none
FUNCTIONS = "functions"
"""The part that a client's own functions, and its further clauses, add to a score."""
LOWEST = 0.02  # of a sum: what is lower above that of an unrelated document is told apart, but hardly counts
TWENTIETHS = [i / 20 for i in range(1, 20)]


class PartWeights(NamedTuple):
    """What each part of a score is multiplied by: the true scores of the legs, and the signals, by name."""

    legs: Mapping[str, float]
    signals: Mapping[str, float]


class Absolute(Fusion):
    """Adds BM25 by the idf of the query's terms to cosines by the spread of the encoder's, and signals."""

    name = "absolute"
    help = "by their true scores"
    turn = 1
    one_request = True
    rescores = True
    needs_scales = True
    takes_signals = True
    takes_boosts = True
    needs_scripts = True
    true_scores = True
    grids = (Grid("absolute", {"fusion": "absolute"}, TWENTIETHS),)

    def body(self, question: CompiledQuery, k: int) -> dict[str, Any]:
        """Rank by the true scores of all parts, in one request; the engine names them where they are shown.

        No pipeline is needed: pages, filters and aggregations stay as usual.
        """
        body = {"size": k, **self.rescoring(question).body()}
        return body | {"post_filter": named(question)} if question.shown else body

    def rescoring(self, question: CompiledQuery) -> Rescoring:
        """Find candidates by all legs, and score the best of each shard again by the sum of all parts: a
        document of one leg only gets its score of the others."""
        weights = self.weights(question)
        scored = {"bool": {"should": weighted(question, weights)}}
        if question.around:
            like_words = scores_like_words(scored, question.scales, self.settings.dense_weight)
            scored = surrounded(times(like_words, question.own_scale), question.around)
        return Rescoring(
            {"bool": {"should": finders(question, weights.legs)}},
            scored,
            min(WINDOW * question.depth, question.window),
            question.found_share * words_weight(question, weights.legs) or BEYOND,
        )

    def weights(self, question: CompiledQuery) -> PartWeights:
        """Give the weights of a question's parts."""
        signals = {name: part.weight for name, part in question.signals.items()}
        return part_weights(self.settings.shares, question.scales, signals)

    def scores(self, legs: CandidateLists) -> dict[str, float]:
        """Add up what all parts give every candidate."""
        shares, sides = self.settings.shares, self.sides(legs)
        parts = [(shares[name], side) for name, side in sides.items()] + list(legs.boosts.values())
        return {doc: sum(share * scores.get(doc, 0.0) for share, scores in parts) for doc in legs.documents}

    def sides(self, legs: CandidateLists) -> dict[str, Scores]:
        """Bring true scores to one scale, the signals beside BM25; the engine's cosine scores are 0 to 1."""
        signals = {name: weight for name, (weight, _) in legs.signals.items()}
        sides: dict[str, Scores] = {}
        for name, scores in legs.scores.items():
            weights, unseen = part_weights({name: 1.0}, legs.scales, signals), member_of(LEGS, name).unseen
            parts = [(weights.signals[name], scores) for name, (_, scores) in legs.signals.items()]
            sides[name] = {
                doc: weights.legs[name] * scores.get(doc, unseen)
                + sum(share * scores.get(doc, 0.0) for share, scores in parts if share)
                for doc in legs.documents
            }
        return sides

    def parts(self, question: CompiledQuery, named: Scores, score: float) -> dict[str, float]:
        """Split a hit's score into what each leg, each signal and each boost adds.

        Functions of a client's own query see scores like those of BM25. Parts are on that scale then, less
        what an unrelated document has; what the functions make of their sum is a part too.
        """
        weights = self.weights(question)
        own = {
            leg.part: weights.legs[name] * named.get(name, leg.unseen) for name, leg in question.legs.items()
        }
        shares = {**weights.signals, **{name: part.weight for name, part in question.boosts.items()}}
        parts = own | {name: share * named.get(name, 0.0) for name, share in shares.items()}
        if not question.around:
            return parts
        total = sum(parts.values())
        above = total - word_scale(question.scales, self.settings.dense_weight)["zero"]
        seen = above if above > LOWEST else LOWEST * math.exp(max(above / LOWEST, -30) - 1)
        parts[DenseRetriever.part] = parts.get(DenseRetriever.part, 0.0) + seen - total
        unit = self.unit(question)
        return {name: unit * value for name, value in parts.items()} | {FUNCTIONS: score - unit * seen}

    def unit(self, question: CompiledQuery) -> float:
        """Return what 1 of the sum of all parts is where functions act on it; else the sum is the score."""
        if not question.around:
            return 1.0
        return question.own_scale * word_scale(question.scales, self.settings.dense_weight)["factor"]


def kinds_of(names: Iterable[str]) -> list[type[Retriever]]:
    """Give the classes of legs."""
    return [member_of(LEGS, name) for name in names]


def part_weights(
    shares: Mapping[str, float], scales: Scales, signals: Mapping[str, float] = NO_SIGNALS
) -> PartWeights:
    """Give what the true scores of legs with these shares, and the signals, are multiplied by.

    With BM25, and an engine's cosine score, (1 + cosine) / 2, the sum is (1 - w) BM25 / (4 root of the idf
    sum) + w (1 + cosine) without signals. Each of them takes a fifth of the words' weight; its own is for
    w = .5, and falls with that of the words. A query without known terms has no lexical part. What was learnt
    has its own weight, beside words and vectors, which share 1 between them.
    """
    learnt = {name for name in signals if member_of(SIGNALS, name).learnt}
    kinds, left = kinds_of(shares), max(0.0, 1 - TAKEN * len(signals.keys() - learnt))
    of_words = sum(shares[leg.name] for leg in kinds if leg.of_words)
    both = sum(shares[leg.name] for leg in kinds if leg.reads != "representation")
    return PartWeights(
        {
            leg.name: (left if leg.of_words else 1.0)
            * shares[leg.name]
            * leg.scale(scales.idf_sum, scales.own.get(leg.name, scales.dense))
            for leg in kinds
        },
        {name: (both if name in learnt else 2 * of_words) * weight for name, weight in signals.items()},
    )


def finders(question: CompiledQuery, weights: Mapping[str, float]) -> list[dict[str, Any]]:
    """Build what finds candidates: each leg by its weight, a client's own query in place of the words."""
    base = words_weight(question, weights)
    queries = []
    for name in question.finding:
        leg = question.legs[name]
        if leg.of_words:
            queries.append(dict(question.matched or replace(question, shown=False).query(name)))
        else:
            boost = weights[name] / base if base else 1.0
            value = question.asked[name]
            queries.append(leg.query(value, question.depth, filter=question.filter, boost=boost))
    return queries


def words_weight(question: CompiledQuery, weights: Mapping[str, float]) -> float:
    """Add up the weights of the legs that score words."""
    return sum(weights[name] for name, leg in question.legs.items() if leg.of_words)


def weighted(question: CompiledQuery, weights: PartWeights) -> list[dict[str, Any]]:
    """Build the queries of legs, signals and boosts, whose scores are what they add to the sum."""
    legs = [leg.true_scores(question.asked[name], weights.legs[name]) for name, leg in question.legs.items()]
    signals = [
        {"bool": {"should": list(part.clauses), "boost": weights.signals[name]}}
        for name, part in question.signals.items()
        if part.clauses and weights.signals[name]
    ]
    boosts = [
        {"bool": {"should": list(part.clauses), "boost": part.weight}} for part in question.boosts.values()
    ]
    return [*legs, *signals, *boosts]


def scores_like_words(scored: dict[str, Any], scales: Scales, dense_weight: float) -> dict[str, Any]:
    """Return a query that scores in the same order, from 0 for what fits in nothing to what BM25 may give.

    What a client's functions multiply, or add to, means there what it means beside BM25. Nothing falls to
    zero, for a client's script may divide by it: the lowest scores come ever nearer.
    """
    script = (
        "double above = _score - params.zero; return params.factor * (above > params.tail ? above "
        ": params.tail * Math.exp(Math.max(above / params.tail, -30) - 1));"
    )
    params = {**word_scale(scales, dense_weight), "tail": LOWEST}
    return {"script_score": {"query": scored, "script": {"source": script, "params": params}}}


def word_scale(scales: Scales, dense_weight: float) -> dict[str, float]:
    """Return what brings a sum to the spread of BM25: `zero` is what a document gets that fits in nothing.

    Times `factor` a document that fits well has about what BM25 gives it (measured on four collections,
    benchmarks/README.md).
    """
    return {
        "zero": dense_weight * scales.unrelated,
        "factor": SCALE * math.sqrt(max(scales.idf_sum, 1.0)) / (1 - dense_weight * COSINES_LESS),
    }


def named(question: CompiledQuery) -> dict[str, Any]:
    """Build a filter that lets all hits pass, whose named queries the engine scores for those it returns."""
    legs = [leg.true_scores(question.asked[name], explain=True) for name, leg in question.legs.items()]
    functions = [
        {"bool": {"should": list(part.clauses), "_name": name}}
        for name, part in {**question.signals, **question.boosts}.items()
        if question.explained and part.clauses
    ]
    return {"bool": {"filter": [{"match_all": {}}], "should": [*legs, *functions]}}
