"""The training data of a REM as numbers: tokens in memory, and batches that depend on seed and step."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from ..errors import DataError, quantity
from ..records import Progress, silent
from .judged import Judged, read_negatives, read_scores
from .ranker import Ranker, Tokens
from .settings import RemSettings

Numbers: TypeAlias = NDArray[np.int64]

TOKENIZED_AT_ONCE = 4_096  # texts; only their tokens stay in memory


@dataclass(eq=False)
class Rows:
    """Rows of different lengths stored in one array, 4 bytes a value."""

    values: NDArray[Any]
    starts: Numbers
    """The positions where rows start, with the end of the last."""

    @classmethod
    def of(cls, rows: Iterable[Sequence[Any] | NDArray[Any]], kind: str = "i") -> Rows:
        """Return the rows joined: whole numbers, or single-precision ones with `kind` "f"."""
        values, starts = array(kind), array("q", [0])
        for row in rows:
            values.extend(row)
            starts.append(len(values))
        dtype = np.int32 if kind == "i" else np.float32
        return cls(np.frombuffer(values, dtype=dtype), np.frombuffer(starts, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, position: int) -> NDArray[Any]:
        return self.values[self.starts[position] : self.starts[position + 1]]

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return (self[position] for position in range(len(self)))


@dataclass(frozen=True)
class Examples:
    """Queries and documents as tokens; positives and negatives of each query as rows of `documents`."""

    queries: Rows
    documents: Rows
    positives: Rows
    """Numbers of the relevant documents, by query."""
    negatives: Rows
    """Numbers of the documents that negatives are drawn from, by query."""
    scores: tuple[Rows, Rows] | None = None
    """The teacher's scores of `positives` and `negatives`; None without a teacher."""
    dropped: int = 0
    """Number of queries for which the teacher scored too few documents."""


@dataclass(frozen=True)
class Limits:
    """The longest query and document in tokens, [CLS] and [SEP] included."""

    query: int = 24
    document: int = 128

    @classmethod
    def of(cls, ranker: Ranker, settings: RemSettings) -> Limits:
        """Return the limits of the settings. Raises DataError if the backbone has no positions for them."""
        query, document = settings.max_query_tokens, settings.max_document_tokens
        if settings.ranker == "rerank":
            ranker.limit(query + document)
        return cls(ranker.limit(query), ranker.limit(document))


def read_examples(
    judgements: Judged, negatives: Path | None, tokens: Tokens, limits: Limits, *, progress: Progress = silent
) -> Examples:
    """Tokenise queries and corpus, and read the numbers of each query's positives and negatives.

    Without a file of `negatives`, training draws them from the whole corpus. Raises DataError for ids that
    the corpus lacks, and for a relevant document without text.
    """
    documents, numbers = read_corpus_tokens(judgements, tokens, limits, progress)
    positives = Rows.of([numbers[doc_id] for doc_id in ids] for ids in judgements.positives.values())
    by_query = dict(read_negatives(negatives, judgements, numbers)) if negatives else {}
    negative_rows = Rows.of(by_query.get(query_id, []) for query_id in judgements.queries)
    queries = Rows.of(tokens.rows(list(judgements.queries.values()), limits.query))
    return Examples(queries, documents, positives, negative_rows)


