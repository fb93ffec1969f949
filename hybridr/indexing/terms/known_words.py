"""Words whose terms an index has given: texts of these alone are analysed here, without a request.

Only for analysers that read each word for itself: the standard tokenizer and filters of single terms. A text
that is not plainly words and gaps between them is left to the cluster.
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

TermVectors: TypeAlias = Mapping[str, Any]
"""Field -> its terms with their statistics, as the server gives them."""
LETTERS = "A-Za-zÀ-ÖØ-öø-ɏΑ-ΡΣ-ώА-яЁё"
WORD = re.compile(
    rf"[0-9]+(?:[.,][0-9]+)+(?![{LETTERS}0-9])|[{LETTERS}0-9]+(?:(?<=[{LETTERS}])'(?=[{LETTERS}])[{LETTERS}0-9]+)*"
)
"""What the standard tokenizer (UAX #29) reads as one word, in scripts that part words."""
PARTING = r"\s\-/()\[\]{}!?\"&+=<>|@%$~^"
"""What parts two words, whatever is beside it; `3.5` and `it's` are one word each."""
OUTSIDE = re.compile(rf"[{PARTING},;:.']*")
INSIDE = re.compile(rf"[{PARTING},;:.']*[{PARTING}][{PARTING},;:.']*")
"""Gaps around and between words."""
LONGEST, MOST_CHARACTERS = 100, 1_000  # of a word, which a tokenizer cuts at 255, and of a text


class WordSpan(NamedTuple):
    """A word of a text, and its characters `[start, end)`."""

    word: str
    start: int
    end: int


class KnownWords:
    """What the searched fields of an index make of words: in each field a term and in how many documents it
    is.

    Learnt from answers of the cluster, where it is `usable`: each field reads each word for itself. If an
    answer shows that this is not so, nothing is known from then on.
    """

    def __init__(self, limit: int, *, usable: bool) -> None:
        self.limit, self.usable = limit, usable
        self.clear()

    def clear(self) -> None:
        """Forget all words."""
        self._terms: OrderedDict[str, Mapping[str, tuple[str, int]]] = OrderedDict()
        self._documents: dict[str, int] = {}

    def learn(self, text: str, shards: Sequence[TermVectors]) -> None:
        """Take up the words of a text from its term vectors in all shards."""
        spans = word_spans(text) if self.usable else None
        if spans is None:
            return
        documents: dict[str, int] = defaultdict(int)
        frequency: dict[tuple[str, str], int] = defaultdict(int)
        for field, vector in chain.from_iterable(vectors.items() for vectors in shards):
            documents[field] += max(vector.get("field_statistics", {}).get("doc_count", 0), 0)
            for term, entry in vector["terms"].items():
                frequency[field, term] += entry.get("doc_freq", 0)
        read: list[dict[str, tuple[str, int]]] = [{} for _ in spans]
        terms_at = {(place, span.start, span.end): read[place] for place, span in enumerate(spans)}
        for field, term, place in tokens_of(shards):
            terms = terms_at.get(place)
            if terms is None or terms.setdefault(field, (term, frequency[field, term]))[0] != term:
                self.usable = False
                return self.clear()
        self._documents |= documents
        self._terms |= {span.word: terms for span, terms in zip(spans, read, strict=True)}
        while len(self._terms) > self.limit:
            self._terms.popitem(last=False)

    def vectors_of(self, text: str) -> TermVectors | None:
        """Return the term vectors of a text as if one shard held all documents; None if a word is not
        known.
        """
        spans = word_spans(text) if self._terms else None
        if spans is None:
            return None
        vectors: dict[str, Any] = {}
        for position, (word, start, end) in enumerate(spans):
            if (terms := self._terms.get(word)) is None:
                return None
            at = {"position": position, "start_offset": start, "end_offset": end}
            for field, (term, frequency) in terms.items():
                if field not in vectors:
                    documents = {"doc_count": self._documents.get(field, 0)}
                    vectors[field] = {"field_statistics": documents, "terms": {}}
                held = vectors[field]["terms"].setdefault(term, {"doc_freq": frequency, "tokens": []})
                held["tokens"].append(at)
        return vectors


def tokens_of(shards: Sequence[TermVectors]) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Yield field and term of each token, and its place: position, start and end."""
    for field, vector in chain.from_iterable(vectors.items() for vectors in shards):
        for term, entry in vector["terms"].items():
            for at in entry["tokens"]:
                yield field, term, (at["position"], at["start_offset"], at["end_offset"])


def word_spans(text: str) -> list[WordSpan] | None:
    """Return the words of a text in their order; None if the cluster may see other words in it."""
    if len(text) > MOST_CHARACTERS:
        return None
    spans: list[WordSpan] = []
    for match in WORD.finditer(text):
        gap = text[spans[-1].end if spans else 0 : match.start()]
        if not (INSIDE if spans else OUTSIDE).fullmatch(gap) or len(match[0]) > LONGEST:
            return None
        spans.append(WordSpan(match[0], *match.span()))
    return spans if OUTSIDE.fullmatch(text[spans[-1].end if spans else 0 :]) else None
