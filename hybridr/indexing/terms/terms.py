"""Analyses texts as an index does: their terms, positions, and idf in the whole index.

Texts whose words the cluster has analysed before are analysed here, without a request. This needs analysers
that treat each word by itself: the standard tokenizer and filters of single terms. A text that is more than
words and gaps between them is left to the cluster.
"""

from __future__ import annotations

import math
import re
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from functools import cached_property, lru_cache
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from ...cluster.connection import Cluster, path_of
from ...cluster.failures import kind_and_reason, shard_failure
from ...cluster.fields import source_field
from ...cluster.placement import routing_by_shard
from ...cluster.record import IndexInfo
from ...cluster.word_fields import reads_words_alone, search_analyzer_of
from ...cluster.writing import group_by_size
from ...languages import idf

TermVectors: TypeAlias = Mapping[str, Any]
"""Field -> its terms with their statistics, as the server gives them."""
LETTERS = "A-Za-zÀ-ÖØ-öø-ɏΑ-ΡΣ-ώА-яЁё"
WORD = re.compile(
    rf"[0-9]+(?:[.,][0-9]+)+(?![{LETTERS}0-9])|[{LETTERS}0-9]+(?:(?<=[{LETTERS}])'(?=[{LETTERS}])[{LETTERS}0-9]+)*"
)
"""Words of the standard tokenizer (UAX #29), in scripts that separate words."""
PARTING = r"\s\-/()\[\]{}!?\"&+=<>|@%$~^"
"""Characters that always separate two words; `3.5` and `it's` are one word each."""
OUTSIDE = re.compile(rf"[{PARTING},;:.']*")
INSIDE = re.compile(rf"[{PARTING},;:.']*[{PARTING}][{PARTING},;:.']*")
"""Gaps around and between words."""
MAX_WORD_CHARACTERS, MAX_CHARACTERS = 100, 1_000  # of a word, which a tokenizer cuts at 255, and of a text


class WordSpan(NamedTuple):
    """A word of a text, and its characters `[start, end)`."""

    word: str
    start: int
    end: int


class KnownWords:
    """Analysed words of an index's searched fields: for each field the term and its document frequency.

    They are learnt from answers of the cluster if it is `usable`: each field analyses each word by itself.
    Once an answer shows the contrary, all words are forgotten, and no more are learnt.
    """

    def __init__(self, limit: int, *, usable: bool) -> None:
        self.limit, self.usable = limit, usable
        self.clear()

    def clear(self) -> None:
        """Forget all words."""
        self._terms: OrderedDict[str, Mapping[str, tuple[str, int]]] = OrderedDict()
        self._documents: dict[str, int] = {}

    def learn(self, text: str, shards: Sequence[TermVectors]) -> None:
        """Learn the words of a text from its term vectors in all shards."""
        spans = word_spans(text) if self.usable else None
        if spans is None:
            return
        documents: dict[str, int] = defaultdict(int)
        frequency: dict[tuple[str, str], int] = defaultdict(int)
        for field, vector in chain.from_iterable(vectors.items() for vectors in shards):
            documents[field] += max(vector.get("field_statistics", {}).get("doc_count", 0), 0)
            for term, entry in vector["terms"].items():
                frequency[field, term] += entry.get("doc_freq", 0)
        fields_of: list[dict[str, tuple[str, int]]] = [{} for _ in spans]
        terms_at = {(place, span.start, span.end): fields_of[place] for place, span in enumerate(spans)}
        for field, term, place in tokens_of(shards):
            terms = terms_at.get(place)
            if terms is None or terms.setdefault(field, (term, frequency[field, term]))[0] != term:
                self.usable = False
                return self.clear()
        self._documents |= documents
        self._terms |= {span.word: terms for span, terms in zip(spans, fields_of, strict=True)}
        while len(self._terms) > self.limit:
            self._terms.popitem(last=False)

    def unknown_in(self, texts: Sequence[str]) -> list[str]:
        """Return the words of texts that are not known yet, joined into as few texts as possible; none of a
        text that is more than words.
        """
        if not self.usable:
            return []
        spans = chain.from_iterable(word_spans(text) or () for text in texts)
        words = dict.fromkeys(span.word for span in spans if span.word not in self._terms)
        groups = group_by_size(list(words), lambda word: len(word) + 1, MAX_CHARACTERS)
        return [" ".join(group) for group in groups]

    def vectors_of(self, text: str) -> TermVectors | None:
        """Return a text's term vectors as if one shard held all documents; None if a word is unknown."""
        spans = word_spans(text) if self._terms else None
        if spans is None:
            return None
        vectors: dict[str, Any] = {}
        for position, (word, start, end) in enumerate(spans):
            if (terms := self._terms.get(word)) is None:
                return None
            token = {"position": position, "start_offset": start, "end_offset": end}
            for field, (term, frequency) in terms.items():
                if field not in vectors:
                    documents = {"doc_count": self._documents.get(field, 0)}
                    vectors[field] = {"field_statistics": documents, "terms": {}}
                entry = vectors[field]["terms"].setdefault(term, {"doc_freq": frequency, "tokens": []})
                entry["tokens"].append(token)
        return vectors


