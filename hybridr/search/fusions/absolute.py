"""The absolute fusion: true scores of both legs and of the signals, added up by one rescoring request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from ...cluster.legs.dense import DenseLeg, as_numbers
from ...cluster.record import Record
from . import Fusion, Grid, Legs, Question, Scales, Scores

LEXICAL_SCALE = 4.0
TAKEN = 0.2  # by each signal of the words' weight
NO_SIGNALS: Mapping[str, float] = MappingProxyType({})
WINDOW = 2  # times the depth: what is scored again, the candidates of both legs
BEYOND = 1e-12
"""The weight of the scores by which hits are found: lost in those that are scored again, and what is left for
hits beyond the window, which follow in the order in which they were found on whichever page they are."""
LARGEST_WINDOW = 10_000  # index.max_rescore_window's default
UNSEEN = 0.5  # the engine score of a document without a vector
TWENTIETHS = [i / 20 for i in range(1, 20)]


class Weights(NamedTuple):
    """What each part of a score is multiplied by: BM25, an engine's cosine score, and the signals by name."""

    lexical: float
    dense: float
    signals: Mapping[str, float]


class Absolute(Fusion):
    """Adds BM25 by the idf of the query's terms to cosines by the spread of the encoder's, and signals."""

    name = "absolute"
    help = "by their true scores"
    one_request = True
    needs_scales = True
    takes_signals = True
    takes_boosts = True
    needs_scripts = True
    true_scores = True
    grids = (Grid("absolute", {"fusion": "absolute"}, TWENTIETHS),)

    @staticmethod
    def obstacle(record: Record, feedback: str | None) -> str | None:
        """Say why BM25 and cosines of this index cannot be added up; None where they can."""
        if record.passages is not None:
            return "its documents have several vectors (--passages)"
        if record.similarity != "cosine":
            return "its encoder compares by inner product"
        return "rm3 changes the scale of BM25" if feedback == "rm3" else None

    def body(self, question: Question, k: int) -> dict[str, Any]:
        """Rank by the true scores of all parts, in one request; the engine names them where they are shown.

        The candidates come from both legs. The best of each shard are scored again, where a document of one
        leg only gets its score of the other. No pipeline is needed: pages, filters and aggregations stay as
        usual.
        """
        vector, dense = question.asked["dense"], cast(DenseLeg, question.legs["dense"])
        weights = self.weights(question)
        boost = weights.dense / weights.lexical if weights.lexical else 1.0
        near = dense.query(vector, question.depth, filter=question.filter, boost=boost)
        words = question.matched or replace(question, shown=False).query("lexical")
        known = {"bool": {"should": [*weighted(question, weights), {"match_all": {"boost": 0.0}}]}}
        script = dense_script(as_numbers(vector), dense.field, weights.dense)
        body: dict[str, Any] = {
            "size": k,
            "query": {"bool": {"should": [words, near]}},
            "rescore": {
                "window_size": min(WINDOW * question.depth, LARGEST_WINDOW),
                "query": {
                    "query_weight": BEYOND,
                    "rescore_query_weight": 1.0,
                    "rescore_query": {"script_score": {"query": known, "script": script}},
                },
            },
        }
        return body | {"post_filter": named(question)} if question.shown else body

    def weights(self, question: Question) -> Weights:
        """Give the weights of a question's parts."""
        shares = {name: part.weight for name, part in question.signals.items()}
        return absolute_weights(self.settings.dense_weight, question.scales, shares)

    def scores(self, legs: Legs) -> dict[str, float]:
        """Add up what all parts give every candidate."""
        weight, (lexical, dense) = self.settings.dense_weight, self.sides(legs)
        added = [(share, found) for share, found in legs.boosts.values()]
        return {
            doc: (1 - weight) * lexical[doc]
            + weight * dense[doc]
            + sum(share * found.get(doc, 0.0) for share, found in added)
            for doc in legs.documents
        }

    def sides(self, legs: Legs) -> tuple[Scores, Scores]:
        """Bring true scores to one scale, the signals beside BM25; the engine's cosine scores are 0 to 1."""
        shares = {name: weight for name, (weight, _) in legs.signals.items()}
        without, alone = (absolute_weights(weight, legs.scales, shares) for weight in (0, 1))
        told = [(without.signals[name], scores) for name, (_, scores) in legs.signals.items()]
        told.append((without.lexical, legs.lexical))
        lexical = {doc: sum(one * found.get(doc, 0.0) for one, found in told) for doc in legs.documents}
        return lexical, {doc: alone.dense * legs.dense.get(doc, UNSEEN) for doc in legs.documents}

    def parts(self, question: Question, named: Scores) -> dict[str, float]:
        """Split a hit's score into what words, cosine, each signal and each boost add."""
        weights = self.weights(question)
        own = {"words": weights.lexical * named.get("lexical", 0.0)}
        own["cosine"] = weights.dense * named.get("dense", UNSEEN)
        shares = {**weights.signals, **{name: part.weight for name, part in question.boosts.items()}}
        return own | {name: share * named.get(name, 0.0) for name, share in shares.items()}


