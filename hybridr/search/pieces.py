"""Pieces: a query cut into what is looked for by itself, so that each weighs as in one joined field.

Of a word that stands in several fields no cluster knows how many documents hold it in any: `combined_fields`
takes the field that holds it most often, and makes of common words of a long text rarer ones than they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..cluster.retrievers.lexical import LexicalRetriever
from ..indexing.terms.terms import Analysed, Word


def word_queries(
    retriever: LexicalRetriever, texts: Sequence[str], read: Sequence[Analysed]
) -> list[dict[str, Any]]:
    """Match the words of each text as if the fields of the retriever were one."""
    return [
        retriever.of_pieces(weighed_pieces(text, analysed.words) or {text: 1.0})
        for text, analysed in zip(texts, read, strict=True)
    ]


def weighed_pieces(text: str, words: Sequence[Word]) -> dict[str, float]:
    """Cut a text between words that do not overlap, and give what the score of each piece is multiplied by.

    Synonyms, shingles and Chinese bigrams that reach over several words keep these together.
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
