"""The absolute fusion: adds true scores of all retrievers and signals in one request with a rescore."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ...cluster.retrievers import FAMILY as RETRIEVERS
from ...cluster.retrievers import Retriever
from ...cluster.retrievers.dense import DenseRetriever
from ...cluster.retrievers.lexical import SCALE
from ...families import load_member
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
    scaled_query,
)

SIGNAL_SHARE = 0.2  # share of the words' weight that each signal takes
NO_SIGNALS: Mapping[str, float] = MappingProxyType({})
WINDOW = 2  # times the depth: hits that are rescored, the candidates of both retrievers
COSINES_LESS = 0.4  # a good document gains less over an unrelated one by its cosine than by its words
FUNCTIONS = "functions"
"""The part that a client's own functions, and its further clauses, add to a score."""
LOWEST = 0.02  # gain over the sum of an unrelated document; smaller gains keep their order but hardly count
TWENTIETHS = [i / 20 for i in range(1, 20)]


class Absolute(Fusion):
    """Adds BM25 (scaled by the idf of the query's terms), cosines (scaled by the encoder's spread), and
    signals.
    """

    name = "absolute"
    help = "by their true scores"
    turn = 1
    one_request = True
    rescores = True
    needs_scales = True
    takes_signals = True
    takes_boosts = True
    needs_scripts = True
    scoring_clause = True
    grids = (Grid("absolute", {"fusion": "absolute"}, TWENTIETHS),)

    def weights(self, query: CompiledQuery) -> PartWeights:
        """Return the weight of each part of the score."""
        signals = {name: part.weight for name, part in query.signals.items()}
        return part_weights(self.settings.shares, query.scales, signals)

    def body(self, query: CompiledQuery, k: int) -> dict[str, Any]:
        """Return the one request that ranks by the true scores of all parts; parts are named if they are
        shown.

        No search pipeline is needed: pages, filters and aggregations work as usual.
        """
        body = {"size": k, **self.rescoring(query).body()}
        if not query.display:
            return body
        named = [
            retriever.scoring_clause(query.values[name], explain=True)
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
        """Return queries that find candidates by all retrievers and score the best of each shard by the sum
        of all parts.

        So a document that only one retriever found gets its scores from the others too. A client's own query
        finds candidates instead of the words, and its functions act on scores on the scale of BM25.
        """
        weights = query.weights
        word_weight = sum(
            weights.retrievers[name] for name, retriever in query.retrievers.items() if retriever.of_words
        )
        finders, without_names = [], replace(query, display=False)
        for name in query.finding_retrievers:
            retriever, value = query.retrievers[name], query.values[name]
            if retriever.of_words:
                finders.append(without_names.query(name))
            else:
                boost = weights.retrievers[name] / word_weight if word_weight else 1.0
                finders.append(retriever.query(value, query.depth, filter=query.filter, boost=boost))
        parts = [
            retriever.scoring_clause(query.values[name], weights.retrievers[name])
            for name, retriever in query.retrievers.items()
        ]
        other_parts = [(part, weights.signals[name]) for name, part in query.signals.items()]
        other_parts += [(part, part.weight) for part in query.boosts.values()]
        parts += [
            {"bool": {"should": list(part.clauses), "boost": weight}}
            for part, weight in other_parts
            if part.clauses and weight
        ]
        scoring: dict[str, Any] = {"bool": {"should": parts}}
        if query.wrappers:
            like_words = scores_like_words(scoring, query.scales, self.settings.dense_weight)
            scoring = scaled_query(like_words, query.client_scale)
        for part_name, wrapper in query.wrappers:
            [(kind, options)] = wrapper.items()
            scoring = {kind: {**options, part_name: scoring}}
        return Rescoring(
            {"bool": {"should": finders}},
            scoring,
            min(WINDOW * query.depth, query.window),
            query.finding_share * word_weight or BEYOND,
        )

    def scores(self, lists: CandidateLists) -> dict[str, float]:
        """Return the sum of all weighted parts for every candidate."""
        shares, sides = self.settings.shares, self.sides(lists)
        parts = [(shares[name], side) for name, side in sides.items()] + list(lists.boosts.values())
        return {doc: sum(share * scores.get(doc, 0.0) for share, scores in parts) for doc in lists.documents}

    def sides(self, lists: CandidateLists) -> dict[str, Scores]:
        """Return each retriever's scaled scores of all candidates, with signals counted beside BM25."""
        signals = {name: weight for name, (weight, _) in lists.signals.items()}
        sides: dict[str, Scores] = {}
        for name, scores in lists.scores.items():
            weights = part_weights({name: 1.0}, lists.scales, signals)
            unseen = load_member(RETRIEVERS, name).unseen
            parts = [(weights.signals[name], scores) for name, (_, scores) in lists.signals.items()]
            sides[name] = {
                doc: weights.retrievers[name] * scores.get(doc, unseen)
                + sum(share * scores.get(doc, 0.0) for share, scores in parts if share)
                for doc in lists.documents
            }
        return sides

    def parts(self, query: CompiledQuery, named: Scores, score: float) -> dict[str, float]:
        """Return what each retriever, signal and boost adds to a hit's score.

        With functions of a client's own query, parts are on the scale of BM25, less what an unrelated
        document gets; the effect of the functions is a part too.
        """
        weights = query.weights
        parts = {
            retriever.part: weights.retrievers[name] * named.get(name, retriever.unseen)
            for name, retriever in query.retrievers.items()
        }
        shares = {**weights.signals, **{name: part.weight for name, part in query.boosts.items()}}
        parts |= {name: share * named.get(name, 0.0) for name, share in shares.items()}
        if not query.wrappers:
            return parts
        total = sum(parts.values())
        gain = total - word_scale(query.scales, self.settings.dense_weight)["zero"]
        damped = gain if gain > LOWEST else LOWEST * math.exp(max(gain / LOWEST, -30) - 1)
        parts[DenseRetriever.part] = parts.get(DenseRetriever.part, 0.0) + damped - total
        unit = self.unit(query)
        return {name: unit * value for name, value in parts.items()} | {FUNCTIONS: score - unit * damped}

    def unit(self, query: CompiledQuery) -> float:
        """Return the factor from the sum of all parts to the score that a client's functions change."""
        if not query.wrappers:
            return 1.0
        return query.client_scale * word_scale(query.scales, self.settings.dense_weight)["factor"]


def part_weights(
    shares: Mapping[str, float], scales: Scales, signals: Mapping[str, float] = NO_SIGNALS
) -> PartWeights:
    """Return the factors for the true scores of retrievers with these shares, and for the signals.

    Without signals, the sum is (1 - w) BM25 / (4 root of the idf sum) + w (1 + cosine), where the engine's
    cosine score is (1 + cosine) / 2. Each signal takes a fifth of the words' weight; its own weight is for w
    = .5 and falls with that of the words. A query without known terms has no lexical part. The weights
    of words and vectors sum to 1; learnt signals come on top.
    """
    learnt = {name for name in signals if load_member(SIGNALS, name).learnt}
    kinds: list[type[Retriever]] = [load_member(RETRIEVERS, name) for name in shares]
    word_share = max(0.0, 1 - SIGNAL_SHARE * len(signals.keys() - learnt))
    of_words = sum(shares[kind.name] for kind in kinds if kind.of_words)
    total = sum(shares[kind.name] for kind in kinds if kind.reads != "representation")
    factors = {
        kind.name: shares[kind.name]
        * kind.scale(scales.idf_sum, scales.by_retriever.get(kind.name, scales.dense))
        for kind in kinds
    }
    return PartWeights(
        {kind.name: (word_share if kind.of_words else 1.0) * factors[kind.name] for kind in kinds},
        {name: (total if name in learnt else 2 * of_words) * weight for name, weight in signals.items()},
    )


def scores_like_words(query: dict[str, Any], scales: Scales, dense_weight: float) -> dict[str, Any]:
    """Return a query with the same order whose scores lie on the scale of BM25, near 0 for unrelated
    documents.

    A client's functions that multiply or add to the score then work as they do with BM25. Scores never reach
    zero, because a client's script may divide by them.
    """
    script = (
        "double above = _score - params.zero; return params.factor * (above > params.tail ? above "
        ": params.tail * Math.exp(Math.max(above / params.tail, -30) - 1));"
    )
    params = {**word_scale(scales, dense_weight), "tail": LOWEST}
    return {"script_score": {"query": query, "script": {"source": script, "params": params}}}


def word_scale(scales: Scales, dense_weight: float) -> dict[str, float]:
    """Return `zero`, the sum of parts of an unrelated document, and `factor`, which maps the rest to the
    scale of BM25.

    With `factor`, a good document scores about as it does with BM25 (measured on four collections,
    benchmarks/README.md).
    """
    return {
        "zero": dense_weight * scales.unrelated,
        "factor": SCALE * math.sqrt(max(scales.idf_sum, 1.0)) / (1 - dense_weight * COSINES_LESS),
    }
