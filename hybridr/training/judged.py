"""Labelled queries for training: reading them, mining negatives, and reading a teacher's scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.random import default_rng

from ..errors import DataError, SettingsError, quantity
from ..evaluation.label_free import Bm25
from ..files.document_forms import valid_id
from ..files.formats import (
    document_of,
    fits_word,
    qrels_file,
    read_corpus,
    read_lines,
    read_qrels,
    read_table,
    read_topics,
)
from ..files.local import (
    child_path,
    fingerprint,
    max_model_bytes,
    parsed_json,
    read_manifest,
    read_within,
    require_regular,
    sha256_of,
    storing,
    write_manifest,
)
from ..records import Document, Progress, Qrels, Query, Run, silent

RanksQueries: TypeAlias = Callable[[list[Query], int], Run]
"""Ranks the best k documents for each query, as `Search(...).run` does on a cluster."""
FILE = "negatives.tsv"
PART_FILE = ".negatives.part"
MADE_BY = 1  # version of the procedure; raise it when results change, so that files are mined again
BATCH = 256  # queries between two writes
MINE_AGAIN = "the file must cover exactly the queries of the qrels; without a file they are mined"
PICKLE = 0x80  # the first byte of a pickle


@dataclass(frozen=True)
class Judged:
    """Queries with their relevant documents, and the corpus."""

    name: str
    queries: Mapping[str, str]
    """Text by query id, of those that have a relevant document."""
    positives: Mapping[str, tuple[str, ...]]
    """Ids of the relevant documents by query id, never empty; the same queries in the same order."""
    judged_ids: frozenset[str]
    """Ids of all judged queries, also of those without a relevant document."""
    documents: Callable[[], Iterator[Document]]
    """Reads the corpus again at every call, because it may not fit into memory."""
    fingerprint: str
    """Fingerprint of the files' contents, 64 hex digits."""

    def sample(self, count: int | None, seed: int) -> Judged:
        """Return `count` queries drawn at random, in the order of the file.

        All are returned if `count` is None, or if there are no more.
        """
        if count is None or count >= len(self.queries):
            return self
        positions = sorted(default_rng([seed, 2]).choice(len(self.queries), count, replace=False).tolist())
        ids = list(self.queries)
        queries = {ids[position]: self.queries[ids[position]] for position in positions}
        return replace(
            self,
            queries=queries,
            positives={query_id: self.positives[query_id] for query_id in queries},
            fingerprint=fingerprint([self.fingerprint, count, seed]),
        )

    def require_documents(self, numbers: Mapping[str, int]) -> None:
        """Raise DataError if a relevant document is not among the corpus's ids in `numbers`."""
        for query_id, doc_ids in self.positives.items():
            for doc_id in doc_ids:
                if doc_id not in numbers:
                    raise DataError(
                        f"{self.name}: the corpus lacks document '{doc_id}', relevant to query '{query_id}'",
                        hint="qrels and corpus must be of the same collection",
                    )


def read_labels(
    beir: Path | None = None,
    split: str = "train",
    qrels: Path | None = None,
    queries: Path | None = None,
    corpus: Path | None = None,
) -> Judged:
    """Read labelled queries from a BEIR folder, or from three files. Raise SettingsError for a mixture."""
    if beir is not None and not any((qrels, queries, corpus)):
        return read_judged_beir(beir, split)
    if beir is None and qrels and queries and corpus:
        return read_judged_files(qrels, queries, corpus)
    raise SettingsError(
        "labelled queries are needed from one place", hint="--beir FOLDER, or --qrels, --queries and --corpus"
    )


def read_judged_beir(folder: Path, split: str = "train") -> Judged:
    """Read a BEIR folder with qrels of `split`; grades of 1 and more are relevant.

    Queries without a relevant document are left out. Raises DataError with file and line for what is missing
    or malformed.
    """
    queries, qrels = read_topics(folder, split)
    files = [folder / "corpus.jsonl", folder / "queries.jsonl", qrels_file(folder, split)]
    texts = {query.query_id: query.text for query in queries}
    return make_judged(
        folder.name,
        texts,
        qrels,
        lambda: (document_of(record, folder) for record in read_corpus(folder)),
        files,
    )