def tokens_of(shards: Sequence[TermVectors]) -> Iterator[tuple[str, str, tuple[int, int, int]]]:
    """Yield field and term of each token, and its place: position, start and end."""
    for field, vector in chain.from_iterable(vectors.items() for vectors in shards):
        for term, entry in vector["terms"].items():
            for token in entry["tokens"]:
                yield field, term, (token["position"], token["start_offset"], token["end_offset"])


def word_spans(text: str) -> tuple[WordSpan, ...] | None:
    """Return the words of a text in their order; None if the cluster may see other words in it."""
    return None if len(text) > MAX_CHARACTERS else _spans_of(text)


@lru_cache(256)
def _spans_of(text: str) -> tuple[WordSpan, ...] | None:
    """Return the words of a short text; each search needs them several times."""
    spans: list[WordSpan] = []
    end = 0
    for match in WORD.finditer(text):
        gap = text[end : match.start()]
        if gap != " " and not (INSIDE if spans else OUTSIDE).fullmatch(gap):
            return None
        if len(match[0]) > MAX_WORD_CHARACTERS:
            return None
        start, end = match.span()
        spans.append(WordSpan(match[0], start, end))
    return tuple(spans) if OUTSIDE.fullmatch(text[end:]) else None


REMEMBERED = 10_000  # queries
ASKED_AT_ONCE, TERMS_AT_ONCE = 800, 100  # texts, once for each shard; terms
REMEMBERED_S = 60.0  # statistics change while an index is written, above all those of new words
ODD_TEXT = {"mapper_parsing_exception", "illegal_argument_exception", "parsing_exception"}
SAME_COPY = {"preference": "hybridr"}  # replicas count deleted documents differently
BESIDE_ENCODER = ThreadPoolExecutor(8, thread_name_prefix="hybridr-words")

HeldTerm: TypeAlias = tuple[str, tuple[str, ...]]
"""A term, and the fields in which its documents are counted."""
NO_HOLDERS: Mapping[str, float] = MappingProxyType({})


class Word(NamedTuple):
    """An analysed term of a text: its field, position, and the characters `[start, end)` it comes from.

    `idf` treats all fields as one; `own_idf` is that of the field in which most documents hold the term.
    """

    field: str
    term: str
    position: int
    start: int
    end: int
    idf: float
    own_idf: float = 0.0


class Analysed(NamedTuple):
    """The analysis of a text: every term where it occurs, and the sum of the idf of its different terms.

    BM25 grows with this sum: it is about the score of a document of average length with every term once. Of
    fields that read the text differently, the one with the largest sum counts. `known` says whether any
    document of the shards asked holds one of the terms.
    """

    words: tuple[Word, ...] = ()
    idf_sum: float = 0.0
    known: bool = False


