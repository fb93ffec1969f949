"""The gate: decides whether an adapted encoder may replace the old one.

Without labels it can reject bad encoders, but cannot certify small gains, so it
only vetoes. With thirty judged queries or more, these decide instead. `compare_on_index` compares several
encoders in the same way, by vectors alone and with BM25, as `hybridr search` does without signals.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..cluster.connection import Cluster
from ..cluster.fields import choose_text_fields
from ..cluster.reading import documents_in_pages, sample_documents
from ..cluster.record import Record
from ..cluster.record_parts import Spread
from ..cluster.retrievers.dense import engine_scores
from ..encoders.adapters import DOCUMENT_TOKENS
from ..encoders.contract import Encoder, Vectors
from ..encoders.derived import LEVEL, SHARE_OF_MEAN
from ..errors import DataError, DownloadError, SettingsError
from ..evaluation.evaluation import parse_measure, query_values
from ..evaluation.label_free import (
    RANKING_LOSS,
    SIGNIFICANT,
    BeforeAfter,
    Bm25,
    RankedIds,
    Rankings,
    best_scores,
    compare_kept,
    compare_means,
    compare_overlap,
    compare_own_documents,
    make_probes,
    objections,
    own_document_ndcg,
)
from ..evaluation.significance import BoundedMean, bounded_mean, holm, paired_t
from ..files.local import fingerprint
from ..files.remembered import read_state_file, remember_newest
from ..indexing.recipe import COMPARED, measured_cosines, spread_and_mean
from ..records import Document, Progress, Qrels, Query, silent
from ..search.calibration import OVER_PACKAGED, cosine_scale, is_reference, stored_whitening
from ..search.checks import default_fusion
from ..search.fusions import CandidateLists, Scales
from ..search.fusions.pipeline import ranking
from ..search.settings import SearchSettings
from .corpus import Source, clipped, to_document

Floats: TypeAlias = NDArray[np.float64]
QueriesQrels: TypeAlias = "tuple[list[Query], Qrels]"
CORPUS_CAP = 600  # documents that both encoders encode, including those of the probes
QUERY_CAP = 500  # queries of the user's log
BEST = 100  # candidates of each retriever
MIN_JUDGED, MAX_JUDGED = 30, 500  # queries; fewer tell two encoders apart by chance
DOCUMENTS = 2_000  # that both encoders encode: all judged ones, and others
PAGE = 100
MEASURE = parse_measure("nDCG@10")
OLD, NEW = "gate: old encoder", "gate: new encoder"
SEED = 0  # of all random samples: judged queries, made queries, texts whose cosines are measured


@dataclass(frozen=True)
class GateReport:
    """The comparison of two encoders. The new one may be promoted if there are no reasons for a veto."""

    rows: tuple[BeforeAfter, ...]
    reasons: tuple[str, ...]
    held_out: int
    documents: int
    judged: int = 0
    """Judged queries that decided; 0: those made from documents did."""

    @property
    def passed(self) -> bool:
        """Return whether there is no reason for a veto."""
        return not self.reasons

    def record(self) -> dict[str, Any]:
        """Return the report as JSON values for a manifest."""
        return {"passed": self.passed, **asdict(self)}


def compare_encoders(
    old: Encoder,
    new: Encoder,
    held_out: Sequence[Document],
    others: Sequence[Document],
    *,
    queries: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = silent,
) -> GateReport:
    """Compare two encoders on queries made from `held_out`, and on `queries` from the user's log.

    The corpus is `held_out` filled up with `others` to 600 documents. Vetoes if the dense lists move away
    from BM25's, if the fused lists change too much, or if known documents are found much worse. Its limits
    hold for unchanged query vectors: whitening them changes more of a list than a good encoder does.
    """
    probes, texts = make_probes(held_out, seed)
    texts = [*texts, *(document.contents for document in others[: max(0, CORPUS_CAP - len(texts))])]
    all_queries = [probe.text for probe in probes] + list(queries[:QUERY_CAP])
    bm25 = Bm25(texts)
    old_lists = rank_all(old, texts, all_queries, bm25, partial(progress, OLD), whitened=False)
    new_lists = rank_all(new, texts, all_queries, bm25, partial(progress, NEW), whitened=False)
    probe_numbers = range(len(probes))
    rows = compare_own_documents(
        old_lists.of(probe_numbers), new_lists.of(probe_numbers), [str(probe.position) for probe in probes]
    )
    subset = range(len(probes), len(all_queries)) if queries else probe_numbers
    rows += [row(old_lists.of(subset), new_lists.of(subset)) for row in (compare_overlap, compare_kept)]
    return GateReport(tuple(rows), tuple(objections(rows)), len(held_out), len(texts))


def rank_all(
    encoder: Encoder,
    texts: Sequence[str],
    queries: Sequence[str],
    bm25: Bm25,
    report: Callable[[int, int], None],
    *,
    whitened: bool,
) -> Rankings:
    """Rank every query exactly by BM25, by vectors of 128 tokens, and fused (see `rank_vectors`)."""
    limit = min(DOCUMENT_TOKENS, encoder.max_tokens)
    vectors = encode_in_parts(encoder, texts, limit, report)
    return rank_vectors(encoder, vectors, queries, bm25, texts if whitened else ())


def encode_in_parts(
    encoder: Encoder, texts: Sequence[str], max_tokens: int, report: Callable[[int, int], None]
) -> Vectors:
    """Return the vectors of texts, `(texts, dim)`, reporting progress four times."""
    part, vectors = max(1, -(-len(texts) // 4)), []
    for start in range(0, len(texts), part):
        report(start, len(texts))
        vectors.append(encoder.encode_documents(texts[start : start + part], max_tokens=max_tokens))
    report(len(texts), len(texts))
    return np.concatenate(vectors)


def rank_vectors(
    encoder: Encoder, vectors: Vectors, queries: Sequence[str], bm25: Bm25, texts: Sequence[str] = ()
) -> Rankings:
    """Return exact rankings of every query by BM25, by vectors `(texts, dim)`, and fused as in a search
    without signals.

    With the `texts` of the vectors, fused rankings are those of an index of these texts: by its scale, and
    with queries whitened unless the encoder is the packaged one. Vectors alone rank by unchanged queries.
    """
    query_vectors = encoder.encode_queries(queries)
    dense = whitened = vector_scores(encoder, query_vectors, vectors)
    spread, mean = spread_and_mean(2 * dense - 1)
    cosines: Spread | None = Spread(spread=spread, mean=mean) if spread else None
    if texts and not is_reference(encoder):
        places = list({text: place for place, text in enumerate(texts) if text.strip()}.values())
        sample = random.Random(SEED).sample(places, min(COMPARED, len(places)))  # as a reindex samples
        cosines = sampled = measured_cosines(encoder, [texts[place] for place in sample], vectors[sample])
        if sampled and (whitening := stored_whitening(Record(cosines=sampled, dim=vectors.shape[1]))):
            cosines = sampled.whitened
            whitened = vector_scores(encoder, whitening.apply(query_vectors), vectors)
    settings, scale = SearchSettings(), cosine_scale(encoder, cosines).factor
    kind = default_fusion(settings, Record(similarity=encoder.similarity))
    fusion = kind(settings, (3, 0, 0))  # its scores here do not depend on the version
    word_scores = ((bm25.scores(query) / bm25.gain, bm25.idf_sum(query)) for query in queries)
    lists = [
        candidate_lists(lexical, row, Scales(idf_sum, scale))
        for (lexical, idf_sum), row in zip(word_scores, whitened, strict=True)
    ]
    return Rankings(
        [list(of_query.listed["lexical"]) for of_query in lists],
        [list(best_scores(row, BEST)) for row in dense],
        [ranking(fusion.scores(of_query)) for of_query in lists],
    )


def vector_scores(encoder: Encoder, queries: Vectors, vectors: Vectors) -> Floats:
    """Return the engine's scores of query vectors with the vectors of texts, `(queries, texts)`."""
    return engine_scores(encoder.similarity, (queries @ vectors.T).astype(np.float64))


