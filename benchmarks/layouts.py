"""Reads the layouts of published collections that are no BEIR folders, and writes them as BEIR folders.

lotte   collection.tsv, questions.<split>.tsv, qas.<split>.jsonl (qid, answer_pids); split: forum or search
cpr     corpus.tsv (Medical: corpus_split_*.tsv), <split>.query.txt, qrels.<split>.tsv (qid 0 pid 1)
cmedqa  answer.csv (id, question, text), question.csv (id, text), <split>_candidates.txt (question, answer,
        count, label); the text may hold commas and is not quoted
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from hybridr.errors import DataError
from hybridr.files.formats import document_of, read_corpus, read_jsonl, read_qrels, read_topics
from hybridr.files.local import fingerprint, sha256_of, write_json
from hybridr.files.staging import staged_folder
from hybridr.records import Document, Qrels, Query

SENTENCE_END = "!.?。！？"


class Layout(NamedTuple):
    """How documents and the topics of a split are read from a folder."""

    documents: Callable[[Path], Iterator[Document]]
    topics: Callable[[Path, str], tuple[list[Query], Qrels]]


def rows(file: Path, columns: int, separator: str = "\t", header: bool = False) -> Iterator[list[str]]:
    """Yield the columns of every line; the last one may hold the separator. Raises DataError."""
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                found = [part.strip() for part in line.rstrip("\r\n").split(separator, columns - 1)]
                if (header and number == 1) or not line.strip():
                    continue
                if len(found) != columns:
                    raise DataError(f"{file}:{number}: needed {columns} columns, found {len(found)}")
                yield found
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None


def judged(queries: Iterable[list[str]], qrels: Qrels, file: Path) -> tuple[list[Query], Qrels]:
    """Keep the judged queries. Raises DataError when one has no text."""
    found = [Query(query_id, text) for query_id, text in queries if query_id in qrels]
    if missing := qrels.keys() - {query.query_id for query in found}:
        raise DataError(f"{file}: {len(missing)} judged queries have no text, such as '{min(missing)}'")
    return found, qrels


def beir_documents(folder: Path) -> Iterator[Document]:
    """Read `corpus.jsonl`."""
    return (document_of(record, folder) for record in read_corpus(folder))


def lotte_documents(folder: Path) -> Iterator[Document]:
    """Read `collection.tsv`."""
    return (Document(doc_id, text) for doc_id, text in rows(folder / "collection.tsv", 2))


def lotte_topics(folder: Path, split: str) -> tuple[list[Query], Qrels]:
    """Read questions and the documents that answer them."""
    answers = folder / f"qas.{split}.jsonl"
    qrels: Qrels = {}
    for line, record in read_jsonl(answers):
        if not {"qid", "answer_pids"} <= record.keys():
            raise DataError(f"{answers}:{line}: needed 'qid' and 'answer_pids', found {', '.join(record)}")
        qrels[str(record["qid"])] = {str(doc_id): 1 for doc_id in record["answer_pids"]}
    file = folder / f"questions.{split}.tsv"
    return judged(rows(file, 2), qrels, file)


def cpr_documents(folder: Path) -> Iterator[Document]:
    """Read `corpus.tsv`, or its parts in their order."""
    whole = folder / "corpus.tsv"
    for file in [whole] if whole.is_file() else sorted(folder.glob("corpus_split_*.tsv")) or [whole]:
        for doc_id, text in rows(file, 2):
            yield Document(doc_id, text)


def cpr_topics(folder: Path, split: str) -> tuple[list[Query], Qrels]:
    """Read queries and qrels in TREC's form."""
    file = folder / f"{split}.query.txt"
    return judged(rows(file, 2), read_qrels(folder / f"qrels.{split}.tsv"), file)


def cmedqa_documents(folder: Path) -> Iterator[Document]:
    """Read the answers."""
    answers = rows(folder / "answer.csv", 3, ",", header=True)
    return (Document(doc_id, text) for doc_id, _, text in answers)


def cmedqa_topics(folder: Path, split: str) -> tuple[list[Query], Qrels]:
    """Read the questions of a split; of its candidates those with a label above 0 are relevant."""
    candidates, qrels = folder / f"{split}_candidates.txt", Qrels()
    for query_id, doc_id, _, label in rows(candidates, 4, ",", header=True):
        if label not in ("0", "1"):
            raise DataError(f"{candidates}: needed the label 0 or 1, found '{label}'")
        if label == "1":
            qrels.setdefault(query_id, {})[doc_id] = 1
    file = folder / "question.csv"
    return judged(rows(file, 2, ",", header=True), qrels, file)


LAYOUTS = {
    "beir": Layout(beir_documents, read_topics),
    "lotte": Layout(lotte_documents, lotte_topics),
    "cpr": Layout(cpr_documents, cpr_topics),
    "cmedqa": Layout(cmedqa_documents, cmedqa_topics),
}


def as_beir(folder: Path, layout: str, split: str, target: Path, *, join: str | None = None) -> Path:
    """Write a collection as a BEIR folder, unless `target` holds just that; give `target`.

    `join` stands between title and text, which become one; a title that ends a sentence gets a blank.
    Raises DataError for files that are missing or malformed.
    """
    files = {file.name: sha256_of(file) for file in sorted(folder.glob("*")) if file.is_file()}
    done = {"files": fingerprint(files), "layout": layout, "split": split, "join": join}
    stamp = target / "source.json"
    if stamp.is_file() and json.loads(stamp.read_text(encoding="utf-8")) == done:
        return target
    reader = LAYOUTS[layout]
    queries, qrels = reader.topics(folder, split)
    with staged_folder(target) as staged:
        documents = (joined(one, join) for one in reader.documents(folder))
        records = ({"_id": one.doc_id, "title": one.title, "text": one.text} for one in documents)
        write_lines(staged / "corpus.jsonl", (json.dumps(one, ensure_ascii=False) for one in records))
        topics = ({"_id": query.query_id, "text": query.text} for query in queries)
        write_lines(staged / "queries.jsonl", (json.dumps(one, ensure_ascii=False) for one in topics))
        grades = (
            f"{query}\t{doc}\t{grade}" for query, found in qrels.items() for doc, grade in found.items()
        )
        (staged / "qrels").mkdir()
        write_lines(staged / "qrels" / f"{split}.tsv", ["query-id\tcorpus-id\tscore", *grades])
        write_json(staged / "source.json", done)
    return target


def joined(document: Document, join: str | None) -> Document:
    """Make one text of title and text."""
    title, text = document.title.strip(), document.text.strip()
    if join is None or not title:
        return document
    between = " " if title[-1] in SENTENCE_END else join
    return Document(document.doc_id, f"{title}{between}{text}")


def write_lines(file: Path, lines: Iterable[str]) -> None:
    """Write lines as they come: a corpus need not fit into memory."""
    with file.open("w", encoding="utf-8") as out:
        out.writelines(f"{line}\n" for line in lines)
