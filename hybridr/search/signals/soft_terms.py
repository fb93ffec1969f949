"""Soft terms: words of the index that stand near a word of the query in the encoder's own space.

A document that says it otherwise still matches: of the words near each word of the query the nearest that it
holds counts. The table of words is fitted to the index (`vocabulary`); neither a document nor the query is
encoded for it again. The scale is the table's own, so that any encoder will do: a word itself counts by
`SCALE` in the mean, its 30th nearest by nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ...errors import DataError
from ...indexing.terms.fitting import table_obstacle
from ...indexing.terms.storage import LEAST_TERMS, open_term_table
from ...indexing.terms.terms import Analysed
from ..fusions import added
from . import Place, QueryReading, Signal

NEAREST = 30
"""Where nearness begins: at the cosine of this neighbour."""
KEPT = 20  # of them: each costs a cluster time, and the last add next to nothing
SCALE = 0.39  # of a word itself, in the mean
LEAST_SPAN = 0.1  # between a word itself and where nearness begins; an encoder may hardly tell them apart
DECIMALS = 6  # of a boost: hundreds of them are most of a request, which the cluster has to read
REMEMBERED = 2_000  # terms
MOST_CLAUSES = 900  # a cluster takes 1,024 in all: of long queries the words that weigh most are asked


class SoftTerms(Signal):
    """Adds for each word of the query, by its share of idf, how near the nearest word of the document is."""

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
        self.scale = SCALE / max(LEAST_SPAN, table.own_cosine - self.usual_threshold)
        self.known = lru_cache(REMEMBERED)(self._near_words)  # the words of queries come again

    @classmethod
    def obstacle(cls, place: Place) -> str | None:
        """Return that no term table was fitted, or that it cannot be used.

        It holds words of all documents, so an alias with a filter, which shows some of them, has none.
        """
        if place.info.scope:
            return f"'{place.info.name}' is asked through an alias that shows a part of it"
        table = open_term_table(place.cluster, place.info)
        if table is None:
            none = (
                f"no table of terms: hybridr tune {place.info.name} fits one to {LEAST_TERMS} words or more"
            )
            return table_obstacle(place.info.record.passages, place.encoder) or none
        return table.shortcoming or None

    def clauses(self, reading: QueryReading) -> list[dict[str, Any]]:
        """Score a document for each word by the nearest term that it holds, from the threshold on.

        A word counts itself as its occurrences stand to it; one that the table lacks has no other.
        """
        shares = shares_of(reading.analysed)
        room = max(0, MOST_CLAUSES - len(reading.analysed.words)) // (KEPT * len(self.fields))
        queries = []
        for term, share in list(shares.items())[:room]:
            terms = [
                {"constant_score": {"filter": holds, "boost": round(self.scale * share * nearness, DECIMALS)}}
                for holds, nearness in self.known(term)
            ]
            if terms:
                queries.append({"dis_max": {"queries": terms}})
        return queries

    def _near_words(self, term: str) -> list[tuple[dict[str, Any], float]]:
        """Return what matches each word near a term, and how much nearer than the threshold it stands.

        A document has just this term in one of the fields: it is not analysed again. None stands nearer than
        the term itself: its mean may, for means are nearer to each other than occurrences are to theirs.
        """
        near, own = self.table.near(term, NEAREST), self.table.own_cosine
        threshold = near[-1][1] if near else self.usual_threshold
        cosines = {neighbour: min(cosine, own) for neighbour, cosine in near[:KEPT]} | {term: own}
        words = []
        for neighbour, cosine in cosines.items():
            terms = [{"term": {field: neighbour}} for field in self.fields]
            if cosine > threshold:
                words.append((added(terms), cosine - threshold))
        return words


def shares_of(analysed: Analysed) -> Mapping[str, float]:
    """Return each term's share of the idf of all terms, the largest first."""
    weights: dict[str, float] = {}
    for word in analysed.words:
        weights[word.term] = max(word.idf, weights.get(word.term, 0.0))
    total = sum(weights.values())
    return {
        term: weight / total for term, weight in sorted(weights.items(), key=lambda item: -item[1]) if total
    }
