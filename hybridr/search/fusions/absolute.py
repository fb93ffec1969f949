"""The absolute fusion: true scores of all retrievers and signals, added up by one rescoring request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...cluster.retrievers import FAMILY as RETRIEVERS
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
    PartWeights,
    Rescoring,
    Scales,
    Scores,
    times,
)

TAKEN = 0.2  # by each signal of the words' weight
NO_SIGNALS: Mapping[str, float] = MappingProxyType({})
WINDOW = 2  # times the depth: what is scored again, the candidates of both retrievers
COSINES_LESS = 0.4  # a good document's cosine lies less above an unrelated one's than its words above none
FUNCTIONS = "functions"
"""The part that a client's own functions, and its further clauses, add to a score."""
LOWEST = 0.02  # of a sum: what is lower above that of an unrelated document is told apart, but hardly counts
TWENTIETHS = [i / 20 for i in range(1, 20)]


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

    def weights(self, query: CompiledQuery) -> PartWeights:
        """Return the weight of each part of the score."""
        signals = {name: part.weight for name, part in query.signals.items()}
        return part_weights(self.settings.shares, query.scales, signals)

    def body(self, query: CompiledQuery, k: int) -> dict[str, Any]:
        """Rank by the true scores of all parts, in one request; the engine names them where they are shown.

        No pipeline is needed: pages, filters and aggregations stay as usual.
        """
        body = {"size": k, **self.rescoring(query).body()}
        if not query.display:
            return body
        named = [
            retriever.true_scores(query.values[name], explain=True)
            for name, retriever in query.retrievers.items()
        ]
        if query.explained:
            named += [
                {"bool": {"should": list(part.clauses), "_name": name}}
                for name, part in {**query.signals, **query.boosts}.items()
                if part.clauses
            ]
        return body | {"post_filter": {"bool": {"filter": [{"match_all": {}}], "should": named}}}

    def rescoring(self, query: CompiledQuery) -> Rescoring:
        """Find candidates by all retrievers, and score the best of each shard again by the sum of all parts:
        a document that one retriever found only gets its score of the others.

        A client's own query finds in place of the words, and its functions act on scores like those of BM25.
        """
        weights = query.weights
        of_words = sum(
            weights.retrievers[name] for name, retriever in query.retrievers.items() if retriever.of_words
        )
        finders, unnamed = [], replace(query, display=False)
        for name in query.finding:
            retriever, value = query.retrievers[name], query.values[name]
            if retriever.of_words:
                finders.append(unnamed.query(name))
            else:
                boost = weights.retrievers[name] / of_words if of_words else 1.0
                finders.append(retriever.query(value, query.depth, filter=query.filter, boost=boost))
        parts = [
            retriever.true_scores(query.values[name], weights.retrievers[name])
            for name, retriever in query.retrievers.items()
        ]
        further = [(part, weights.signals[name]) for name, part in query.signals.items()]
        further += [(part, part.weight) for part in query.boosts.values()]
        parts += [
            {"bool": {"should": list(part.clauses), "boost": weight}}
            for part, weight in further
            if part.clauses and weight
        ]
        scored: dict[str, Any] = {"bool": {"should": parts}}
        if query.around:
            like_words = scores_like_words(scored, query.scales, self.settings.dense_weight)
            scored = surrounded(times(like_words, query.own_scale), query.around)
        return Rescoring(
            {"bool": {"should": finders}},
            scored,
            min(WINDOW * query.depth, query.window),
            query.found_share * of_words or BEYOND,
        )

    def scores(self, lists: CandidateLists) -> dict[str, float]:
        """Add up what all parts give every candidate."""
        shares, sides = self.settings.shares, self.sides(lists)
        parts = [(shares[name], side) for name, side in sides.items()] + list(lists.boosts.values())
        return {doc: sum(share * scores.get(doc, 0.0) for share, scores in parts) for doc in lists.documents}

    def sides(self, lists: CandidateLists) -> dict[str, Scores]:
        """Bring true scores to one scale, the signals beside BM25; the engine's cosine scores are 0 to 1."""
        signals = {name: weight for name, (weight, _) in lists.signals.items()}
        sides: dict[str, Scores] = {}
        for name, scores in lists.scores.items():
            weights = part_weights({name: 1.0}, lists.scales, signals)
            unseen = member_of(RETRIEVERS, name).unseen
            parts = [(weights.signals[name], scores) for name, (_, scores) in lists.signals.items()]
            sides[name] = {
                doc: weights.retrievers[name] * scores.get(doc, unseen)
                + sum(share * scores.get(doc, 0.0) for share, scores in parts if share)
                for doc in lists.documents
            }
        return sides

    def parts(self, query: CompiledQuery, named: Scores, score: float) -> dict[str, float]:
        """Split a hit's score into what each retriever, each signal and each boost adds.

        Functions of a client's own query see scores like those of BM25. Parts are on that scale then, less
        what an unrelated document has; what the functions make of their sum is a part too.
        """
        weights = query.weights
        parts = {
            retriever.part: weights.retrievers[name] * named.get(name, retriever.unseen)
            for name, retriever in query.retrievers.items()
        }
        shares = {**weights.signals, **{name: part.weight for name, part in query.boosts.items()}}
        parts |= {name: share * named.get(name, 0.0) for name, share in shares.items()}
        if not query.around:
            return parts
        total = sum(parts.values())
        above = total - word_scale(query.scales, self.settings.dense_weight)["zero"]
        seen = above if above > LOWEST else LOWEST * math.exp(max(above / LOWEST, -30) - 1)
        parts[DenseRetriever.part] = parts.get(DenseRetriever.part, 0.0) + seen - total
        unit = self.unit(query)
        return {name: unit * value for name, value in parts.items()} | {FUNCTIONS: score - unit * seen}

    def unit(self, query: CompiledQuery) -> float:
        """Return what 1 of the sum of all parts is where functions act on it; else the sum is the score."""
        if not query.around:
            return 1.0
        return query.own_scale * word_scale(query.scales, self.settings.dense_weight)["factor"]


