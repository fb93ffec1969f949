"""Labelled queries over a corpus, from a BEIR folder or from the files of DDR; checked, and never copied."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from numpy.random import default_rng

from ..errors import DataError
from ..formats import document_of, qrels_file, read_corpus, read_qrels, read_topics
from ..manifest import fingerprint, sha256_of
from ..records import Document, Qrels, Query


@dataclass(frozen=True)
class Judged:
    """Queries with the documents that are relevant to them."""

    name: str
    queries: Mapping[str, str]
    """Text by query id, of those that have a relevant document."""
    positives: Mapping[str, tuple[str, ...]]
    """Ids of the relevant documents by query id, never empty."""
    judged: frozenset[str]
    """Ids of all judged queries, also of those without a relevant document."""
    documents: Callable[[], Iterator[Document]]
    """Reads the corpus, anew at every call: it may be larger than the memory."""
    fingerprint: str
    """Names the contents of the files, 64 hex digits."""

    def sample(self, count: int | None, seed: int) -> Judged:
        """Give a random choice of `count` queries in their order; all of them when there are no more."""
        if count is None or count >= len(self.queries):
            return self
        chosen = sorted(default_rng([seed, 2]).choice(len(self.queries), count, replace=False).tolist())
        ids = list(self.queries)
        queries = {ids[position]: self.queries[ids[position]] for position in chosen}
        return replace(
            self,
            queries=queries,
            positives={query_id: self.positives[query_id] for query_id in queries},
            fingerprint=fingerprint([self.fingerprint, count, seed]),
        )

    def records(self) -> list[Query]:
        """Give the queries with their texts."""
        return [Query(query_id, text) for query_id, text in self.queries.items()]

    def require_documents(self, known: Mapping[str, int]) -> None:
        """Raise DataError when a relevant document is not among the known ones."""
        for query_id, doc_ids in self.positives.items():
            for doc_id in doc_ids:
                if doc_id not in known:
                    raise DataError(
                        f"{self.name}: the corpus lacks document '{doc_id}', relevant to query '{query_id}'",
                        hint="qrels and corpus must be of the same collection",
                    )


def read_judged_beir(folder: Path, split: str = "train") -> Judged:
    """Read a BEIR folder with qrels of `split`; grades of 1 and more are relevant.

    Queries without a relevant document are left out. Raises DataError with file and line for what is missing
    or malformed: a split, a query's text, a grade that is no whole number.
    """
    queries, qrels = read_topics(folder, split)
    files = [folder / "corpus.jsonl", folder / "queries.jsonl", qrels_file(folder, split)]
    texts = {query.query_id: query.text for query in queries}
    return judged(folder.name, texts, qrels, partial(beir_documents, folder), files)


def beir_documents(folder: Path) -> Iterator[Document]:
    """Yield the documents of a BEIR folder."""
    return (document_of(record, folder) for record in read_corpus(folder))


def read_judged_files(qrels: Path, queries: Path, corpus: Path) -> Judged:
    """Read the files of DDR: qrels `qid 0 docid grade`, queries and corpus `id<TAB>text` (gzip allowed).

    Grades of 1 and more are relevant. Raises DataError as `read_judged_beir`.
    """
    grades = read_qrels(qrels)
    texts = {}
    for line, query_id, text in read_table(queries):
        if query_id in grades:
            if not text.strip():
                raise DataError(f"{queries}:{line}: query '{query_id}' has no text")
            texts[query_id] = text.strip()
    if missing := grades.keys() - texts.keys():
        raise DataError(f"{queries}: {len(missing)} judged queries have no text, such as '{min(missing)}'")
    return judged(corpus.stem, texts, grades, partial(table_documents, corpus), [corpus, queries, qrels])


def table_documents(corpus: Path) -> Iterator[Document]:
    """Yield the documents of a file `id<TAB>text`. Raises DataError when an id comes twice."""
    seen: set[str] = set()
    for line, doc_id, text in read_table(corpus):
        if doc_id in seen:
            raise DataError(f"{corpus}:{line}: document id '{doc_id}' for the second time")
        seen.add(doc_id)
        yield Document(doc_id, text)


def judged(
    name: str,
    texts: Mapping[str, str],
    qrels: Qrels,
    documents: Callable[[], Iterator[Document]],
    files: Iterable[Path],
) -> Judged:
    """Put the parts together, without the queries that have no relevant document. Raises DataError."""
    relevant = {
        query_id: tuple(doc_id for doc_id, grade in grades.items() if grade >= 1)
        for query_id, grades in qrels.items()
    }
    positives = {query_id: relevant[query_id] for query_id in texts if relevant[query_id]}
    if not positives:
        raise DataError(f"{name}: no query has a document of grade 1 or more", hint="choose another --split")
    queries = {query_id: texts[query_id] for query_id in positives}
    key = fingerprint([sha256_of(file) for file in files])
    return Judged(name, queries, positives, frozenset(qrels), documents, key)


def read_table(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, id, text) of `id<TAB>text` lines. Raises DataError."""
    for number, line in read_lines(file):
        name, separator, text = line.partition("\t")
        if not separator or not name or "\t" in text:
            raise DataError(f"{file}:{number}: needed 'id<TAB>text', found {line[:80]!r}")
        yield number, name, text


def read_lines(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank with their numbers, of a plain or gzip file. Raises DataError."""
    opened = gzip.open if file.suffix == ".gz" else open
    try:
        with opened(file, "rt", encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{file} cannot be read: {reason}") from error