def read_distilled(
    judgements: Judged,
    teacher: Path,
    tokens: Tokens,
    limits: Limits,
    minimum: int,
    *,
    progress: Progress = silent,
) -> Examples:
    """Tokenise queries and corpus like `read_examples`, and add the teacher's scores.

    Negatives are the scored documents that are not relevant. Queries without a scored relevant document, or
    with fewer than `minimum` scored negatives, are left out and counted. Raises DataError, also if none is
    left.
    """
    documents, numbers = read_corpus_tokens(judgements, tokens, limits, progress)
    scored: dict[str, dict[int, float]] = {query_id: {} for query_id in judgements.queries}
    for query_id, doc_id, score in read_scores(teacher):
        if query_id not in scored:
            continue
        if doc_id not in numbers:
            raise DataError(f"{teacher}: document '{doc_id}' of query '{query_id}' is not in the corpus")
        scored[query_id][numbers[doc_id]] = score
    good, bad = [], []
    for query_id, doc_ids in judgements.positives.items():
        relevant, scores = {numbers[doc_id] for doc_id in doc_ids}, scored[query_id]
        good.append({number: score for number, score in scores.items() if number in relevant})
        bad.append({number: score for number, score in scores.items() if number not in relevant})
    usable = [place for place in range(len(good)) if good[place] and len(bad[place]) >= minimum]
    if not usable:
        raise DataError(
            f"{teacher} scores for no query a relevant document and at least {minimum} others",
            hint="the teacher must score the queries and documents of these qrels",
        )
    queries = tokens.rows(list(judgements.queries.values()), limits.query)
    good, bad = ([side[place] for place in usable] for side in (good, bad))
    return Examples(
        Rows.of(queries[place] for place in usable),
        documents,
        Rows.of(map(list, good)),
        Rows.of(map(list, bad)),
        (
            Rows.of((list(row.values()) for row in good), "f"),
            Rows.of((list(row.values()) for row in bad), "f"),
        ),
        dropped=len(judgements.positives) - len(usable),
    )


def read_corpus_tokens(
    judgements: Judged, tokens: Tokens, limits: Limits, progress: Progress
) -> tuple[Rows, dict[str, int]]:
    """Tokenise the corpus; return the tokens, and document id -> number. Raises DataError."""
    numbers: dict[str, int] = {}
    relevant = {doc_id for doc_ids in judgements.positives.values() for doc_id in doc_ids}

    def rows() -> Iterator[list[int]]:
        """Yield the tokens of each document and number the documents on the way."""
        documents = judgements.documents()
        while part := list(islice(documents, TOKENIZED_AT_ONCE)):
            for document in part:
                if document.doc_id in relevant and not document.contents.strip():
                    raise DataError(
                        f"{judgements.name}: document '{document.doc_id}', which is relevant to a query, has "
                        "no text",
                        hint="remove it from the qrels, or add its text",
                    )
            offset = len(numbers)
            numbers.update((document.doc_id, offset + place) for place, document in enumerate(part))
            yield from tokens.rows([document.contents for document in part], limits.document)
            progress("tokenise", len(numbers))

    token_rows = Rows.of(rows())
    progress("tokenise", len(numbers), len(numbers))
    judgements.require_documents(numbers)
    return token_rows, numbers


@dataclass(frozen=True)
class Batch:
    """The data of one training step: numbers of n queries, of a positive each, and of k negatives each."""

    step: int
    queries: Numbers
    """`(n,)`"""
    positives: Numbers
    """`(n,)`"""
    negatives: Numbers
    """`(n, k)`"""
    teacher: NDArray[np.float32] | None = None
    """Scores `(n, 1 + k)` of the positive and the negatives."""

    def share(self, rank: int, count: int) -> Batch:
        """Return the part for process `rank` of `count` processes: an equal range of the queries."""
        size = len(self.queries) // count
        part = slice(rank * size, (rank + 1) * size)
        teacher = None if self.teacher is None else self.teacher[part]
        return Batch(self.step, self.queries[part], self.positives[part], self.negatives[part], teacher)