def part_weights(
    shares: Mapping[str, float], scales: Scales, signals: Mapping[str, float] = NO_SIGNALS
) -> PartWeights:
    """Return what the true scores of retrievers with these shares, and the signals, are multiplied by.

    With BM25, and an engine's cosine score, (1 + cosine) / 2, the sum is (1 - w) BM25 / (4 root of the idf
    sum) + w (1 + cosine) without signals. Each of them takes a fifth of the words' weight; its own is for
    w = .5, and falls with that of the words. A query without known terms has no lexical part. What was learnt
    has its own weight, beside words and vectors, which share 1 between them.
    """
    learnt = {name for name in signals if member_of(SIGNALS, name).learnt}
    kinds: list[type[Retriever]] = [member_of(RETRIEVERS, name) for name in shares]
    left = max(0.0, 1 - TAKEN * len(signals.keys() - learnt))
    of_words = sum(shares[kind.name] for kind in kinds if kind.of_words)
    both = sum(shares[kind.name] for kind in kinds if kind.reads != "representation")
    scaled = {
        kind.name: shares[kind.name] * kind.scale(scales.idf_sum, scales.own.get(kind.name, scales.dense))
        for kind in kinds
    }
    return PartWeights(
        {kind.name: (left if kind.of_words else 1.0) * scaled[kind.name] for kind in kinds},
        {name: (both if name in learnt else 2 * of_words) * weight for name, weight in signals.items()},
    )


def surrounded(query: dict[str, Any], outer: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Put around a query what a client does to the scores of a text."""
    for part, outside in outer:
        [(kind, body)] = outside.items()
        query = {kind: {**body, part: query}}
    return query


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