def lexical_root(idf_sum: float) -> float:
    """Give what BM25 is divided by to stand beside a cosine; 0 for a query without terms."""
    return LEXICAL_SCALE * math.sqrt(idf_sum)


def absolute_weights(
    dense_weight: float, scales: Scales, signals: Mapping[str, float] = NO_SIGNALS
) -> Weights:
    """Give what BM25, an engine's cosine score, (1 + cosine) / 2, and the signals are multiplied by.

    The sum is (1 - w) BM25 / (4 root of the idf sum) + w (1 + cosine) without signals. Each of them takes a
    fifth of the words' weight; its own is for w = .5, and falls with that of the words. A query without known
    terms has no lexical part.
    """
    root, share = lexical_root(scales.idf_sum), 1 - dense_weight
    words = max(0.0, 1 - TAKEN * len(signals)) * share
    return Weights(
        words / root if root else 0.0,
        2 * dense_weight * scales.dense,
        {name: 2 * share * weight for name, weight in signals.items()},
    )


def weighted(question: Question, weights: Weights) -> list[dict[str, Any]]:
    """Build the queries of words, signals and boosts, whose scores are what they add to the sum."""
    words = question.legs["lexical"].query(question.asked["lexical"], question.depth, boost=weights.lexical)
    signals = [
        {"bool": {"should": list(part.clauses), "boost": weights.signals[name]}}
        for name, part in question.signals.items()
        if part.clauses and weights.signals[name]
    ]
    boosts = [
        {"bool": {"should": list(part.clauses), "boost": part.weight}} for part in question.boosts.values()
    ]
    return [words, *signals, *boosts]


def named(question: Question) -> dict[str, Any]:
    """Build a filter that lets all hits pass, whose named queries the engine scores for those it returns."""
    vector, dense = question.asked["dense"], cast(DenseLeg, question.legs["dense"])
    script = dense_script(as_numbers(vector), dense.field, 1.0)
    cosine = {"script_score": {"query": {"match_all": {"boost": 0.0}}, "script": script, "_name": "dense"}}
    words = replace(question, filter=None).query("lexical")
    told = [
        {"bool": {"should": list(part.clauses), "_name": name}}
        for name, part in {**question.signals, **question.boosts}.items()
        if question.explained and part.clauses
    ]
    return {"bool": {"filter": [{"match_all": {}}], "should": [words, cosine, *told]}}


def dense_script(vector: Sequence[float], field: str, weight: float) -> dict[str, Any]:
    """Add the exact cosine as an engine score, 0 to 1 and .5 without a vector, to the score of the query.

    Some other index that a client searches along with this one may not have the field.
    """
    unseen = f"!doc.containsKey('{field}') || doc['{field}'].size() == 0"
    return {
        "source": (
            f"_score + params.dense * ({unseen} ? {UNSEEN} : "
            f"(1.0 + cosineSimilarity(params.vector, doc['{field}'])) / 2.0)"
        ),
        "params": {"dense": weight, "vector": list(vector)},
    }