def read_judged_files(qrels: Path, queries: Path, corpus: Path) -> Judged:
    """Read the three files of DDR: qrels `qid 0 docid grade`, queries and corpus `id<TAB>text` (gzip
    allowed).

    Grades of 1 and more are relevant. Raises DataError like `read_judged_beir`.
    """
    grades = read_qrels(qrels)
    texts = {}
    for line, query_id, text in read_table(queries):
        if query_id in grades:
            if not text.strip():
                raise DataError(f"{queries}:{line}: query '{query_id}' has no text")
            texts[query_id] = text.strip()
    if missing := grades.keys() - texts.keys():
        raise DataError(f"{queries} lacks {quantity(len(missing), 'judged query')}, such as '{min(missing)}'")

    def documents() -> Iterator[Document]:
        """Yield the documents of the corpus. Raises DataError for a repeated id."""
        doc_ids: set[str] = set()
        for line, doc_id, text in read_table(corpus):
            if doc_id in doc_ids:
                raise DataError(f"{corpus}:{line}: document id '{doc_id}' is repeated")
            doc_ids.add(doc_id)
            yield Document(doc_id, text)

    return make_judged(corpus.stem, texts, grades, documents, [corpus, queries, qrels])


def make_judged(
    name: str,
    texts: Mapping[str, str],
    qrels: Qrels,
    documents: Callable[[], Iterator[Document]],
    files: Iterable[Path],
) -> Judged:
    """Return the queries that have a relevant document. Raise DataError if there is none."""
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


def mine_negatives(
    judgements: Judged,
    out: Path,
    count: int,
    *,
    rank: RanksQueries | None = None,
    source: str = "bm25",
    progress: Progress = silent,
) -> Path:
    """Mine `count` negatives for every query into the file `out`/negatives.tsv, best first, and return its
    path.

    The ranking is BM25 over the corpus in this process, or `rank` on a cluster with the same corpus.
    `source` names the ranking in the fingerprint. An interrupted run resumes, a finished one is reused.
    Raises DataError for ids that the file cannot hold or the corpus does not have.
    """
    key = fingerprint(
        {"version": MADE_BY, "judged": judgements.fingerprint, "count": count, "source": source}
    )
    file = out / FILE
    manifest = read_manifest(out) or {}
    if manifest.get("key") == key and file.is_file() and sha256_of(file) == manifest["outputs"][FILE]:
        return file
    part = child_path(out, f"{PART_FILE}.{key[:16]}")
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
        mine_missing(part, judgements, count, rank, progress)
        part.replace(file)
    write_manifest(
        out,
        stage="negatives",
        settings={"count": count, "source": source},
        inputs={"judged": judgements.fingerprint},
        outputs=[FILE],
        extra={"key": key},
    )
    return file


def mine_missing(
    part: Path, judgements: Judged, count: int, rank: RanksQueries | None, progress: Progress
) -> None:
    """Mine the negatives of the queries that the file `part` lacks, and append them.

    Documents whose ids have blanks are left out, since the file cannot hold them.
    """
    queries = [Query(query_id, text) for query_id, text in judgements.queries.items()]
    content = read_within(part, max_model_bytes()) if part.is_file() else b""
    lines = content[: content.rfind(b"\n") + 1]  # without an incomplete last line
    part.write_bytes(lines)
    line_count = lines.count(b"\n")
    rank = rank or bm25_ranking(judgements, progress)
    progress("mine negatives", line_count, len(queries))
    with part.open("a", encoding="utf-8") as file:
        for start in range(line_count, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            deepest = count + max(len(judgements.positives[query.query_id]) for query in batch)
            run = rank(batch, deepest)
            for query in batch:
                relevant = set(judgements.positives[query.query_id])
                ranked = [doc for doc in run[query.query_id] if doc not in relevant and fits_word(doc)]
                if not fits_word(query.query_id):
                    raise DataError(f"the id {query.query_id!a} contains a blank: the file cannot hold it")
                file.write(f"{query.query_id}\t{' '.join(ranked[:count])}\n")
            file.flush()
            progress("mine negatives", start + len(batch), len(queries))


def bm25_ranking(judgements: Judged, progress: Progress) -> RanksQueries:
    """Return a function that ranks the corpus by BM25. Raises DataError if a relevant document is missing."""
    progress("index for BM25", 0, 1)
    ids, texts = [], []
    for document in judgements.documents():
        ids.append(document.doc_id)
        texts.append(document.contents)
    judgements.require_documents({doc_id: position for position, doc_id in enumerate(ids)})
    index = Bm25(texts)
    progress("index for BM25", 1, 1)

    def rank(queries: list[Query], k: int) -> Run:
        """Return the `k` best documents of each query by BM25."""
        return {
            query.query_id: {ids[int(place)]: score for place, score in index.search(query.text, k).items()}
            for query in queries
        }

    return rank


def dense_ranking(ranker: Any, judgements: Judged, limits: Any) -> RanksQueries:
    """Return a function that ranks the corpus by a dense ranker: exact inner products with all vectors."""
    documents = [(document.doc_id, document.contents) for document in judgements.documents()]
    vectors = ranker.encode_documents([text for _, text in documents], max_tokens=limits.document)

    def rank(queries: list[Query], k: int) -> Run:
        """Return the `k` best documents of each query by inner product."""
        query_vectors = ranker.encode_queries([query.text for query in queries], max_tokens=limits.query)
        scores = query_vectors @ vectors.T
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k].tolist()
        return {
            query.query_id: {documents[place][0]: float(row[place]) for place in places}
            for query, row, places in zip(queries, scores, best, strict=True)
        }

    return rank