def candidate_lists(lexical: Floats, dense: Floats, scales: Scales) -> CandidateLists:
    """Return one query's best candidates by words and by vectors; the scores of all texts are `(texts,)`."""
    listed = {"lexical": best_scores(lexical, BEST), "dense": best_scores(dense, BEST)}
    places = {doc: int(doc) for scores in listed.values() for doc in scores}
    word_scores = {doc: float(lexical[place]) for doc, place in places.items() if lexical[place] > 0}
    dense_scores = {doc: float(dense[place]) for doc, place in places.items()}
    return CandidateLists(listed, {"lexical": word_scores, "dense": dense_scores}, scales)


class JudgedSample(NamedTuple):
    """Judged queries, their judgements, and the judged documents."""

    queries: list[Query]
    qrels: Qrels
    documents: list[Document]

    @property
    def decides(self) -> bool:
        """Return whether there are enough judged queries to decide."""
        return len(self.queries) >= MIN_JUDGED

    def filled(self, others: Sequence[Document]) -> list[Document]:
        """Return the judged documents filled up with `others` to 2,000."""
        present = {document.doc_id for document in self.documents}
        more = [document for document in others if document.doc_id not in present]
        return [*self.documents, *more][:DOCUMENTS]


def read_evidence(source: Source, judgements: QueriesQrels, fields: Sequence[str], seed: int) -> JudgedSample:
    """Return a random sample of judged queries with their judged documents.

    At most 500 queries, and 2,000 documents in all. A query is used if all its judged documents fit and a
    relevant one exists. Raises SettingsError for documents that can be read only once.
    """
    if isinstance(source, Iterator):
        raise SettingsError(
            "documents that can be read only once cannot be looked up by judgements",
            hint="give a list, a file or an index",
        )
    queries, qrels = judgements
    order = random.Random(seed).sample(queries, len(queries))
    doc_ids: dict[str, None] = {}
    for query in order[:MAX_JUDGED]:
        more = [doc_id for doc_id in qrels.get(query.query_id, {}) if doc_id not in doc_ids]
        if len(doc_ids) + len(more) <= DOCUMENTS:
            doc_ids.update(dict.fromkeys(more))
    if isinstance(source, tuple):
        cluster, index = source
        info = cluster.index_info(index)
        text_fields = choose_text_fields(cluster, info, fields)
        pages = documents_in_pages(cluster, info, list(doc_ids), page=PAGE)
        entries = (entry for page in pages for entry in page)
        documents = [clipped(to_document(entry.doc_id, entry.source, text_fields)) for entry in entries]
    else:
        documents = [clipped(document) for document in source if document.doc_id in doc_ids]
    present = {document.doc_id for document in documents}
    usable = []
    for query in order[:MAX_JUDGED]:
        grades = qrels.get(query.query_id, {})
        relevant = {doc_id for doc_id, grade in grades.items() if grade > 0}
        if relevant & present and all(doc_id in doc_ids for doc_id in grades):
            usable.append(query)
    return JudgedSample(usable, {query.query_id: qrels[query.query_id] for query in usable}, documents)


