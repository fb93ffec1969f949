"""Soft terms: words of the index that stand near a word of the query in the encoder's own space.

A document that says it otherwise still matches: of the words near each word of the query the nearest that it
holds counts. The table of words is fitted to the index (`vocabulary`); no document is encoded for it again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...encoding.contract import Reading, Vectors, reads_tokens
from ...vocabulary.storage import open_term_table
from ...vocabulary.terms import Analysed
from ..calibration import known_state_scale
from . import Place, QueryReading, Signal

NEAREST = 30
"""Where nearness begins: at the cosine of this neighbour."""
KEPT = 20  # of them: each costs a cluster time, and the last add next to nothing
SCALE = 1.31
MOST_CLAUSES = 900  # a cluster takes 1,024 in all: of long queries the words that weigh most are asked


class SoftTerms(Signal):
    """Adds for each word of the query, by its share of idf, how near the nearest word of the document is."""

    name = "soft_terms"
    help = "words near those of the query"
    weight = 0.2
    reads_tokens = True

    def __init__(self, place: Place) -> None:
        assert reads_tokens(place.encoder)
        self.fields = place.fields
        self.table = open_term_table(place.cluster, place.info)
        self.scale = SCALE * known_state_scale(place.encoder)

    @classmethod
    def obstacle(cls, place: Place) -> str | None:
        """Say that the encoder shows no tokens, or that no table was fitted."""
        if not reads_tokens(place.encoder):
            return "the encoder does not show the states of tokens"
        if open_term_table(place.cluster, place.info) is None:
            return f"no table of terms was fitted: hybridr tune {place.info.name}"
        return None

    def clauses(self, asked: QueryReading) -> list[dict[str, Any]]:
        """Take for each word the best of the near words that a document holds."""
        room = max(0, MOST_CLAUSES - len(asked.analysed.words))
        words = soft_words(asked.analysed, asked.reading)[: room // (KEPT * len(self.fields))]
        if not words or self.table is None:
            return []
        places, cosines = self.table.nearest(np.stack([word.state for word in words]), NEAREST)
        found = []
        for word, near, cosine in zip(words, places.tolist(), cosines.tolist(), strict=True):
            nearest = zip(near[:KEPT], cosine[:KEPT], strict=True)
            terms = {self.table.terms[place]: one for place, one in nearest}
            terms.setdefault(word.term, max(self.table.own_cosine, cosine[-1]))
            found.append(self._best_of(terms, cosine[-1], self.scale * word.share))
        return [clause for clause in found if clause]

    def _best_of(self, terms: dict[str, float], threshold: float, weight: float) -> dict[str, Any]:
        """Score a document by the nearest of these terms, from the threshold on."""
        weights = {term: weight * (cosine - threshold) for term, cosine in terms.items()}
        clauses = [
            {"constant_score": {"filter": self._holds(term), "boost": one}}
            for term, one in weights.items()
            if one > 0
        ]
        return {"dis_max": {"queries": clauses}} if clauses else {}

    def _holds(self, term: str) -> dict[str, Any]:
        """Match documents that have just this term in one of the fields; it is not analysed again."""
        each = [{"term": {field: term}} for field in self.fields]
        return each[0] if len(each) == 1 else {"bool": {"should": each}}


class SoftWord(NamedTuple):
    """A term of the query, its mean state `(width,)`, and its share of the query's idf."""

    term: str
    state: Vectors
    share: float


def soft_words(analysed: Analysed, reading: Reading) -> list[SoftWord]:
    """Bring the index's terms and the encoder's tokens together, by the characters that both stand for.

    The terms that weigh most come first.
    """
    spans = np.array(reading.spans, dtype=np.int64).reshape(-1, 2)
    states: dict[str, list[Vectors]] = {}
    weights: dict[str, float] = {}
    for word in analysed.words:
        weights[word.term] = max(word.idf, weights.get(word.term, 0.0))
        over = (spans[:, 0] < word.end) & (spans[:, 1] > word.start)
        if over.any():
            states.setdefault(word.term, []).append(reading.states[over].mean(axis=0))
    total = sum(weights.values())
    heaviest = sorted(states, key=lambda term: -weights[term])
    return [
        SoftWord(term, np.mean(states[term], axis=0), weights[term] / total) for term in heaviest if total
    ]