class Analysis:
    """Analyses texts as the given fields of an index do, with term statistics of the whole index.

    One request to every shard analyses the texts like queries and returns statistics. For an alias with
    routing these are the shards that it reaches. Results are cached for a minute, and so are words: if the
    fields analyse each word by itself, only the other words of a new text are requested.
    """

    def __init__(self, cluster: Cluster, info: IndexInfo, fields: Sequence[str]) -> None:
        self.cluster, self.info, self.fields, self.remembered = cluster, info, list(fields), REMEMBERED
        self._sources = [source_field(info, field) for field in fields]
        named = {field: name for field in fields if (name := search_analyzer_of(info, field))}
        self._analysers = {"per_field_analyzer": named} if named else {}
        self._began = time.monotonic()
        self._known: OrderedDict[str, Analysed] = OrderedDict()
        self._holders: OrderedDict[HeldTerm, int] = OrderedDict()
        self._words = KnownWords(REMEMBERED, usable=all(reads_words_alone(info, field) for field in fields))

    def remembers(self, text: str) -> bool:
        """Return whether the analysis of a text is cached, or can be composed from known words."""
        self._forget_after(REMEMBERED_S)
        if text not in self._known and (composed := self._composed(text)) is not None:
            self._known[text] = composed
            drop_oldest(self._known, self.remembered)
        return text in self._known

    def of(self, texts: Sequence[str]) -> list[Analysed]:
        """Return the analysis of each text; a text without terms has no words."""
        self._forget_after(REMEMBERED_S + 1)  # later than `remembers`, so that nothing expires in between
        # Another thread may clear the cache meanwhile.
        cached = {text: self._known.get(text) or self._composed(text) for text in texts}
        unknown = [text for text, analysis in cached.items() if analysis is None]
        if words := self._words.unknown_in(unknown):
            self._ask(words)
            cached |= {text: self._composed(text) for text in unknown}
            unknown = [text for text in unknown if cached[text] is None]
        answers = {
            text: analysed(text, *answer) for text, answer in zip(unknown, self._ask(unknown), strict=True)
        }
        results = {text: analysis for text, analysis in cached.items() if analysis is not None} | answers
        self._known |= results
        drop_oldest(self._known, self.remembered)
        return [results[text] for text in texts]

    def begin(self, texts: Sequence[str]) -> Future[list[Analysed]] | None:
        """Start to analyse texts in a thread, while the encoder reads them; None if no request is needed."""
        if all(map(self.remembers, texts)):
            return None
        return BESIDE_ENCODER.submit(copy_context().run, self.of, texts)

    def _forget_after(self, seconds: float) -> None:
        """Clear the cache if its oldest entry is older than `seconds`."""
        if time.monotonic() - self._began > seconds:
            self._began = time.monotonic()
            self._known, self._holders = OrderedDict(), OrderedDict()
            self._words.clear()

    def _composed(self, text: str) -> Analysed | None:
        """Return the analysis of a text of known words; None if the cluster has to be asked."""
        if (vectors := self._words.vectors_of(text)) is None:
            return None
        counts = {pair: self._holders.get(pair) for pair in self._shared([vectors])}
        return None if None in counts.values() else analysed(text, [vectors], self._shares(counts))

    def _ask(self, texts: Sequence[str]) -> list[tuple[Sequence[TermVectors], Mapping[str, float]]]:
        """Return each text's term vectors from every shard with its terms' document counts; cache both."""
        shards = len(self._routing)
        results: list[tuple[Sequence[TermVectors], Mapping[str, float]]] = []
        for part in group_by_size(texts, lambda _: shards, ASKED_AT_ONCE):
            requests = [
                {"doc": dict.fromkeys(self._sources, text), "routing": value, **self._analysers}
                for text in part
                for value in self._routing
            ]
            answers = term_vectors(self.cluster, self.info.name, self.fields, requests, places=True)
            vectors = [answer.get("term_vectors", {}) for answer in answers]
            holders = self._holders_of(vectors)
            for place, text in enumerate(part):
                tokens = vectors[place * shards : (place + 1) * shards]
                self._words.learn(text, tokens)
                results.append((tokens, holders))
        return results

    def _holders_of(self, vectors: Sequence[TermVectors]) -> dict[str, float]:
        """Return the number of documents that hold a term in any field, for terms that occur in several
        fields.

        Statistics of single fields do not show this, because a document may hold a term in several of them.
        """
        cached = {pair: self._holders.get(pair) for pair in self._shared(vectors)}
        missing = [pair for pair, count in cached.items() if count is None]
        for part in group_by_size(missing, lambda _: 1, TERMS_AT_ONCE):
            holding = [
                {"bool": {"should": [{"term": {field: term}} for field in fields]}} for term, fields in part
            ]
            # One search that counts all terms costs the cluster half as much as a search for each.
            body: dict[str, Any] = {"size": 0, "track_total_hits": False}
            body["aggregations"] = {"terms": {"filters": {"filters": holding}}}
            answer = self.cluster.search(self.info.name, body, {**SAME_COPY, "request_cache": "false"})
            with self.cluster.reading_answer("_search"):
                buckets = answer["aggregations"]["terms"]["buckets"]
                counts = [int(bucket["doc_count"]) for bucket in buckets]
                cached |= dict(zip(part, counts, strict=True))
        self._holders |= {pair: count for pair, count in cached.items() if count is not None}
        drop_oldest(self._holders, self.remembered)
        return self._shares(cached)

    def _shares(self, counts: Mapping[HeldTerm, int | None]) -> dict[str, float]:
        """Return the number of documents of each term in the shards asked, of those in the whole index."""
        share = len(self._routing) / self.info.shards
        return {term: share * (count or 0) for (term, _), count in counts.items()}

    def _shared(self, vectors: Sequence[TermVectors]) -> list[HeldTerm]:
        """Return the terms whose documents have to be counted, each with its fields.

        Where all shards are asked, a term that documents hold in one field alone is counted already.
        """
        return shared_terms(vectors, only_counted=len(self._routing) == self.info.shards)

    @cached_property
    def _routing(self) -> list[str]:
        """The routing value of each shard."""
        return routing_by_shard(self.cluster, self.info)


