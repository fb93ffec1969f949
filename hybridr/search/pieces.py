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
    retriever: LexicalRetriever, texts: Sequence[str], read: Sequence[Analysed]
) -> list[dict[str, Any]]:
    """Return for each text a query that matches its words as if the retriever's fields were one."""
    return [
        retriever.pieces_query(weighed_pieces(text, analysed.words) or {text: 1.0})
        for text, analysed in zip(texts, read, strict=True)
    ]


def weighed_pieces(text: str, words: Sequence[Word]) -> dict[str, float]:
    """Return the pieces of a text with their boosts, cut between words that do not overlap.

    Synonyms, shingles and Chinese bigrams that span several words keep these together.
    """
    weights: dict[str, float] = {}
    together: list[Word] = []
    for word in [*sorted(words, key=lambda pair: pair.start), None]:
        if together and (word is None or word.start >= max(word.end for word in together)):
            piece = text[together[0].start : max(word.end for word in together)]
            weights[piece] = weights.get(piece, 0.0) + boost_of(together)
            together = []
        together += [word] if word else []
    return weights


def boost_of(words: Sequence[Word]) -> float:
    """Return the idf of words over all fields as one, divided by the idf that the cluster's query uses."""
    own = sum(word.own_idf for word in words)
    return sum(word.idf for word in words) / own if own else 1.0
