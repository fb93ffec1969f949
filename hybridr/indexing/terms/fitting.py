"""Fits the term table of an index: mean encoder states of its terms, from a sample of documents.

The states come from the pass that makes the vectors (`TermTableBuilder`), or for an existing index from a
separate pass (`fit_term_table`). The index is only read. The encoder reads each text up to its limit, and
the cluster analyses it with the analysers of the searched fields, so that terms are those of the index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate
from random import Random
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.connection import Cluster, path_of
from ...cluster.field_values import text_of
from ...cluster.fields import choose_text_fields
from ...cluster.reading import sample_documents
from ...cluster.record import IndexInfo
from ...cluster.record_parts import FittedTable
from ...cluster.word_fields import word_fields
from ...encoders.contract import Encoder, Reading, TokenEncoder, Vectors, reads_tokens, unit_length
from ...errors import AccessDenied, DataError, HybridrError
from ...records import Progress, Reported, Windows, silent
from .storage import TermTable, is_in_cluster, keep_term_table, open_term_table, table_entry
from .terms import character_places

SEED = 13  # of the sample that every table is fitted to
SAMPLE, MAX_TOKENS = 3_000, 300_000
"""Sampled documents, and most tokens that a separate pass reads: these take about 40 s on two cores.
With 1,000 documents soft terms gain half as much on some collections."""
MIN_ENCODED_SHARE = 0.9  # share of an index's documents; those that a run did not encode may differ in kind
MAX_TERMS = 6_000
"""Largest number of terms, since each costs every search. Terms that only one sampled document has are kept:
they help where texts are short or code."""
TABLE_BYTES = 9_500_000
USUAL_OWN_COSINE = 0.78
"""Default of `own_cosine` if no term occurs twice: the value of the packaged encoder on open collections."""
COLLECTED = 60_000
"""Most distinct terms that are collected: ten times the terms of a table, in random order."""
WORDS_OF_A_TEXT = 2_000
READ_TOGETHER = 32
BEHIND_LIMIT = 100  # characters analysed after the last token, to complete its word


class Content(NamedTuple):
    """The text of a searched field: its place (`start`) within the text that the encoder reads.

    The field `of` is the one it is indexed from: the field itself, or the parent of a multi-field.
    """

    field: str
    of: str
    start: int
    text: str


class Layout(NamedTuple):
    """The text of a document as the encoder reads it, and the part of it that each searched field holds."""

    text: str
    contents: tuple[Content, ...]

    def upto(self, end: int) -> Layout:
        """Return the same text and parts, cut at the character `end`."""
        contents = (part._replace(text=part.text[: max(0, end - part.start)]) for part in self.contents)
        return Layout(self.text[:end], tuple(content for content in contents if content.text))


class Occurrence(NamedTuple):
    """A term, and the characters `[start, end)` of the text where it occurs."""

    term: str
    start: int
    end: int


def fit_term_table(
    cluster: Cluster, info: IndexInfo, encoder: Encoder, *, progress: Progress = silent
) -> TermTable:
    """Fit a term table to a random sample of the documents of an index with vectors.

    Terms that occur in most documents of the sample come first, up to 6,000 terms or 9.5 MB. Raises DataError
    if `table_obstacle` returns a reason, or if no term is left.
    """
    if reason := table_obstacle(info.record.passages, encoder):
        raise DataError(f"'{info.name}' can have no term table: {reason}")
    assert reads_tokens(encoder)
    origin = table_origin(cluster, info)
    fields, searched = origin["inputs"]["fields"], origin["inputs"]["searched"]
    sampled = sample_documents(cluster, info, SAMPLE, fields=fields, seed=SEED, progress=progress)
    texts = [layout for document in sampled if (layout := lay_out(document.source, fields, searched)).text]
    Random(SEED).shuffle(texts)  # so that the texts read first represent all
    sums = StateSums(encoder.width)
    for start in range(0, len(texts), READ_TOGETHER):
        progress("term table", start, len(texts))
        part = texts[start : start + READ_TOGETHER]
        readings = encoder.read_documents([layout.text for layout in part], max_tokens=info.record.max_tokens)
        sums.add_all(cluster, info.name, part, readings)
        if sums.tokens >= MAX_TOKENS:
            break
    progress("term table", len(texts), len(texts))
    return sums.table(encoder.fingerprint, origin | {"documents": sums.texts})


class TermTableBuilder:
    """Collects token states of a random sample of documents while an encoder fills an index.

    Documents are drawn by a hash of their ids, about `SAMPLE` in all, so that the sample does not depend on
    the order of encoding. Safe to use from several threads. After a failure `table` returns None.
    """

    def __init__(self, cluster: Cluster, info: IndexInfo, encoder: TokenEncoder, documents: int) -> None:
        self.cluster, self.info, self.encoder = cluster, info, encoder
        self.origin = table_origin(cluster, info)
        self.sums, self.document_count, self.failed = StateSums(encoder.width), 0, False
        self._share, self._lock = SAMPLE / max(1, documents), Lock()

    def samples(self, doc_id: str) -> bool:
        """Return whether a document is in the sample."""
        digest = int.from_bytes(blake2b(doc_id.encode("utf-8", "replace"), digest_size=8).digest(), "big")
        return not self.failed and digest < self._share * 2**64

    @contextmanager
    def giving_up_on_errors(self) -> Iterator[None]:
        """Catch any exception of the block and give up the table, so that the fill continues."""
        try:
            yield
        except Exception:
            self.failed = True

    def add(self, documents: int, sampled: Iterable[tuple[dict[str, Any], Reading]]) -> None:
        """Count a batch of `documents` encoded ones, and add its sampled ones (body, token states)."""
        inputs = self.origin["inputs"]
        pairs = [(lay_out(body, inputs["fields"], inputs["searched"]), reading) for body, reading in sampled]
        with self._lock, self.giving_up_on_errors():
            self.document_count += documents
            if pairs:
                self.sums.add_all(self.cluster, self.info.name, *zip(*pairs, strict=True))

    def table(self, documents: int) -> TermTable | None:
        """Return the term table; None if collecting failed, or if fewer than 90 % of the index's `documents`
        were encoded in this run.
        """
        if self.failed or not self.sums.texts or self.document_count < MIN_ENCODED_SHARE * documents:
            return None
        return self.sums.table(self.encoder.fingerprint, self.origin | {"documents": self.sums.texts})


def table_obstacle(passages: Windows | None, encoder: Encoder) -> str:
    """Return why searches of an index cannot use a term table; empty if they can.

    `passages` are the windows of its documents, None for one vector a document.
    """
    if not reads_tokens(encoder):
        return "its encoder does not return the states of tokens"
    return "its documents have a vector for each passage" if passages else ""


def table_origin(cluster: Cluster, info: IndexInfo) -> dict[str, Any]:
    """Return the origin (settings, inputs) of a term table; with the encoder it determines the table."""
    record = info.record
    fields = record.fields or choose_text_fields(cluster, info)
    inputs = {
        "index": info.name,
        "index_uuid": info.uuid,
        "fields": list(fields),
        "searched": list(record.lexical_fields or word_fields(info, fields)),
        "max_tokens": record.max_tokens,
    }
    settings = {"documents": SAMPLE, "tokens": MAX_TOKENS, "terms": MAX_TERMS, "seed": SEED}
    return {"settings": settings, "inputs": inputs}


def analysed_length(reading: Reading) -> int:
    """Return how many characters to analyse: what the encoder read, and 100 more for the last whole word."""
    return max((end for _, end in reading.spans), default=0) + BEHIND_LIMIT


def lay_out(source: dict[str, Any], fields: Sequence[str], searched: Sequence[str]) -> Layout:
    """Return the text that the encoder reads, which joins a document's `fields`, and the text that each
    searched field holds, with its place in the joined one.

    A searched field outside `fields`, such as the target of a `copy_to`, counts as holding the whole text.
    """
    field_texts = {name: text_of(source, (name,)) for name in fields}
    starts, length = {}, 0
    for name, text in field_texts.items():
        starts[name] = length
        length += len(text) + 1 if text else 0
    joined, contents = text_of(source, fields), []
    for name in searched:
        field = next((field for field in fields if f"{name}.".startswith(f"{field}.")), name)
        contents.append(Content(name, field, starts.get(field, 0), field_texts.get(field, joined)))
    return Layout(joined, tuple(content for content in contents if content.text))


def read_occurrences(cluster: Cluster, index: str, texts: Sequence[Layout]) -> list[list[Occurrence]]:
    """Return the terms of each text in order, as the searched fields analyse them; at most 2,000 a text."""
    options = {"offsets": True, "positions": False, "payloads": False, "field_statistics": False}
    contents = [content for text in texts for content in text.contents]
    if not contents:
        return [[] for _ in texts]
    # Some indices require a routing value; any will do.
    docs = [
        {"doc": {content.of: content.text}, "fields": [content.field], "routing": "0", **options}
        for content in contents
    ]
    answers = iter(cluster.request("POST", path_of(index, "_mtermvectors"), {"docs": docs})["docs"])
    occurrences = [
        {word for content in text.contents for word in field_occurrences(next(answers), content)}
        for text in texts
    ]
    ordered = (sorted(words, key=lambda word: (word.start, word.end, word.term)) for words in occurrences)
    return [words[:WORDS_OF_A_TEXT] for words in ordered]


def field_occurrences(answer: dict[str, Any], content: Content) -> list[Occurrence]:
    """Return the terms of a field with their places in characters; the server counts UTF-16 units."""
    place_of = character_places(content.text)
    return [
        Occurrence(term, *(content.start + place_of(token[f"{edge}_offset"]) for edge in ("start", "end")))
        for field in answer.get("term_vectors", {}).values()
        for term, entry in field["terms"].items()
        for token in entry["tokens"]
    ]


class StateSums:
    """Sums of the encoder states of each term over texts."""

    def __init__(self, width: int) -> None:
        self.rows: dict[str, int] = {}
        self.sums = np.zeros((COLLECTED, width), dtype=np.float32)  # of states of length 1
        self.occurrences = np.zeros(COLLECTED, dtype=np.int64)
        self.documents = np.zeros(COLLECTED, dtype=np.int64)
        self.width, self.tokens, self.texts = width, 0, 0

    def add(self, reading: Reading, words: Sequence[Occurrence]) -> None:
        """Add a text: the state of each word is the normalised sum of the tokens that it overlaps."""
        self.tokens += len(reading.states)
        self.texts += 1
        starts, ends = np.array(reading.spans, dtype=np.int64).reshape(-1, 2).T
        first = np.searchsorted(ends, [word.start for word in words], side="right")
        last = np.searchsorted(starts, [word.end for word in words], side="left")
        rows = np.array([self.row_of(word.term) for word in words], dtype=np.int64)
        is_covered = (last > first) & (rows >= 0)
        rows, first, last = rows[is_covered], first[is_covered], last[is_covered]
        if not len(rows):
            return
        cumulative = np.vstack([np.zeros(self.width), reading.states.cumsum(axis=0, dtype=np.float64)])
        order = np.argsort(rows, kind="stable")
        distinct, starts, counts = np.unique(rows[order], return_index=True, return_counts=True)
        states = unit_length(cumulative[last[order]] - cumulative[first[order]])
        self.sums[distinct] += np.add.reduceat(states, starts, axis=0)
        self.occurrences[distinct] += counts
        self.documents[distinct] += 1

    def add_all(
        self, cluster: Cluster, index: str, texts: Sequence[Layout], readings: Sequence[Reading]
    ) -> None:
        """Add texts with their token states; the index's analysers split them into words."""
        cut = [layout.upto(analysed_length(reading)) for layout, reading in zip(texts, readings, strict=True)]
        for reading, words in zip(readings, read_occurrences(cluster, index, cut), strict=True):
            self.add(reading, words)

    def row_of(self, term: str) -> int:
        """Return the row of a term; -1 for a new term without room."""
        if len(self.rows) < COLLECTED:
            return self.rows.setdefault(term, len(self.rows))
        return self.rows.get(term, -1)

    def table(self, encoder: str, origin: dict[str, Any]) -> TermTable:
        """Return the term table of the sums. Raises DataError if no word was added."""
        terms = list(self.rows)
        occurring = [row for row in range(len(terms)) if self.occurrences[row]]
        frequent = sorted(occurring, key=lambda row: (-self.documents[row], terms[row]))[:MAX_TERMS]
        sizes = accumulate(2 * self.width + len(json.dumps(terms[row])) + 2 for row in frequent)
        rows = [row for row, size in zip(frequent, sizes, strict=True) if size <= TABLE_BYTES]
        if not rows:
            raise DataError("no word of the sampled documents was read: there is no term table")
        vectors, own_cosine = unit_length(self.sums[rows]).astype(np.float16), USUAL_OWN_COSINE
        if repeated := [row for row in rows if self.occurrences[row] > 1]:
            own_cosine = float(np.mean(cosines_with_others(self.sums[repeated], self.occurrences[repeated])))
        return TermTable(tuple(terms[row] for row in rows), vectors, own_cosine, encoder, origin)


