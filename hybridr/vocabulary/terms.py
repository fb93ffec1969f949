"""How an index reads a text: its terms, where they stand, and what they weigh in the whole index."""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

from ..cluster.connection import Cluster, path_of
from ..cluster.failures import understood
from ..cluster.fields import mapping_of, source_field
from ..cluster.record import IndexInfo
from ..cluster.routing import routing_values
from ..evaluation.bm25 import idf

REMEMBERED, TEXTS_AT_ONCE = 10_000, 100  # queries
MOST_SHARDS = 8
"""Whose statistics are asked for; documents fall into shards at random, so that these stand for all."""
SAME_COPY = {"preference": "hybridr"}  # replicas count deleted documents differently
PLAIN_SCORES, OLD_FACTOR = (3, 0, 0), 2.2  # before 3.0 BM25 has Lucene's old factor k1 + 1


TermVectors: TypeAlias = Mapping[str, Any]
"""Field -> its terms with their statistics, as the server gives them."""


class Word(NamedTuple):
    """A term of a text: the analyser's number for its place, and which characters `[start, end)` it is of."""

    field: str
    term: str
    position: int
    start: int
    end: int
    idf: float


class Analysed(NamedTuple):
    """A text as an index reads it: every term where it stands, and the idf of its different terms summed up.

    BM25 grows with the sum: a document with every term once, at an average length, has about this score.
    `known` tells whether a document of the shards that were asked holds any of the terms.
    """

    words: tuple[Word, ...] = ()
    idf_sum: float = 0.0
    known: bool = False


class Analysis:
    """Reads texts as some fields of an index do.

    The server analyses, as it would a query, and tells each term's statistics of every shard (of the first
    eight): idf is that of the whole index, the same for the same text always. Texts are remembered.
    """

    def __init__(
        self, cluster: Cluster, info: IndexInfo, fields: Sequence[str], *, remembered: int = REMEMBERED
    ) -> None:
        self.cluster, self.info, self.fields, self.remembered = cluster, info, list(fields), remembered
        self._known: OrderedDict[str, Analysed] = OrderedDict()

    def remembers(self, text: str) -> bool:
        """Tell whether a text was read before: no request is needed for it."""
        return text in self._known

    def of(self, texts: Sequence[str]) -> list[Analysed]:
        """Read each text; one of which analysis leaves nothing has no words."""
        known = {text: self._known.get(text) for text in texts}  # another thread may forget one meanwhile
        unknown = [text for text, one in known.items() if one is None]
        parts = (unknown[start : start + TEXTS_AT_ONCE] for start in range(0, len(unknown), TEXTS_AT_ONCE))
        found = {text: one for part in parts for text, one in zip(part, self._read(part), strict=True)}
        self._known |= found
        while len(self._known) > self.remembered:
            self._known.popitem(last=False)
        read = {text: one for text, one in known.items() if one is not None} | found
        return [read[text] for text in texts]

    def _read(self, texts: Sequence[str]) -> list[Analysed]:
        shards = len(self._routing)
        wanted = [
            {"doc": given_as(self.info, self.fields, text), "routing": value, **self._analysers}
            for text in texts
            for value in self._routing
        ]
        answers = term_vectors(self.cluster, self.info.name, self.fields, wanted, places=True)
        found = [one.get("term_vectors", {}) for one in answers]
        # The root of the sum is what scores are divided by: hence the square of their factor.
        factor = 1.0 if self.cluster.version >= PLAIN_SCORES else OLD_FACTOR**2
        return [
            analysed(text, found[place * shards : (place + 1) * shards], factor)
            for place, text in enumerate(texts)
        ]

    @cached_property
    def _routing(self) -> list[str]:
        return routing_values(self.info, MOST_SHARDS)

    @cached_property
    def _analysers(self) -> dict[str, Any]:
        """Name the analysers of queries, where a field has one of its own for them."""
        named = {field: mapping_of(self.info, field).get("search_analyzer") for field in self.fields}
        chosen = {field: one for field, one in named.items() if one}
        return {"per_field_analyzer": chosen} if chosen else {}


