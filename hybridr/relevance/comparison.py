"""Compares encoders on a sample of an index's documents, in this process, without writing to the cluster.

The queries are judged ones, or made from documents: titles, sentences and keywords, taken out of the document
or drawn from the rest. Every encoder ranks the same sample by vectors alone and with BM25, as `hybridr
search` does without signals after a reindex by the defaults.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.connection import Cluster
from ..cluster.fields import choose_text_fields
from ..cluster.reading import sample_documents
from ..encoders.contract import Encoder
from ..encoders.evening import LEVEL, SHARE_OF_MEAN
from ..errors import DataError
from ..evaluation.bm25 import Bm25
from ..evaluation.label_free import RANKING_LOSS, SIGNIFICANT, RankedIds, Rankings, make_probes, own_document
from ..evaluation.significance import BoundedMean, bounded_mean, holm, paired_t
from ..files.manifest import fingerprint
from ..files.remembered import known_in, remember_newest
from ..records import Document, Progress, silent
from .corpus import clipped, titled
from .gate import (
    DOCUMENTS,
    LEAST_JUDGED,
    Proof,
    QueriesWithQrels,
    encode_in_parts,
    judged_values,
    rank_vectors,
    read_proof,
)

QUERY_DOCUMENTS = 300  # that queries are made from
LEAST_MADE = 30  # queries
FILE, MOST_KEPT = "comparisons.json", 50
SEED = 0  # of the queries that are made, and of the judged ones that are taken
BYTES = 4  # of a component of a vector
EVENING = (LEVEL, SHARE_OF_MEAN)  # what was measured with another is measured again


@dataclass(frozen=True)
class EncoderResult:
    """The quality of one encoder on the sample, and its cost for the whole index.

    `dense` and `hybrid` are nDCG@10, 0 to 1, by vectors alone and with BM25.
    """

    name: str
    dense: BoundedMean
    hybrid: BoundedMean
    p: float
    """Of the paired t-test of its hybrid against the best one, after Holm; 1 for the best itself."""
    behind: bool
    """Whether it is shown to be worse than the best one."""
    documents_per_second: float
    seconds: float
    """To encode all documents of the index on this machine."""
    vector_bytes: int
    """Of all documents, as fp32."""


@dataclass(frozen=True)
class EncoderComparison:
    """Encoders by their hybrid nDCG@10, the best first."""

    index: str
    documents: int
    sampled: int
    queries: int
    judged: bool
    words: BoundedMean
    """BM25 alone."""
    encoders: tuple[EncoderResult, ...]

    @property
    def best(self) -> str | None:
        """Return the encoder that is significantly better than all others; None if there is none."""
        first, *rest = self.encoders
        return first.name if all(result.behind for result in rest) else None

    @property
    def choice(self) -> str:
        """Return the encoder to use: the fastest of those not significantly worse than the best."""
        equals = [result for result in self.encoders if not result.behind]
        return max(equals, key=lambda result: result.documents_per_second).name

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {**asdict(self), "best": self.best, "choice": self.choice}


class ComparisonTask(NamedTuple):
    """Documents, their texts without the sentences that became queries, and the queries with their relevant
    documents.
    """

    documents: Sequence[Document]
    texts: list[str]
    queries: list[str]
    proof: Proof | None
    answers: list[str]
    """Of made queries: the place of the document that each was made from."""

    def values(self, rankings: Sequence[RankedIds]) -> NDArray[np.float64]:
        """Return nDCG@10 of each query, `(queries,)`."""
        if self.proof is None:
            return own_document(rankings, self.answers)
        return judged_values(rankings, self.proof, self.documents)


def compare_on_index(
    cluster: Cluster,
    index: str,
    encoders: Mapping[str, Encoder],
    judgements: QueriesWithQrels | None = None,
    *,
    fields: Sequence[str] = (),
    progress: Progress = silent,
) -> EncoderComparison:
    """Compare encoders, given by name, on 2,000 documents of an index.

    With 30 judged queries or more, whose documents are all in the sample, these decide; else queries made
    from documents. Made queries share words with their document as people's queries do not, so a difference
    below .05 means nothing. Results are stored on this machine and reused for the same sample and queries.
    Raises DataError if fewer than 30 queries can be made.
    """
    info = cluster.index_info(index)
    chosen = choose_text_fields(cluster, info, fields)
    progress("read documents", 0, DOCUMENTS)
    sample = sample_documents(cluster, info, DOCUMENTS, fields=chosen)
    others = [clipped(titled(document.doc_id, document.source, chosen)) for document in sample]
    proof = read_proof((cluster, index), judgements, fields, SEED) if judgements else None
    task = task_of(others, proof if proof and proof.decides else None, SEED)
    progress("read documents", len(task.documents), len(task.documents))
    bm25 = Bm25(task.texts)
    scores = {
        name: measured(encoder, task, bm25, partial(progress, f"encoder {name}"))
        for name, encoder in encoders.items()
    }
    count = cluster.count(info)
    sizes = {name: count * encoder.dim * BYTES for name, encoder in encoders.items()}
    return EncoderComparison(
        index,
        count,
        sampled=len(task.documents),
        queries=len(task.queries),
        judged=task.proof is not None,
        words=bounded_mean(next(iter(scores.values()))["lexical"]),
        encoders=results_of(scores, sizes, count, 0.0 if task.proof else RANKING_LOSS),
    )


def results_of(
    scores: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int], document_count: int, needed: float
) -> tuple[EncoderResult, ...]:
    """Return the results of the encoders, best mean hybrid score first.

    An encoder is `behind` if it is worse than the best by more than `needed`, and significantly so: paired
    t-test, Holm-corrected.
    """
    values = {name: np.array(columns["hybrid"]) for name, columns in scores.items()}
    order = sorted(values, key=lambda name: -values[name].mean())
    differences = np.column_stack([values[name] - values[order[0]] for name in order])
    p_values = np.array([1.0, *holm(paired_t(differences[:, 1:]))] if len(order) > 1 else [1.0])
    behind = (p_values < SIGNIFICANT) & (-differences.mean(axis=0) > needed)
    return tuple(
        EncoderResult(
            name,
            bounded_mean(scores[name]["dense"]),
            bounded_mean(scores[name]["hybrid"]),
            float(p),
            bool(is_behind),
            scores[name]["documents_per_second"],
            document_count / scores[name]["documents_per_second"],
            sizes[name],
        )
        for name, p, is_behind in zip(order, p_values, behind, strict=True)
    )


def task_of(sample: Sequence[Document], proof: Proof | None, seed: int) -> ComparisonTask:
    """Return the documents and queries to compare encoders by. Raises DataError for fewer than 30 queries."""
    documents = list(
        {document.contents: document for document in sample if document.contents.strip()}.values()
    )
    if proof is not None:
        filled = proof.filled(documents)
        texts = [document.contents for document in filled]
        return ComparisonTask(filled, texts, [query.text for query in proof.queries], proof, [])
    random.Random(seed).shuffle(documents)
    probes, texts = make_probes(documents[:QUERY_DOCUMENTS], seed)
    if len(probes) < LEAST_MADE:
        raise DataError(
            f"{len(documents):,} different texts give {len(probes)} queries; {LEAST_MADE} are needed",
            hint=f"--beir FOLDER with {LEAST_JUDGED} judged queries or more",
        )
    texts += [document.contents for document in documents[len(texts) :]]
    return ComparisonTask(
        documents, texts, [probe.text for probe in probes], None, [str(probe.position) for probe in probes]
    )


def measured(
    encoder: Encoder, task: ComparisonTask, bm25: Bm25, report: Callable[[int, int], None]
) -> dict[str, Any]:
    """Return nDCG@10 of each query by words, vectors and both, and documents a second; from this machine's
    store if known.
    """
    qrels = task.proof.qrels if task.proof else None
    key = fingerprint([encoder.fingerprint, task.texts, task.queries, task.answers, qrels, EVENING])
    remembered: dict[str, Any] | None = known_in(FILE).get(key)
    if remembered is not None:
        return remembered
    started = time.monotonic()
    vectors = encode_in_parts(encoder, task.texts, encoder.max_tokens, report)
    seconds = time.monotonic() - started
    rankings: Rankings = rank_vectors(encoder, vectors, task.queries, bm25, task.texts)
    lists = {"lexical": rankings.lexical, "dense": rankings.dense, "hybrid": rankings.fused}
    scores: dict[str, Any] = {name: task.values(ranked).round(6).tolist() for name, ranked in lists.items()}
    scores["documents_per_second"] = len(task.texts) / max(seconds, 1e-9)
    remember_newest(FILE, key, scores, MOST_KEPT)
    return scores
