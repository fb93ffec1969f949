"""Cuts a query into pieces that are matched separately, so that each weighs as in one joined field.

For a word in several fields no cluster knows how many documents hold it in any of them: `combined_fields`
takes the field with most such documents, and so makes common words of a long text rarer than they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cluster.retrievers.lexical import LexicalRetriever
from ..indexing.terms.terms import Analysed, Word


def word_queries(
    retriever: LexicalRetriever, texts: Sequence[str], analyses: Sequence[Analysed]
) -> list[dict[str, Any]]:
    """Return for each text a query that matches its words as if the retriever's fields were one."""
    return [
        retriever.pieces_query(weighted_pieces(text, analysed.words) or {text: 1.0})
        for text, analysed in zip(texts, analyses, strict=True)
    ]


def weighted_pieces(text: str, words: Sequence[Word]) -> dict[str, float]:
    """Return the pieces of a text with their boosts, cut between words that do not overlap.

    Synonyms, shingles and Chinese bigrams that span several words keep these together.
    """
    weights: dict[str, float] = {}
    piece_words: list[Word] = []
    for word in [*sorted(words, key=lambda pair: pair.start), None]:
        if piece_words and (word is None or word.start >= max(word.end for word in piece_words)):
            piece = text[piece_words[0].start : max(word.end for word in piece_words)]
            weights[piece] = weights.get(piece, 0.0) + idf_boost(piece_words)
            piece_words = []
        piece_words += [word] if word else []
    return weights


def idf_boost(words: Sequence[Word]) -> float:
    """Return the idf of words over all fields as one, divided by the idf that the cluster's query uses."""
    own_idf_sum = sum(word.own_idf for word in words)
    return sum(word.idf for word in words) / own_idf_sum if own_idf_sum else 1.0
