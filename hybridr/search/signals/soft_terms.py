"""Signal soft terms: words of the index that are near a query word in the encoder's space.

A document that uses other words still matches: of the terms near each query word, the nearest one in the
document counts. The term table is fitted to the index (`indexing.terms`), so neither documents nor queries
are encoded again. The scale comes from the table: on average a word itself counts `SCALE`, its 30th nearest
term 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from shlex import quote
from typing import Any

from ...errors import DataError
from ...indexing.terms.fitting import table_obstacle
from ...indexing.terms.storage import MIN_TERMS, open_term_table
from ...indexing.terms.terms import Analysed
from . import Place, QueryReading, Signal

NEAREST = 30
"""Rank of the neighbour whose cosine counts as no similarity."""
USED = 12  # nearest terms that are searched: each costs time, and the last add almost nothing
LEVELS = 8  # of nearness: terms of one level are one query, which halves a request
SCALE = 0.39  # mean score of a word itself
MIN_SPAN = 0.1  # least distance of cosines between a word itself and no similarity
DECIMALS = 6  # of a boost: a request has hundreds of boosts
CACHED_TERMS = 8_000  # more than a table has
WARMED_AT_ONCE = 1_000  # terms, a quarter of a second
MAX_CLAUSES = 900  # a cluster takes 1,024 in all; of a long query only the heaviest words are used


class SoftTerms(Signal):
    """Adds, for each word of the query by its share of idf, the nearness of the document's nearest term."""

    name = "soft_terms"
    help = "words near those of the query"
    weight = 0.2
    usual = True

    def __init__(self, place: Place) -> None:
        table = open_term_table(place.cluster, place.info)
        if table is None:
            raise DataError(f"no soft terms: {self.obstacle(place)}")
        self.fields, self.table = place.fields, table
        self.usual_threshold = table.usual_cosine(NEAREST)
        self.scale = SCALE / max(MIN_SPAN, table.own_cosine - self.usual_threshold)
        self.near_words = lru_cache(CACHED_TERMS)(self._near_words)
        self.warmed = 0

    @classmethod
    def obstacle(cls, place: Place) -> str | None:
        """Return a reason if there is no usable term table; else None.

        The table has words of all documents, so a filtered alias must not use it.
        """
        if place.info.scope:
            return f"'{place.info.name}' is searched through an alias that shows only a part of it"
        table = open_term_table(place.cluster, place.info)
        if table is None:
            advice = f"hybridr tune {quote(place.info.name)} makes one of {MIN_TERMS} words or more"
            return table_obstacle(place.info.record.passages, place.encoder) or f"no term table: {advice}"
        return table.shortcoming or None

    def clauses(self, reading: QueryReading) -> list[dict[str, Any]]:
        """Return a query for each word, whose score is the nearness of the nearest term in the document.

        A word itself counts by the mean cosine of its occurrences; a word that is not in the table matches
        only itself.
        """
        shares = idf_shares(reading.analysed)
        limit = max(0, MAX_CLAUSES - len(reading.analysed.words)) // (USED * len(self.fields))
        clauses = []
        for term, share in list(shares.items())[:limit]:
            queries = [
                {"terms": {field: terms, "boost": boost}}
                for boost, terms in self.near_words(term)
                for field in self.fields
            ]
            if queries:
                clauses.append({"dis_max": {"queries": queries, "boost": round(share, DECIMALS)}})
        return clauses

    def warm(self) -> bool:
        """Look up the neighbours of the next terms of the table; return whether terms are left."""
        part = self.table.terms[self.warmed : self.warmed + WARMED_AT_ONCE]
        for term in part:
            self.near_words(term)
        self.warmed += len(part)
        return self.warmed < len(self.table.terms)

    def _near_words(self, term: str) -> list[tuple[float, list[str]]]:
        """Return the terms near a word by level of nearness, each level with its boost.

        Terms are matched exactly, without analysis. No term counts as nearer than the word itself, although
        mean states are nearer to each other than occurrences are to their mean.
        """
        nearest, highest = self.table.near(term, NEAREST), self.table.own_cosine
        threshold = nearest[-1][1] if nearest else self.usual_threshold
        span = highest - threshold
        cosines = {neighbour: min(cosine, highest) for neighbour, cosine in nearest[:USED]} | {term: highest}
        levels: dict[int, list[str]] = defaultdict(list)
        for neighbour, cosine in cosines.items():
            if cosine > threshold:
                levels[max(1, round(LEVELS * (cosine - threshold) / span))].append(neighbour)
        step = self.scale * span / LEVELS
        return [(round(step * level, DECIMALS), terms) for level, terms in levels.items()]


def idf_shares(analysed: Analysed) -> Mapping[str, float]:
    """Return each term's share of the idf sum, largest first."""
    weights: dict[str, float] = {}
    for word in analysed.words:
        weights[word.term] = max(word.idf, weights.get(word.term, 0.0))
    total = sum(weights.values())
    return {
        term: weight / total for term, weight in sorted(weights.items(), key=lambda item: -item[1]) if total
    }