def analysed(text: str, shards: Sequence[TermVectors], factor: float) -> Analysed:
    """Put together what the shards say of a text."""
    words: list[Word] = []
    total = 0.0
    place_of = character_places(text)
    for field in dict.fromkeys(name for one in shards for name in one):
        told = [one[field] for one in shards if field in one]
        weights = idf_of(told)
        total += math.fsum(weights.values())
        words += [
            Word(
                field, term, at["position"], place_of(at["start_offset"]), place_of(at["end_offset"]), weight
            )
            for term, weight in weights.items()
            for at in told[0]["terms"][term]["tokens"]
        ]
    words.sort(key=lambda word: (word.field, word.position, word.start, word.end))
    terms = (one for vectors in shards for field in vectors.values() for one in field["terms"].values())
    return Analysed(tuple(words), factor * total, any(one.get("doc_freq") for one in terms))


def idf_of(shards: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Give Lucene's idf of a field's terms by the documents of all these shards."""
    count = sum(max(one.get("field_statistics", {}).get("doc_count", 0), 0) for one in shards)
    frequency: dict[str, int] = defaultdict(int)
    for one in shards:
        for term, found in one["terms"].items():
            frequency[term] += found.get("doc_freq", 0)
    return {term: idf(found, count) for term, found in frequency.items()}


class CharacterPlaces:
    """Turns the server's offsets, in UTF-16 units, to places in a text that has characters of two units."""

    def __init__(self, text: str) -> None:
        self.places = [place for place, one in enumerate(text) for _ in range(1 + (one > "\uffff"))]
        self.places.append(len(text))

    def __call__(self, offset: int) -> int:
        """Give the place of an offset; those beyond the text's end are its end."""
        return self.places[min(offset, len(self.places) - 1)]


def character_places(text: str) -> Any:
    """Give what turns the server's offsets in a text to places: they differ after emoji only."""
    return CharacterPlaces(text) if not text.isascii() and max(text, default="") > "\uffff" else int


def given_as(info: IndexInfo, fields: Sequence[str], text: str) -> dict[str, str]:
    """Give the document that holds a text in all these fields."""
    return {source_field(info, field): text for field in fields}


def text_vectors(
    cluster: Cluster, info: IndexInfo, fields: Sequence[str], texts: Sequence[str]
) -> list[TermVectors]:
    """Give the terms of each text, by field, with the frequencies they have in one shard of the index."""
    wanted = [{"doc": given_as(info, fields, text)} for text in texts]
    answers = term_vectors(cluster, info.name, fields, wanted)
    return [answer.get("term_vectors", {}) for answer in answers]


def term_vectors(
    cluster: Cluster,
    index: str,
    fields: Sequence[str],
    wanted: Iterable[dict[str, Any]],
    *,
    places: bool = False,
) -> list[dict[str, Any]]:
    """Ask for the terms and statistics of documents, or of texts given in their place.

    With `places` also where each term stands: its position, and offsets in UTF-16 units.
    """
    options = {
        "fields": list(fields),
        "term_statistics": True,
        "field_statistics": True,
        "positions": places,
        "offsets": places,
        "payloads": False,
    }
    docs = [one | options for one in wanted]
    if not docs:
        return []
    path = path_of(index, "_mtermvectors")
    answer = cluster.request("POST", path, {"docs": docs}, SAME_COPY)
    with understood(cluster.url, "_mtermvectors"):
        found: list[dict[str, Any]] = [dict(one) for one in answer["docs"]]
        for document in found:
            require_terms(document.get("term_vectors", {}))
    return found


def require_terms(vectors: Any) -> None:
    """Raise TypeError, or the like, unless these are terms of fields with what is told of them."""
    for field in vectors.values():
        int(field.get("field_statistics", {}).get("doc_count", 0))
        for term in field["terms"].values():
            int(term.get("doc_freq", 0))
            for token in term.get("tokens", ()):
                int.__index__(token.get("position", 0))
