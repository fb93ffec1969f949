"""Phrases: neighbouring words of the query that stand side by side in the document.

`match_phrase` scores a pair as BM25 scores a word, with the sum of both idf and the frequency of the pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from ...cluster.fields import mapping_of
from ...evaluation.bm25 import STOP_WORDS
from ...vocabulary.terms import Word
from . import Place, QueryReading, Signal

SCALE = 3.5
HALF = 0.5  # the mean of both idf counts, not their sum
MOST = 32  # pairs; a long query has hundreds
WITHOUT_POSITIONS = ("docs", "freqs")


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
        """Say that no field knows where its words stand."""
        if fields_with_positions(place):
            return None
        return f"the index keeps no positions of words in {', '.join(place.fields)}"

    def clauses(self, asked: QueryReading) -> list[dict[str, Any]]:
        """Match each pair in each field as the text has it between the first and the last letter."""
        if not asked.root:
            return []
        return [
            {"match_phrase": {field: {"query": phrase, "boost": SCALE * HALF / asked.root}}}
            for field in self.fields
            for phrase in phrases_of(asked.text, field, asked.analysed.words, MOST // len(self.fields))
        ]


def fields_with_positions(place: Place) -> list[str]:
    """Name the fields that phrases can be found in."""
    mappings = ((field, mapping_of(place.info, field)) for field in place.fields)
    return [
        field
        for field, mapping in mappings
        if mapping.get("type") == "text" and mapping.get("index_options") not in WITHOUT_POSITIONS
    ]


def phrases_of(text: str, field: str, words: Sequence[Word], most: int) -> list[str]:
    """Cut out each pair of neighbouring words once, those that weigh most if there are too many."""
    found: dict[tuple[str, str], tuple[float, str]] = {}
    for first, second in pairs(word for word in words if word.field == field):
        found.setdefault((first.term, second.term), (first.idf + second.idf, text[first.start : second.end]))
    heaviest = sorted(found.values(), key=lambda one: -one[0])[:most]
    return [phrase for _, phrase in heaviest if phrase]


def pairs(words: Iterator[Word]) -> Iterator[tuple[Word, Word]]:
    """Pair the words of neighbouring places; of several at one place (synonyms, shingles) the shortest."""
    at: dict[int, Word] = {}
    for word in words:
        held = at.get(word.position)
        if word.term not in STOP_WORDS and (held is None or word.end - word.start < held.end - held.start):
            at[word.position] = word
    return pairwise(at[position] for position in sorted(at))