def shared_terms(vectors: Sequence[TermVectors], *, only_counted: bool) -> list[HeldTerm]:
    """Return the terms that several fields have, each with these fields; with `only_counted`, only fields
    with a document frequency of the term.
    """
    read_by: dict[str, set[str]] = defaultdict(set)
    for field, vector in chain.from_iterable(by_field.items() for by_field in vectors):
        for term, entry in vector["terms"].items():
            if entry.get("doc_freq") or not only_counted:
                read_by[term].add(field)
    return [(term, tuple(sorted(fields))) for term, fields in read_by.items() if len(fields) > 1]


def drop_oldest(cache: OrderedDict[Any, Any], limit: int) -> None:
    """Delete the oldest entries of a cache beyond `limit`."""
    while len(cache) > limit:
        cache.popitem(last=False)


def analysed(text: str, shards: Sequence[TermVectors], holders: Mapping[str, float] = NO_HOLDERS) -> Analysed:
    """Return a text's analysis from all shards' term vectors; `holders` counts documents of shared terms."""
    place_of = character_places(text)
    by_field: dict[str, Mapping[str, Any]] = {}
    for vectors in shards:
        by_field = {name: vector["terms"] for name, vector in vectors.items()} | by_field
    weights = idf_of(shards, holders)
    words = [
        Word(
            *(field, term, place["position"], place_of(place["start_offset"]), place_of(place["end_offset"])),
            *weights[term],
        )
        for field, terms in by_field.items()
        for term, entry in terms.items()
        for place in entry["tokens"]
    ]
    words.sort(key=lambda word: (word.field, word.position, word.start, word.end))
    sums = (math.fsum(weights[term][0] for term in terms) for terms in by_field.values())
    total = max(sums, default=0.0)
    entries = (entry for vectors in shards for field in vectors.values() for entry in field["terms"].values())
    return Analysed(tuple(words), total, any(token.get("doc_freq") for token in entries))


