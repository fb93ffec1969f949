"""Fits a term table to a live index: its encoder reads a sample of documents, its analyser says the words.

The index is only read. The encoder reads the same text as when the vectors were made, up to its limit, and
the node analyses that text the way each searched field does: terms are those of the index, and any analyser
is right by itself.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.connection import Cluster, path_of
from ..cluster.fields import choose_text_fields, mapped_fields, searchable_fields
from ..cluster.reading import sample_documents, text_of
from ..cluster.record import IndexInfo
from ..encoding.contract import Encoder, Reading, Vectors, reads_tokens
from ..errors import DataError
from ..progress import Progress, silent
from .term_table import TermTable, unit

SAMPLE = 1_000
"""Documents: with so many the ranking was the same as with all, with 300 worse (design notes, signals.md)."""
LEAST_DOCUMENTS = 2
"""In which a term has to occur: of one occurrence there is no mean."""
TABLE_BYTES = 9_500_000
COLLECTED = 60_000
"""Different terms that are collected: five times what a table holds, met in random order."""
WORDS_OF_A_TEXT = 2_000
AT_ONCE = 32
BEHIND_LIMIT = 100  # characters that are analysed behind the last token, so that its word is whole


class Word(NamedTuple):
    """A term, and the characters `[start, end)` of a text that it stands for."""

    term: str
    start: int
    end: int


def fit_term_table(
    cluster: Cluster,
    info: IndexInfo,
    encoder: Encoder,
    *,
    documents: int = SAMPLE,
    seed: int = 13,
    progress: Progress = silent,
) -> TermTable:
    """Fit a table to a random sample of the documents of an index with vectors.

    Terms occur in two documents of the sample at least; those of most documents come first until the table
    has 9.5 MB. Raises DataError where `obstacle` names one, or where no term is left.
    """
    if reason := obstacle(info, encoder):
        raise DataError(f"'{info.name}' can have no term table: {reason}")
    assert reads_tokens(encoder)
    origin = origin_of(cluster, info, documents, seed)
    fields = origin["inputs"]["fields"]
    sampled = sample_documents(cluster, info, documents, fields=fields, seed=seed, progress=progress)
    texts = [text for one in sampled if (text := text_of(one.source, fields))]
    sums = StateSums(encoder.width)
    for start in range(0, len(texts), AT_ONCE):
        progress("term table", start, len(texts))
        part = texts[start : start + AT_ONCE]
        readings = encoder.read_documents(part, max_tokens=info.record.max_tokens)
        read = [text[: reach(one)] for text, one in zip(part, readings, strict=True)]
        words = words_of(cluster, info.name, origin["inputs"]["analysed"], read)
        for reading, found in zip(readings, words, strict=True):
            sums.add(reading, found)
    progress("term table", len(texts), len(texts))
    return sums.table(encoder.fingerprint, origin | {"documents": len(texts)})


def obstacle(info: IndexInfo, encoder: Encoder) -> str:
    """Say why searches of an index could not use a term table; empty when they can."""
    if not reads_tokens(encoder):
        return "its encoder shows no states of tokens"
    if info.record.passages:
        return "its documents have a vector for each passage"
    if encoder.similarity != "cosine":
        return "its vectors are compared by inner product"
    return ""


def origin_of(cluster: Cluster, info: IndexInfo, documents: int = SAMPLE, seed: int = 13) -> dict[str, Any]:
    """Say what a table of this index would be made of: the same origin and encoder give the same table."""
    record = info.record
    fields = record.fields or choose_text_fields(cluster, info)
    inputs = {
        "index": info.name,
        "index_uuid": info.uuid,
        "fields": list(fields),
        "analysed": analysing_fields(info, record.lexical_fields or searchable_fields(info, fields)),
        "max_tokens": record.max_tokens,
    }
    return {"settings": {"documents": documents, "seed": seed}, "inputs": inputs}


def analysing_fields(info: IndexInfo, searched: Sequence[str]) -> list[str]:
    """Choose one of the searched fields for each analyser that they have."""
    analyzers = {one.name: one.analyzer for one in mapped_fields(info)}
    first: dict[str, str] = {}
    for name in searched:
        first.setdefault(analyzers.get(name, name), name)
    return list(first.values())


def reach(reading: Reading) -> int:
    """Give the end of what is analysed of a text: what the encoder read, and the rest of a last word."""
    return max((end for _, end in reading.spans), default=0) + BEHIND_LIMIT


def words_of(cluster: Cluster, index: str, fields: Sequence[str], texts: Sequence[str]) -> list[list[Word]]:
    """Give the terms of each text in order, as these fields of the index analyse it; at most 2,000."""
    options = {
        "fields": list(fields),
        "offsets": True,
        "positions": False,
        "payloads": False,
        "field_statistics": False,
    }
    docs = [{"doc": dict.fromkeys(fields, text)} | options for text in texts]
    answers = cluster.request("POST", path_of(index, "_mtermvectors"), {"docs": docs})["docs"]
    return [words_in(answer, text) for answer, text in zip(answers, texts, strict=True)]


def words_in(answer: dict[str, Any], text: str) -> list[Word]:
    """Read the terms of a text; the server counts UTF-16 units, Python characters."""
    found = {
        (token["start_offset"], token["end_offset"], term)
        for field in answer.get("term_vectors", {}).values()
        for term, one in field["terms"].items()
        for token in one["tokens"]
    }
    place = characters(text)
    first = sorted(found)[:WORDS_OF_A_TEXT]
    return [Word(term, *(int(place[min(at, len(place) - 1)]) for at in span)) for *span, term in first]


def characters(text: str) -> NDArray[np.int64]:
    """Say for each UTF-16 offset of a text, its end included, which character it is in."""
    units = np.fromiter((1 + (char > "\uffff") for char in text), dtype=np.int64, count=len(text))
    return np.append(np.repeat(np.arange(len(text)), units), len(text))


class StateSums:
    """Adds up the states of terms over texts."""

    def __init__(self, width: int) -> None:
        self.rows: dict[str, int] = {}
        self.sums = np.zeros((COLLECTED, width), dtype=np.float32)  # of states of length 1
        self.occurrences = np.zeros(COLLECTED, dtype=np.int64)
        self.documents = np.zeros(COLLECTED, dtype=np.int64)
        self.total, self.tokens = np.zeros(width), 0

    def add(self, reading: Reading, words: Sequence[Word]) -> None:
        """Add a text. A word's state is the mean of the tokens that it overlaps; without one it has none."""
        self.total += reading.states.sum(axis=0, dtype=np.float64)
        self.tokens += len(reading.states)
        starts, ends = np.array(reading.spans, dtype=np.int64).reshape(-1, 2).T
        first = np.searchsorted(ends, [word.start for word in words], side="right")
        last = np.searchsorted(starts, [word.end for word in words], side="left")
        rows = np.array([self.row_of(word.term) for word in words], dtype=np.int64)
        seen = (last > first) & (rows >= 0)
        rows, first, last = rows[seen], first[seen], last[seen]
        until = np.vstack([np.zeros_like(self.total), reading.states.cumsum(axis=0, dtype=np.float64)])
        np.add.at(self.sums, rows, unit(until[last] - until[first]))
        np.add.at(self.occurrences, rows, 1)
        self.documents[np.unique(rows)] += 1

    def row_of(self, term: str) -> int:
        """Give the row of a term; -1 where there is no room for a new one."""
        if len(self.rows) < COLLECTED:
            return self.rows.setdefault(term, len(self.rows))
        return self.rows.get(term, -1)

    def table(self, encoder: str, origin: dict[str, Any]) -> TermTable:
        """Give the table of what was added. Raises DataError when no term occurs in two texts."""
        terms = list(self.rows)
        often = [row for row in range(len(terms)) if self.documents[row] >= LEAST_DOCUMENTS]
        often.sort(key=lambda row: (-self.documents[row], terms[row]))
        sizes = accumulate(2 * len(self.total) + len(json.dumps(terms[row])) + 2 for row in often)
        kept = [row for row, size in zip(often, sizes, strict=True) if size <= TABLE_BYTES]
        if not kept:
            raise DataError("no word occurs in two of the sampled documents: there is no term table")
        return TermTable(
            tuple(terms[row] for row in kept),
            unit(self.sums[kept]).astype(np.float16),
            np.asarray(self.total / self.tokens, dtype=np.float32),
            float(np.mean(cosines_with_others(self.sums[kept], self.occurrences[kept]))),
            encoder,
            origin,
        )


def cosines_with_others(sums: Vectors, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Give, from sums `(n, width)` of `counts` unit states each, what one has with the sum of the others.

    Its own share in a row would flatter it: most terms occur two or three times. Norms are averaged first.
    """
    squares = np.sum(sums.astype(np.float64) ** 2, axis=1)
    return np.asarray((squares / counts - 1) / np.sqrt(squares * (1 - 2 / counts) + 1))