def read_negatives(
    file: Path, judgements: Judged, numbers: Mapping[str, int]
) -> Iterator[tuple[str, list[int]]]:
    """Yield (query id, numbers of its negatives) for each labelled query, in the order of the file.

    Lines are `qid<TAB>d1 d2 d3 ...`. The file must cover exactly the judged queries; no negative may be
    relevant or outside the corpus. Raises DataError that names the query.
    """
    query_ids: set[str] = set()
    for number, line in read_lines(file):
        query_id, _, negatives = line.partition("\t")
        if query_id in query_ids or query_id not in judgements.judged_ids:
            problem = "is repeated" if query_id in query_ids else "is not in the qrels"
            raise DataError(f"{file}:{number}: query '{query_id}' {problem}", hint=MINE_AGAIN)
        query_ids.add(query_id)
        if query_id in judgements.queries:
            doc_ids = negatives.split()
            if wrong := set(doc_ids) & set(judgements.positives[query_id]):
                raise DataError(
                    f"{file}:{number}: document '{min(wrong)}' is a negative of query '{query_id}' and "
                    "relevant to it",
                    hint=MINE_AGAIN,
                )
            if unknown := [doc_id for doc_id in doc_ids if doc_id not in numbers]:
                raise DataError(
                    f"{file}:{number}: document '{unknown[0]}', a negative of query '{query_id}', is not in "
                    "the corpus",
                    hint="negatives, qrels and corpus must be of the same collection",
                )
            yield query_id, [numbers[doc_id] for doc_id in doc_ids]
    if missing := judgements.queries.keys() - query_ids:
        raise DataError(
            f"{file} lacks {quantity(len(missing), 'query')} that the qrels have, such as '{min(missing)}'",
            hint=MINE_AGAIN,
        )


def read_scores(file: Path) -> Iterator[tuple[str, str, float]]:
    """Yield (query id, document id, score) of a file of a teacher's scores.

    JSONL holds objects with "query-id", "corpus-id" and "score", TSV lines `qid docid score`; either may be
    gzipped. Raises DataError for anything else, above all for a pickle, which can run code when it is read.
    """
    kind = next((end for end in reversed(file.suffixes) if end != ".gz"), "")
    if kind not in (".jsonl", ".tsv") or is_pickle(file):
        raise DataError(
            f"{file}: teacher scores are read from .jsonl or .tsv; a pickle is never opened, it can run code",
            hint='write one {"query-id": ..., "corpus-id": ..., "score": ...} per line',
        )
    for number, line in read_lines(file):
        try:
            if kind == ".jsonl":
                record, place = parsed_json(line), f"{file}:{number}"
                query_id = valid_id(record["query-id"], place, "'query-id'")
                doc_id = valid_id(record["corpus-id"], place, "'corpus-id'")
                score = float(record["score"])
            else:
                query_id, doc_id, value = line.split("\t") if "\t" in line else line.split()
                score = float(value)
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{file}:{number}: no query, document and score in {line[:80]!r}") from None
        if not math.isfinite(score):
            raise DataError(f"{file}:{number}: the score of query '{query_id}' is {score}")
        yield query_id, doc_id, score


def is_pickle(file: Path) -> bool:
    """Return whether a file begins as a pickle does. Raises DataError if it cannot be read."""
    try:
        with require_regular(file).open("rb") as content:
            return content.read(1) == bytes([PICKLE])
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