def idf_of(shards: Sequence[TermVectors], holders: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return two idf values of each term, by Lucene's formula, over the documents of all these shards.

    The first treats all fields as one. The second is that of the field in which most documents hold the term,
    by which `combined_fields` and `cross_fields` score.
    """
    count: dict[str, int] = defaultdict(int)
    frequency: dict[tuple[str, str], int] = defaultdict(int)
    for vectors in shards:
        for field, vector in vectors.items():
            count[field] += max(vector.get("field_statistics", {}).get("doc_count", 0), 0)
            for term, entry in vector["terms"].items():
                frequency[term, field] += entry.get("doc_freq", 0)
    highest: dict[str, tuple[int, int]] = {}
    for (term, field), entry in frequency.items():
        former = highest.get(term, (0, 0))
        highest[term] = max(entry, former[0]), max(count[field], former[1])
    joined = {
        term: min(max(holder, highest[term][0]), highest[term][1])
        for term, holder in holders.items()
        if term in highest
    }
    return {
        term: (idf(joined.get(term, documents), count), idf(documents, count))
        for term, (documents, count) in highest.items()
    }


def character_places(text: str) -> Callable[[int], int]:
    """Return a function from the server's offsets, in UTF-16 units, to character positions of a text.

    They differ only after characters of two units; an offset beyond the end maps to the end.
    """
    if text.isascii() or max(text) <= "\uffff":
        return int
    places = [place for place, letter in enumerate(text) for _ in range(1 + (letter > "\uffff"))]
    places.append(len(text))
    return lambda offset: places[min(offset, len(places) - 1)]


def text_vectors(
    cluster: Cluster, info: IndexInfo, fields: Sequence[str], texts: Sequence[str]
) -> list[TermVectors]:
    """Return the terms of each text, by field, with the frequencies they have in one shard of the index."""
    sources = [source_field(info, field) for field in fields]
    requests = [{"doc": dict.fromkeys(sources, text)} for text in texts]
    answers = term_vectors(cluster, info.name, fields, requests)
    return [answer.get("term_vectors", {}) for answer in answers]


def term_vectors(
    cluster: Cluster,
    index: str,
    fields: Sequence[str],
    requests: Iterable[dict[str, Any]],
    *,
    places: bool = False,
) -> list[dict[str, Any]]:
    """Return the terms and statistics of documents, or of texts sent instead of documents.

    With `places`, terms have their positions, and offsets in UTF-16 units.
    """
    options = {"fields": list(fields), "term_statistics": True, "field_statistics": True}
    options |= {"positions": places, "offsets": places, "payloads": False}
    docs = [request | options for request in requests]
    if not docs:
        return []
    path = path_of(index, "_mtermvectors")
    answer = cluster.request("POST", path, {"docs": docs}, SAME_COPY)
    with cluster.reading_answer("_mtermvectors"):
        documents: list[dict[str, Any]] = [dict(document) for document in answer["docs"]]
        # A field that cannot hold a text has no words there; any other error is that of a shard.
        errors = (document for document in documents if "error" in document)
        failures = [failed for failed in errors if kind_and_reason(failed["error"])[0] not in ODD_TEXT]
        if failures:  # without its words a text would rank differently, and that would be cached
            raise shard_failure({"docs": failures}) or TypeError("an error that says nothing")
        for document in documents:  # raises for anything but terms with their statistics
            for field in document.get("term_vectors", {}).values():
                int(field.get("field_statistics", {}).get("doc_count", 0))
                for term in field["terms"].values():
                    int(term.get("doc_freq", 0))
                    for token in term.get("tokens", ()):
                        int.__index__(token.get("position", 0))
    return documents