class Batches:
    """The batches of all processes together; each epoch visits every query once, except an incomplete
    last batch.

    A batch depends on seed and step alone, so an interrupted run resumes exactly. Every visit draws a
    positive of the query and, without replacement, `per_query` negatives. If fewer are listed, random
    documents that are not relevant are added.
    """

    def __init__(self, examples: Examples, size: int, per_query: int, seed: int) -> None:
        """Take the number of queries in a batch. Raises DataError for too few queries or documents."""
        self.examples = examples
        self.size = size
        self.per_query = per_query
        self.seed = seed
        self.per_epoch = len(examples.queries) // size
        if not self.per_epoch:
            raise DataError(
                f"found {quantity(len(examples.queries), 'query')} to train on; a batch takes {size}",
                hint="[rem] batch_size lowers that (all processes together take N each)",
            )
        widest = max(len(row) for row in examples.positives)
        if len(examples.documents) < widest + per_query:
            raise DataError(
                f"the corpus holds {quantity(len(examples.documents), 'document')}, too few for "
                f"{per_query} negatives",
                hint="[rem] negatives_per_query lowers that",
            )

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step, numbered from 1."""
        epoch, part = divmod(step - 1, self.per_epoch)
        order = default_rng([self.seed, 0, epoch]).permutation(len(self.examples.queries))
        selected = order[part * self.size : (part + 1) * self.size]
        random = default_rng([self.seed, 1, step])
        if self.examples.scores is None:
            drawn_rows = []
            for query in selected:
                positives, count = self.examples.positives[query], len(self.examples.documents)
                positive = int(random.choice(positives))
                candidates = self.examples.negatives[query]
                negatives: list[int] = random.permutation(candidates)[: self.per_query].tolist()
                excluded = {*negatives, *positives.tolist()}
                while len(negatives) < self.per_query:
                    number = int(random.integers(count))
                    if number not in excluded:
                        negatives.append(number)
                        excluded.add(number)
                drawn_rows.append([positive, *negatives])
            numbers = np.array(drawn_rows)
            return Batch(step, selected, numbers[:, 0], numbers[:, 1:])
        places = []  # in the lists of a query's scored positives and negatives
        for query in selected:
            place = int(random.integers(len(self.examples.positives[query])))
            available = len(self.examples.negatives[query])
            places.append((place, random.choice(available, self.per_query, replace=False)))
        numbers = values_at(self.examples.positives, self.examples.negatives, selected, places)
        teacher = values_at(*self.examples.scores, selected, places)
        return Batch(step, selected, numbers[:, 0], numbers[:, 1:], teacher)


@dataclass(frozen=True)
class TargetTexts:
    """Tokens of the target domain's queries and documents, whose vectors should resemble the source's."""

    queries: Rows
    documents: Rows
    made_from: Numbers
    """Number of the document that a query was made from, `(queries,)`; -1 without one."""


@dataclass(frozen=True)
class TargetBatch:
    """The target's data of one step: numbers of n queries and of two documents for each."""

    queries: Numbers
    """`(n,)`"""
    first: Numbers
    """`(n,)`: the document that the query was made from, or a random one"""
    second: Numbers
    """`(n,)`: random documents"""

    def share(self, rank: int, count: int) -> TargetBatch:
        """Return the part for process `rank` of `count` processes: an equal range of the queries."""
        size = len(self.queries) // count
        part = slice(rank * size, (rank + 1) * size)
        return TargetBatch(self.queries[part], self.first[part], self.second[part])


@dataclass
class TargetBatches:
    """Batches of the target domain, by seed and step alone; few queries repeat within a batch."""

    texts: TargetTexts
    size: int  # queries in a batch of all processes
    seed: int

    def __call__(self, step: int) -> TargetBatch:
        """Return the batch of a step, numbered from 1."""
        random = default_rng([self.seed, 3, step])
        count, texts = len(self.texts.queries), self.texts
        queries = random.choice(count, self.size, replace=count < self.size)
        first, second = random.integers(len(texts.documents), size=(2, self.size))
        made_from = texts.made_from[queries]
        return TargetBatch(queries, np.where(made_from >= 0, made_from, first), second)


def values_at(
    positives: Rows, negatives: Rows, queries: Numbers, places: Sequence[tuple[int, Numbers]]
) -> NDArray[Any]:
    """Return the values at the drawn places in each query's rows of positives and negatives, `(n, 1 + k)`."""
    rows = [
        np.append(positives[query][first], negatives[query][others])
        for query, (first, others) in zip(queries.tolist(), places, strict=True)
    ]
    return np.array(rows)
