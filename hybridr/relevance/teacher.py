"""Scores that a teacher gave to pairs of query and document, for distillation."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

from ..errors import DataError
from .judged import read_lines

PICKLE = 0x80  # the first byte of a pickle


def read_scores(file: Path) -> Iterator[tuple[str, str, float]]:
    """Yield (query id, document id, score) of a teacher's file.

    JSONL holds objects with "query-id", "corpus-id" and "score", TSV lines `qid docid score`; either may be
    gzipped. Raises DataError for anything else, above all for a pickle, which can run code when it is read.
    """
    kind = next((end for end in reversed(file.suffixes) if end != ".gz"), "")
    if kind not in (".jsonl", ".tsv") or is_pickle(file):
        raise DataError(
            f"{file}: teacher scores are read from .jsonl or .tsv; a pickle is never opened, it can run code",
            hint='write one {"query-id": ..., "corpus-id": ..., "score": ...} per line',
        )
    read = from_json if kind == ".jsonl" else from_columns
    for number, line in read_lines(file):
        try:
            query_id, doc_id, score = read(line)
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{file}:{number}: no query, document and score in {line[:80]!r}") from None
        if not math.isfinite(score):
            raise DataError(f"{file}:{number}: the score of query '{query_id}' is {score}")
        yield query_id, doc_id, score


def is_pickle(file: Path) -> bool:
    """Tell whether a file begins as a pickle does. Raises DataError when it cannot be read."""
    try:
        with file.open("rb") as content:
            return content.read(1) == bytes([PICKLE])
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error


def from_json(line: str) -> tuple[str, str, float]:
    """Read an object with "query-id", "corpus-id" and "score"."""
    record = json.loads(line)
    return str(record["query-id"]), str(record["corpus-id"]), float(record["score"])


def from_columns(line: str) -> tuple[str, str, float]:
    """Read `qid docid score`, separated by tabs or blanks."""
    query_id, doc_id, score = line.split("\t") if "\t" in line else line.split()
    return query_id, doc_id, float(score)
