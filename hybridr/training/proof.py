"""Judged queries prove an adapted encoder, or do not: thirty take the place of the gate without labels."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..cluster.fields import choose_text_fields
from ..cluster.reading import documents_in_pages
from ..encoders.contract import Encoder
from ..errors import SettingsError
from ..evaluation.bm25 import Bm25
from ..evaluation.evaluation import parse_measure, values_of
from ..evaluation.label_free import SIGNIFICANT, BeforeAfter, RankedIds, compared
from ..records import Document, Progress, Qrels, Query, silent
from .corpus import Source, clipped, titled
from .gate import GateReport, rank_all

QueriesWithQrels: TypeAlias = "tuple[list[Query], Qrels]"
LEAST_JUDGED = 30  # queries; fewer tell two encoders apart by chance
MOST_JUDGED = 500  # queries, as many as of a log
DOCUMENTS = 2_000  # that both encoders encode: all that are judged, and others
PAGE = 100
MEASURE = parse_measure("nDCG@10")


class Proof(NamedTuple):
    """Queries, their judgements, and the documents that these name."""

    queries: list[Query]
    qrels: Qrels
    documents: list[Document]

    @property
    def decides(self) -> bool:
        """Tell whether there are enough."""
        return len(self.queries) >= LEAST_JUDGED


def read_proof(source: Source, judgements: QueriesWithQrels, fields: Sequence[str], seed: int) -> Proof:
    """Find the judged documents, and keep the queries of which one that is relevant is there.

    Of many queries it takes a random choice of 500, and no more than have 2,000 judged documents together.
    Raises SettingsError for documents that can be read once only.
    """
    if isinstance(source, Iterator):
        raise SettingsError(
            "documents that can be read only once cannot be looked up by judgements",
            hint="give a list, a file or an index",
        )
    queries, qrels = judgements
    order = random.Random(seed).sample(queries, len(queries))
    doc_ids: dict[str, None] = {}
    for query in order[:MOST_JUDGED]:
        more = [doc_id for doc_id in qrels.get(query.query_id, {}) if doc_id not in doc_ids]
        if len(doc_ids) + len(more) <= DOCUMENTS:
            doc_ids.update(dict.fromkeys(more))
    documents = list(judged_documents(source, doc_ids, fields))
    present = {document.doc_id for document in documents}
    usable = [
        query for query in order[:MOST_JUDGED] if answered(qrels.get(query.query_id, {}), doc_ids, present)
    ]
    return Proof(usable, {query.query_id: qrels[query.query_id] for query in usable}, documents)


def answered(grades: dict[str, int], doc_ids: Collection[str], documents: Collection[str]) -> bool:
    """Tell whether all judged documents were looked for, and a relevant one found."""
    return all(doc_id in doc_ids for doc_id in grades) and any(
        grade > 0 and doc_id in documents for doc_id, grade in grades.items()
    )


def judged_documents(source: Source, doc_ids: Collection[str], fields: Sequence[str]) -> Iterable[Document]:
    """Yield the documents with these ids, as adaptation reads them."""
    if not isinstance(source, tuple):
        yield from (clipped(document) for document in source if document.doc_id in doc_ids)
        return
    cluster, index = source
    chosen = choose_text_fields(cluster, cluster.index_info(index), fields)
    for page in documents_in_pages(cluster, index, list(doc_ids), page=PAGE):
        for document in page:
            yield clipped(titled(document.doc_id, document.source, chosen))


def prove(
    old: Encoder, new: Encoder, proof: Proof, others: Sequence[Document], progress: Progress = silent
) -> GateReport:
    """Compare two encoders on judged queries, paired; passed where the hybrid is shown to gain (p < .05).

    The corpus is the judged documents, filled up with `others` to 2,000.
    """
    present = {document.doc_id for document in proof.documents}
    filled = [*proof.documents, *(document for document in others if document.doc_id not in present)][
        :DOCUMENTS
    ]
    texts, query_texts = [document.contents for document in filled], [query.text for query in proof.queries]
    bm25 = Bm25(texts)
    before = rank_all(old, texts, query_texts, bm25, progress, "gate: old encoder")
    after = rank_all(new, texts, query_texts, bm25, progress, "gate: new encoder")
    rows = tuple(
        compared(f"{name} {MEASURE}, judged", *(judged_values(rankings, filled, proof) for rankings in sides))
        for name, *sides in (("dense", before.dense, after.dense), ("hybrid", before.fused, after.fused))
    )
    return GateReport(rows, tuple(doubts(rows[-1])), 0, len(filled), judged=len(proof.queries))


def judged_values(
    rankings: Sequence[RankedIds], documents: Sequence[Document], proof: Proof
) -> NDArray[np.float64]:
    """Measure each query's ranking, of positions in `documents`, `(queries,)`."""
    run = {
        query.query_id: {documents[int(place)].doc_id: -float(rank) for rank, place in enumerate(ranking)}
        for query, ranking in zip(proof.queries, rankings, strict=True)
    }
    (values,) = values_of(run, proof.qrels, [MEASURE], list(proof.qrels)).values()
    return np.array([values[query.query_id] for query in proof.queries])


def doubts(row: BeforeAfter) -> list[str]:
    """Say why a change is no gain that was shown."""
    if row.new > row.old and row.p < SIGNIFICANT:
        return []
    return [f"{row.name}: {row.old:.4f} before, {row.new:.4f} after, p {row.p:.2g}: no gain is shown"]