def cosines_with_others(sums: Vectors, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return, for each term, the cosine `(n,)` of one occurrence's state with the sum of its other
    occurrences.

    `sums` `(n, width)` are sums of `counts` `(n,)` states of length 1. The occurrence itself is left out,
    else terms with two or three occurrences would score too high. The cosine of a sum
    s of n states is (|s|²/n - 1) / sqrt(|s|² (1 - 2/n) + 1): the norm is a root mean square.
    """
    squares = np.sum(sums.astype(np.float64) ** 2, axis=1)
    cosines = (squares / counts - 1) / np.sqrt(squares * (1 - 2 / counts) + 1)
    return np.asarray(np.clip(cosines, -1.0, 1.0))


@dataclass(frozen=True)
class Provision(Reported):
    """The term table that an index has now, and whether it was `fitted` just now.

    `heard` says that its states come from the pass that made the vectors, not from a second read of the
    documents. Without a `table` the `note` says why; searches then work without soft terms.
    """

    table: FittedTable | None
    fitted: bool = False
    note: str = ""
    heard: bool = False

    @property
    def described(self) -> str:
        """Return a line about the table for the user."""
        if self.table is None:
            return f"none, {self.note}: searches go on without soft terms"
        second_read = ", from a second read of them" if self.fitted and not self.heard else ""
        line = f"{self.table.terms:,} terms of {self.table.documents:,} documents{second_read}"
        return f"{line}, {self.note}" if self.note else line


def provide_term_table(
    cluster: Cluster,
    index: str | IndexInfo,
    encoder: Encoder,
    *,
    listener: TermTableBuilder | None = None,
    progress: Progress = silent,
) -> Provision:
    """Make sure that an index has a term table for its encoder and fields: fit and store one if needed.

    The table comes from the `listener` if it collected enough during the fill, else the encoder reads a
    sample. No error is raised, because the index works without a table; the note says what failed.
    """
    try:
        info = index if isinstance(index, IndexInfo) else cluster.index_info(index)
        if reason := table_obstacle(info.record.passages, encoder):
            return Provision(None, note=reason)
        table = reusable_table(cluster, info, encoder)
        name = table_entry(table) if table else None
        if name and name == info.record.term_table and is_in_cluster(cluster, info):
            return Provision(name)
        fitted = table is None
        progress("term table", 0, 1)
        collected = listener.table(cluster.count(info.name)) if fitted and listener is not None else None
        table = table or collected or fit_term_table(cluster, info, encoder, progress=progress)
        if reason := table.shortcoming:
            return Provision(None, note=reason)
        named, note = keep_term_table(cluster, info, table)
        progress("term table", 1, 1)
        return Provision(named, fitted, note, collected is not None)
    except Exception as error:  # libraries that run an encoder have exceptions of their own
        note = error.message if isinstance(error, HybridrError) else repr(error)
        hint = error.hint if isinstance(error, HybridrError) else None
        return Provision(None, note=f"{note} ({hint})" if hint else note)


def reusable_table(cluster: Cluster, info: IndexInfo, encoder: Encoder) -> TermTable | None:
    """Return the stored table of an index if a new one would be the same; else None."""
    table = None
    with suppress(AccessDenied):  # then it is fitted again, and kept on this machine
        table = open_term_table(cluster, info)
    if table is None or table.encoder != encoder.fingerprint:
        return None
    origin = table_origin(cluster, info)
    return table if all(table.origin.get(name) == origin[name] for name in origin) else None