def compare_on_judged(
    old: Encoder,
    new: Encoder,
    evidence: JudgedSample,
    others: Sequence[Document],
    progress: Progress = silent,
) -> GateReport:
    """Compare two encoders on judged queries; the new one passes if its hybrid ranking is significantly
    better (p < .05).

    The corpus is the judged documents, filled up with `others` to 2,000, ranked as an index of these by
    the defaults.
    """
    filled = evidence.filled(others)
    texts = [document.contents for document in filled]
    query_texts = [query.text for query in evidence.queries]
    bm25 = Bm25(texts)
    old_rankings = rank_all(old, texts, query_texts, bm25, partial(progress, OLD), whitened=True)
    new_rankings = rank_all(new, texts, query_texts, bm25, partial(progress, NEW), whitened=True)
    rows = []
    for name, *sides in (
        ("dense", old_rankings.dense, new_rankings.dense),
        ("hybrid", old_rankings.fused, new_rankings.fused),
    ):
        values = [judged_values(rankings, evidence, filled) for rankings in sides]
        rows.append(compare_means(f"{name} {MEASURE}, judged", *values))
    hybrid = rows[-1]
    objection = (
        f"{hybrid.name}: {hybrid.old:.4f} before, {hybrid.new:.4f} after, p {hybrid.p:.2g}: no gain is shown"
    )
    reasons = () if hybrid.new > hybrid.old and hybrid.p < SIGNIFICANT else (objection,)
    return GateReport(tuple(rows), reasons, 0, len(filled), judged=len(evidence.queries))


