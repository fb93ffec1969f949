"""Signal phrases: neighbouring words of the query that stand side by side in the document.

`match_phrase` scores a pair as BM25 scores a word, with the sum of both idf and the frequency of the pair.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ...indexing.terms.terms import Word
from ...languages import STOP_WORDS
from ..pieces import idf_boost
from . import Place, QueryReading, Signal

SCALE = 3.5
HALF = 0.5  # the mean of both idf counts, not their sum
MAX_PAIRS, MAX_CLAUSES = 32, 96  # of a query, and their clauses in all fields; a long query has hundreds
WITHOUT_POSITIONS = ("docs", "freqs")
OVERLAPPING = "cjk"
"""An analyser whose words share a character with their neighbours, so that a pair says little more than its
words."""


class Phrases(Signal):
    """Adds 3.5 times the BM25 of pairs of neighbouring words, stop words left out and their gap kept."""

    name = "phrases"
    help = "words of the query side by side"
    weight = 0.1
    usual = True

    def __init__(self, place: Place) -> None:
        self.fields = fields_with_positions(place)

    @classmethod
    def obstacle(cls, place: Place) -> str | None:
        """Return a reason if no searched field stores positions of words; else None."""
        if fields_with_positions(place):
            return None
        return f"the index keeps no positions of words in {', '.join(place.fields)}"

    @classmethod
    def is_usual(cls, place: Place) -> bool:
        """Return whether any searched field has words that do not overlap."""
        analysers = [place.info.mapping_of(field).get("analyzer") for field in place.fields]
        return any(analyser != OVERLAPPING for analyser in analysers)

    def clauses(self, reading: QueryReading) -> list[dict[str, Any]]:
        """Return a phrase query for each pair of neighbouring words; the best-scoring field counts."""
        if not reading.root:
            return []
        clauses: dict[str, list[dict[str, Any]]] = defaultdict(list)
        limit = min(MAX_PAIRS, MAX_CLAUSES // len(self.fields))
        for field in self.fields:
            for phrase, share in neighbour_pairs(reading.text, field, reading.analysed.words, limit).items():
                boosted = {"query": phrase, "boost": SCALE * HALF * share / reading.root}
                clauses[phrase].append({"match_phrase": {field: boosted}})
        return [
            fields[0] if len(fields) == 1 else {"dis_max": {"queries": fields}} for fields in clauses.values()
        ]


def fields_with_positions(place: Place) -> list[str]:
    """Return the searched fields that store positions of terms, which phrase queries need."""
    mappings = ((field, place.info.mapping_of(field)) for field in place.fields)
    return [
        field
        for field, mapping in mappings
        if mapping.get("type") == "text" and mapping.get("index_options") not in WITHOUT_POSITIONS
    ]


def neighbour_pairs(text: str, field: str, words: Sequence[Word], limit: int) -> dict[str, float]:
    """Return the pairs of neighbouring words of a text with their boosts (see `idf_boost`), heaviest pairs
    first if there are too many.

    Of several words at one position (synonyms, shingles) the shortest counts.
    """
    word_at: dict[int, Word] = {}
    for word in words:
        if word.field == field and word.term not in STOP_WORDS:
            shortest = word_at.get(word.position, word)
            word_at[word.position] = min(shortest, word, key=lambda word: word.end - word.start)
    pairs: dict[tuple[str, str], tuple[Word, Word]] = {}
    for first, second in pairwise(word_at[position] for position in sorted(word_at)):
        pairs.setdefault((first.term, second.term), (first, second))
    heaviest = sorted(pairs.values(), key=lambda pair: -(pair[0].idf + pair[1].idf))[:limit]
    return {phrase: idf_boost(pair) for pair in heaviest if (phrase := text[pair[0].start : pair[1].end])}
