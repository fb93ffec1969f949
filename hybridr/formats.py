"""Reads and writes the files of the field: BEIR folders, JSONL, TREC runs; errors name file and line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import DataError
from .manifest import replacing
from .records import Document, Qrels, Query, Run


def read_beir(folder: Path | str, split: str = "test") -> tuple[list[Document], list[Query], Qrels]:
    """Read corpus, queries and qrels of one split; queries without qrels in the split are left out.

    Raises DataError with file and line for what is missing or malformed.
    """
    folder = Path(folder)
    corpus = [document_of(record, folder) for record in read_corpus(folder)]
    queries, qrels = read_topics(folder, split)
    return corpus, queries, qrels


def read_corpus(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of `corpus.jsonl` in a BEIR folder, or of a JSONL file."""
    file = path / "corpus.jsonl" if path.is_dir() else path
    seen: set[str] = set()
    for line, record in read_jsonl(file):
        doc_id = str(record.get("_id", "")) if record.get("_id") is not None else ""
        if not doc_id:
            raise DataError(f"{file}:{line}: a document without '_id'")
        if doc_id in seen:
            raise DataError(f"{file}:{line}: document id '{doc_id}' for the second time")
        seen.add(doc_id)
        yield {**record, "_id": doc_id}


def document_of(record: Mapping[str, Any], origin: Path | str) -> Document:
    """Turn a BEIR record into a Document; text and title must be strings."""
    title, text = record.get("title") or "", record.get("text") or ""
    if not isinstance(title, str) or not isinstance(text, str):
        raise DataError(f"{origin}: document '{record['_id']}' has a title or text that is not a string")
    return Document(str(record["_id"]), text, title)


def read_topics(folder: Path, split: str) -> tuple[list[Query], Qrels]:
    """Read the queries that have qrels in the split."""
    qrels = read_qrels(qrels_file(folder, split))
    queries = []
    for line, record in read_jsonl(folder / "queries.jsonl"):
        query_id, text = str(record.get("_id", "")), record.get("text")
        if query_id in qrels:
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"{folder / 'queries.jsonl'}:{line}: query '{query_id}' has no text")
            queries.append(Query(query_id, text))
    if missing := qrels.keys() - {query.query_id for query in queries}:
        raise DataError(f"{folder}: {len(missing)} judged queries have no text, such as '{min(missing)}'")
    return queries, qrels


def qrels_file(folder: Path, split: str) -> Path:
    """Name the qrels of a split; DataError lists the splits that exist."""
    file = folder / "qrels" / f"{split}.tsv"
    if not file.is_file():
        splits = ", ".join(sorted(path.stem for path in folder.glob("qrels/*.tsv"))) or "none"
        raise DataError(f"no qrels for split '{split}' in {folder}", hint=f"splits there: {splits}")
    return file


def read_qrels(file: Path) -> Qrels:
    """Read `query-id corpus-id score` lines under a header; grades are whole numbers."""
    qrels: Qrels = {}
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows, None)
        for number, row in enumerate(rows, 2):
            try:
                query_id, doc_id, grade = row
                qrels.setdefault(query_id, {})[doc_id] = int(grade)
            except ValueError:
                raise DataError(
                    f"{file}:{number}: needed 'query-id<TAB>corpus-id<TAB>whole number', found {row}"
                ) from None
    if not qrels:
        raise DataError(f"{file} holds no judgements")
    return qrels


def read_jsonl(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for every line that is not blank."""
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, _parsed(line, file, number)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise DataError(
            f"no file {file}", hint="give a BEIR folder (corpus.jsonl, queries.jsonl, qrels/) or a JSONL file"
        ) from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None


def _parsed(line: str, file: Path, number: int) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{file}:{number}: not JSON: {error}") from None
    if not isinstance(record, dict):
        raise DataError(f"{file}:{number}: needed a JSON object, found {type(record).__name__}")
    return record


def write_run(file: Path, run: Run, tag: str) -> None:
    """Write a TREC run: `query Q0 document rank score tag`, best first, ranks from 1."""
    with replacing(file) as temporary, temporary.open("w", encoding="utf-8") as lines:
        for query_id, scores in run.items():
            ordered = sorted(scores.items(), key=lambda item: item[1], reverse=True)
            for rank, (doc_id, score) in enumerate(ordered, 1):
                lines.write(f"{query_id} Q0 {doc_id} {rank} {score:.8g} {tag}\n")


def write_beir(folder: Path, corpus: list[Document], queries: list[Query], qrels: Qrels) -> None:
    """Write a BEIR folder with the split `test`."""
    records = [{"_id": d.doc_id, "title": d.title, "text": d.text} for d in corpus]
    _write_jsonl(folder / "corpus.jsonl", records)
    _write_jsonl(folder / "queries.jsonl", [{"_id": q.query_id, "text": q.text} for q in queries])
    with replacing(folder / "qrels" / "test.tsv") as temporary:
        rows = [f"{q}\t{d}\t{grade}\n" for q, grades in qrels.items() for d, grade in grades.items()]
        temporary.write_text("query-id\tcorpus-id\tscore\n" + "".join(rows), encoding="utf-8")


def _write_jsonl(file: Path, records: list[dict[str, Any]]) -> None:
    with replacing(file) as temporary:
        text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        temporary.write_text(text, encoding="utf-8")