def judged_values(
    rankings: Sequence[RankedIds], evidence: JudgedSample, documents: Sequence[Document]
) -> Floats:
    """Return nDCG@10 of each judged query `(queries,)`; rankings hold positions in `documents`."""
    run = {
        query.query_id: {documents[int(place)].doc_id: -float(rank) for rank, place in enumerate(ranking)}
        for query, ranking in zip(evidence.queries, rankings, strict=True)
    }
    (values,) = query_values(run, evidence.qrels, [MEASURE], list(evidence.qrels)).values()
    return np.array([values[query.query_id] for query in evidence.queries])


QUERY_DOCUMENTS = 300  # documents that queries are made from
MIN_PROBES = 30  # queries
FILE, MAX_STORED = "comparisons.json", 50
BYTES = 4  # of a component of a vector
RANKING = (LEVEL, SHARE_OF_MEAN, OVER_PACKAGED)  # results measured with other settings are not reused


@dataclass(frozen=True)
class EncoderResult:
    """The quality of one encoder on the sample, and its cost for the whole index.

    `dense` and `hybrid` are nDCG@10, 0 to 1, by vectors alone and with BM25.
    """

    name: str
    dense: BoundedMean
    hybrid: BoundedMean
    p: float
    """p of the paired t-test of its hybrid against the best one, after Holm; 1 for the best itself."""
    behind: bool
    """Whether it is significantly worse than the best one."""
    documents_per_second: float
    seconds: float
    """Seconds to encode all documents of the index on this machine."""
    vector_bytes: int
    """Bytes of all documents' vectors, as fp32."""


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
    """Documents, their texts without the sentences that became queries, and queries with their answers."""

    documents: Sequence[Document]
    texts: list[str]
    queries: list[str]
    evidence: JudgedSample | None
    answers: list[str]
    """Position of the document that each made query was taken from."""

    def values(self, rankings: Sequence[RankedIds]) -> Floats:
        """Return nDCG@10 of each query, `(queries,)`."""
        if self.evidence is None:
            return own_document_ndcg(rankings, self.answers)
        return judged_values(rankings, self.evidence, self.documents)


def compare_on_index(
    cluster: Cluster,
    index: str,
    encoders: Mapping[str, Encoder],
    judgements: QueriesQrels | None = None,
    *,
    fields: Sequence[str] = (),
    progress: Progress = silent,
) -> EncoderComparison:
    """Compare encoders, given by name, on 2,000 documents of an index.

    With 30 judged queries or more, whose documents are all in the sample, these decide; else queries made
    from documents. Made queries share more words with their document than people's, so a difference below
    .05 means nothing. Results are stored on this machine and reused for the same sample and queries.
    Raises DataError if fewer than 30 queries can be made.
    """
    info = cluster.index_info(index)
    text_fields = choose_text_fields(cluster, info, fields)
    progress("read documents", 0, DOCUMENTS)
    sample = sample_documents(cluster, info, DOCUMENTS, fields=text_fields)
    others = [clipped(to_document(document.doc_id, document.source, text_fields)) for document in sample]
    evidence = read_evidence((cluster, index), judgements, fields, SEED) if judgements else None
    task = comparison_task(others, evidence if evidence and evidence.decides else None, SEED)
    progress("read documents", len(task.documents), len(task.documents))
    bm25 = Bm25(task.texts)
    scores = {
        name: measure_encoder(encoder, task, bm25, partial(progress, f"encoder {name}"))
        for name, encoder in encoders.items()
    }
    count = cluster.count(info)
    sizes = {name: count * encoder.dim * BYTES for name, encoder in encoders.items()}
    return EncoderComparison(
        index,
        count,
        sampled=len(task.documents),
        queries=len(task.queries),
        judged=task.evidence is not None,
        words=bounded_mean(next(iter(scores.values()))["lexical"]),
        encoders=encoder_results(scores, sizes, count, 0.0 if task.evidence else RANKING_LOSS),
    )


def encoder_results(
    scores: Mapping[str, Mapping[str, Any]], sizes: Mapping[str, int], document_count: int, margin: float
) -> tuple[EncoderResult, ...]:
    """Return the results of the encoders, best mean hybrid score first.

    An encoder is `behind` if it is worse than the best by more than `margin`, and significantly so: paired
    t-test, Holm-corrected.
    """
    values = {name: np.array(columns["hybrid"]) for name, columns in scores.items()}
    order = sorted(values, key=lambda name: -values[name].mean())
    differences = np.column_stack([values[name] - values[order[0]] for name in order])
    p_values = np.array([1.0, *holm(paired_t(differences[:, 1:]))] if len(order) > 1 else [1.0])
    behind = (p_values < SIGNIFICANT) & (-differences.mean(axis=0) > margin)
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


def comparison_task(sample: Sequence[Document], evidence: JudgedSample | None, seed: int) -> ComparisonTask:
    """Return the judged queries, else queries made from documents. Raises DataError for fewer than 30."""
    documents = list(
        {document.contents: document for document in sample if document.contents.strip()}.values()
    )
    if evidence is not None:
        filled = evidence.filled(documents)
        texts = [document.contents for document in filled]
        return ComparisonTask(filled, texts, [query.text for query in evidence.queries], evidence, [])
    random.Random(seed).shuffle(documents)
    probes, texts = make_probes(documents[:QUERY_DOCUMENTS], seed)
    if len(probes) < MIN_PROBES:
        raise DataError(
            f"{len(documents):,} different texts give {len(probes)} queries; {MIN_PROBES} are needed",
            hint=f"--beir FOLDER with {MIN_JUDGED} judged queries or more",
        )
    texts += [document.contents for document in documents[len(texts) :]]
    return ComparisonTask(
        documents, texts, [probe.text for probe in probes], None, [str(probe.position) for probe in probes]
    )


def measure_encoder(
    encoder: Encoder, task: ComparisonTask, bm25: Bm25, report: Callable[[int, int], None]
) -> dict[str, Any]:
    """Return nDCG@10 of each query by words, vectors and both, and documents a second; from this machine's
    store if known.
    """
    qrels = task.evidence.qrels if task.evidence else None
    key = fingerprint([encoder.fingerprint, task.texts, task.queries, task.answers, qrels, RANKING])
    if isinstance(stored := read_state_file(FILE).get(key), dict):
        return stored
    started = time.monotonic()
    vectors = encode_in_parts(encoder, task.texts, encoder.max_tokens, report)
    seconds = time.monotonic() - started
    rankings: Rankings = rank_vectors(encoder, vectors, task.queries, bm25, task.texts)
    lists = {"lexical": rankings.lexical, "dense": rankings.dense, "hybrid": rankings.fused}
    scores: dict[str, Any] = {name: task.values(ranked).round(6).tolist() for name, ranked in lists.items()}
    scores["documents_per_second"] = len(task.texts) / max(seconds, 1e-9)
    with suppress(DownloadError):  # else it is measured again next time
        remember_newest(FILE, key, scores, MAX_STORED)
    return scores
