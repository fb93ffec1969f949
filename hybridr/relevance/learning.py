"""Learns relevant documents of past queries, so that similar queries find them again.

Nothing is trained and no document is written: see `search/past_queries.py` for what is stored. The effect is
measured beforehand: each judged query is searched as if it were new, with all others as past queries. `again`
is the gain if needs return as often as among the judged queries. `new` is the gain for new needs: no past
query may share a relevant document. Judgements cannot tell which of the two resembles the traffic.
"""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cluster.aliases import resolve_complete
from ..cluster.connection import Cluster, drop_index, path_of
from ..cluster.destinations import Change, event_change, resolve, rewrite
from ..cluster.record import Event, IndexInfo, Record
from ..cluster.record_parts import Remembered
from ..cluster.retrievers.dense import to_stored_values
from ..cluster.writing import Action, MemoryRejects, bulk_action, write_past_pipelines
from ..encoders.contract import Encoder, Vectors
from ..errors import DataError, SettingsError
from ..evaluation.evaluation import checked_qrels, judged_queries
from ..evaluation.significance import BoundedMean, bounded_mean
from ..families import load_member
from ..records import Progress, Qrels, Query, Reported, silent
from ..search.calibration import MAX_LIKENESS, likeness_threshold
from ..search.checks import encoder_for
from ..search.past_queries import (
    NEAREST,
    PAST_VECTORS,
    PastQuery,
    Relevant,
    current_memory,
    document_credits,
    drop_memories,
    fetch_text_stamps,
    find_past_queries,
    list_memories,
    memory_body,
    memory_name,
    most_relevant,
    query_vectors,
    stored_past_query,
)
from ..search.search import Search
from ..search.signals import FAMILY
from ..search.signals.memory import SAME
from ..search.systems import check_collection
from .judgement import QueryCandidates, fetch_candidates, measure_scores

MAX_TRIED_QUERIES = 1_000
DRAW_SEED = 13
MEASURE = "nDCG@10"
MIN_SAME_NEED, DOUBT = 0.2, 3.0
"""Smallest accepted share of similar pairs that have the same need, and the number of such pairs assumed
before any is seen."""


@dataclass(frozen=True)
class Rehearsal:
    """The effect of learnt queries on a measure: its mean `before`, and the mean changes `again` and `new`.

    `returning` counts queries that share a relevant document with another judged query.
    """

    asked: int
    returning: int
    measure: str
    before: float
    again: BoundedMean
    new: BoundedMean

    @property
    def advice(self) -> list[str]:
        """Return lines on what was tried and what a gain would need; empty if a gain is certain."""
        if self.again.low > 0:
            return []
        lines = [
            f"no gain is certain: {self.asked:,} judged queries were each asked with the memory of the others"
        ]
        if not self.returning:
            lines.append(
                "no two of them share a relevant document: a memory helps needs that return; judge more "
                "queries of your log (hybridr clicks), or the same needs in other words"
            )
        elif self.again.mean > 0:
            needed = math.ceil(self.asked * ((self.again.mean - self.again.low) / self.again.mean) ** 2)
            lines.append(f"the mean gain is above 0: about {needed:,} such queries would make it certain")
        else:
            lines.append(
                f"{self.returning:,} share a relevant document, and are ranked as well without a memory; it "
                "helps where users word a need differently from the texts"
            )
        return lines


def rehearse(
    search: Search,
    queries: Sequence[Query],
    relevant: Mapping[str, Sequence[Relevant]],
    qrels: Qrels,
    threshold: float,
    progress: Progress,
) -> Rehearsal:
    """Measure judged queries, at most 1,000, each with the credits of all others whose cosine reaches the
    threshold.
    """
    encoder = search.encoder
    assert encoder is not None
    needs = need_numbers([[doc.doc_id for doc in relevant[query.query_id]] for query in queries])
    vectors = query_vectors(encoder, [query.text for query in queries])
    sample = np.sort(np.random.default_rng(DRAW_SEED).permutation(len(queries))[:MAX_TRIED_QUERIES])
    places = {queries[place].query_id: int(place) for place in sample}
    plain, weight = without_memory(search), load_member(FAMILY, "memory").weight

    def score(answer: QueryCandidates) -> NDArray[np.float64]:
        """Return three scores of each candidate of a query `(3, n)`: without other queries' credits, with
        them, and with those of queries that share no relevant document.
        """
        plain_scores = plain.context.fusion.scores(answer.lists)
        documents = answer.lists.documents
        rows = [np.array([plain_scores.get(doc, np.nan) for doc in documents])]
        place = places[answer.query.query_id]
        for left_out in (place, needs == needs[place]):
            cosines = vectors @ vectors[place]
            cosines[left_out] = -1.0
            past = [
                PastQuery(float(cosines[similar]), relevant[queries[similar].query_id])
                for similar in np.argsort(-cosines)[:NEAREST]
            ]
            credits = {doc: credit.score for doc, credit in document_credits(past, threshold).items()}
            rows.append(rows[0] + weight * np.array([credits.get(doc, 0.0) for doc in documents]))
        return np.array(rows)

    answers = fetch_candidates(plain, [queries[place] for place in sample], progress)
    values = measure_scores(answers, qrels, MEASURE, score)  # (queries, 3)
    gains = [bounded_mean(values[:, row] - values[:, 0]) for row in (1, 2)]
    counts = np.bincount(needs)
    return Rehearsal(
        len(answers), int((counts[needs[sample]] > 1).sum()), MEASURE, float(values[:, 0].mean()), *gains
    )


def without_memory(search: Search) -> Search:
    """Return the same search without learnt signals, which must not be used to judge."""
    if not any(signal.learnt for signal in search.signals.members.values()):
        return search
    names = tuple(name for name, signal in search.signals.members.items() if not signal.learnt)
    settings = search.settings.model_copy(update={"signals": names or ("none",)})
    return Search(search.cluster, search.info, search.encoder, settings=settings)


def similarity_threshold(vectors: Vectors, needs: NDArray[np.int64], usual: float) -> float:
    """Return the least cosine at which two judged queries count as similar; `vectors` are those of the
    queries, `(n, dim)` of length 1.

    That is `usual`, or a higher cosine above which at least one pair in five has the same need. If no pair
    has the same need, as with commands that differ by one word, similar vectors say nothing.
    """
    pairs = np.triu_indices(len(vectors), 1)
    cosines, same_need = (vectors @ vectors.T)[pairs], (needs[:, None] == needs)[pairs]
    similar = np.flatnonzero(cosines >= usual)
    similar = similar[np.argsort(-cosines[similar], kind="stable")]
    shares = (np.cumsum(same_need[similar]) + DOUBT) / (np.arange(len(similar)) + 1 + DOUBT)
    accepted = np.flatnonzero(shares >= MIN_SAME_NEED)
    if not len(similar) or accepted[-1] == len(similar) - 1:
        return usual
    return float(min(MAX_LIKENESS, cosines[similar[accepted[-1]]]))


def need_numbers(documents: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """Return the need `(n,)` of each query; queries that share documents, also through others, share it."""
    needs: dict[str, int] = {}
    leads = list(range(len(documents)))

    def root(number: int) -> int:
        """Return the number of the query that stands for a group of connected ones (union-find)."""
        while leads[number] != number:
            leads[number] = number = leads[leads[number]]
        return number

    for number, doc_ids in enumerate(documents):
        for doc in doc_ids:
            leads[root(number)] = root(needs.setdefault(doc, number))
    return np.array([root(number) for number in range(len(documents))], dtype=np.int64)


WRITE_BATCH, COMPARED = 64, 2_000  # queries
MAX_LOOKED_UP, LOOKUP_BATCH = 2_000, 200  # queries


@dataclass(frozen=True)
class LearnResult(Reported):
    """Result (or preview in a dry run) of learning: the number of queries and of their relevant documents.

    `memory` is the hidden index that holds them, None in a dry run. `unused` counts judged queries without a
    relevant document in the index. Queries with a cosine of `least` or more count as similar. `rehearsal` is
    what a dry run measured.
    """

    index: str
    memory: str | None
    queries: int
    documents: int
    unused: int
    least: float
    rehearsal: Rehearsal | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        rehearsal = self.rehearsal and {**asdict(self.rehearsal), "advice": self.rehearsal.advice}
        return {**super().to_json(), "rehearsal": rehearsal}


def learn(
    cluster: Cluster,
    name: str,
    judgements: tuple[Sequence[Query], Qrels],
    *,
    encoder: Path | Encoder | None = None,
    dry_run: bool = False,
    progress: Progress = silent,
) -> LearnResult:
    """Store the judged queries beside an index with vectors, replacing those learnt before.

    Searches then credit their relevant documents. `dry_run` writes nothing and measures the effect. Raises
    DataError without vectors or relevant documents, ClusterError through a filtered alias, SettingsError if
    the index's fusion takes no signals, AccessDenied.
    """
    info = resolve_complete(cluster, name)
    queries, qrels = judged_queries(*judgements), checked_qrels(judgements[1])
    check_collection(cluster, info, qrels)
    encoder = encoder_for(info, encoder, progress=progress)
    search = Search(cluster, info, encoder)
    if not search.context.fusion.takes_signals:
        raise SettingsError(
            f"the fusion '{search.fusion}' of '{info.name}' does not add signals to scores",
            hint=f"hybridr tune {quote(name)} --reset",
        )
    top = max((grade for query in queries for grade in qrels[query.query_id].values()), default=0)
    graded = {query.query_id: most_relevant(qrels[query.query_id]) for query in queries}
    doc_ids = sorted({doc for documents in graded.values() for doc, _ in documents})
    stamps = fetch_text_stamps(
        cluster, info, info.record.fields, doc_ids
    )  # only of documents that the index has
    relevant = {
        query_id: [Relevant(doc, grade / top, stamps[doc]) for doc, grade in documents if doc in stamps]
        for query_id, documents in graded.items()
    }
    usable = [query for query in queries if query.text.strip() and relevant.get(query.query_id)]
    if not usable:
        raise DataError("no judged query has a relevant document", hint="grades above 0 are relevant")
    documents = {doc.doc_id for documents in relevant.values() for doc in documents}
    unused = len(queries) - len(usable)
    sample = random.Random(DRAW_SEED).sample(usable, min(COMPARED, len(usable)))
    needs = need_numbers([[doc.doc_id for doc in relevant[query.query_id]] for query in sample])
    vectors = query_vectors(encoder, [query.text for query in sample])
    threshold = similarity_threshold(vectors, needs, likeness_threshold(encoder))
    learning = LearnResult(info.name, None, len(usable), len(documents), unused, threshold)
    if dry_run:
        return replace(learning, rehearsal=rehearse(search, usable, relevant, qrels, threshold, progress))
    return replace(learning, memory=write_memory(search, usable, relevant, threshold, progress))


def write_memory(
    search: Search,
    queries: Sequence[Query],
    relevant: Mapping[str, Sequence[Relevant]],
    threshold: float,
    progress: Progress,
) -> str:
    """Write past queries into a new hidden index, name it in the record, delete the former ones; return its
    name.

    Until then searches use what was learnt before. Raises DataError, without the new index, if the cluster
    did not take all queries, or another command learnt or forgot meanwhile.
    """
    cluster, info, encoder = search.cluster, search.info, search.encoder
    assert encoder is not None
    job, rejects, count = secrets.token_hex(4), MemoryRejects(), 0
    memory = memory_name(info.name, job)
    cluster.request("PUT", path_of(memory), memory_body(encoder.dim, cluster.version))
    created = cluster.index_info(memory)

    def actions() -> Iterator[Action]:
        """Yield the actions that write each query's vector with its relevant documents."""
        for start in range(0, len(queries), WRITE_BATCH):
            batch = queries[start : start + WRITE_BATCH]
            vectors = to_stored_values(
                query_vectors(encoder, [query.text for query in batch]), PAST_VECTORS.vectors
            )
            for number, (query, vector) in enumerate(zip(batch, vectors, strict=True), start):
                if vector.any():  # a query without a vector is like no other
                    yield bulk_action(
                        "index", str(number), stored_past_query(vector, relevant[query.query_id])
                    )

    try:
        for outcome in write_past_pipelines(cluster, memory, actions(), rejects):
            count += outcome.written
            progress("learn", count, len(queries))
        require_unchanged(cluster, created)
        if lines := rejects.take_lines():
            raise DataError(f"'{memory}' took {count} of {len(queries)} queries: {lines[0][:300]}")
        cluster.refresh(memory)
        remembered = Remembered(queries=count, encoder=info.record.encoder, job=job, least=threshold)
        info = replace_values(cluster, info, "learnt", {"queries": count}, memory=remembered)
        require_unchanged(cluster, created)
    except DataError:
        drop_index(cluster, memory)
        if info.record.memory is not None and info.record.memory.job == job:
            rewrite(cluster, info.name, without_job(job), settled=True)
        raise
    experiment = info.record.experiment
    memories = [experiment.a.memory, experiment.b.memory, experiment.before.memory] if experiment else []
    jobs = {side.job for side in memories if side is not None}
    drop_memories(cluster, info.name, keep={memory, *(memory_name(info.name, job) for job in jobs)})
    return memory


def replace_values(
    cluster: Cluster, info: IndexInfo, event: Event, details: dict[str, Any], **changes: Any
) -> IndexInfo:
    """Change values of an index's record, with an event in its history; return the new description.

    Raises DataError if another command changed these values since `info` was read: its result stays.
    """
    original = {name: getattr(info.record, name) for name in changes}

    def change(record: Record) -> Record:
        """Return the record with the changes. Raises DataError if another command changed it."""
        current = {name: getattr(record, name) for name in changes}
        if current == changes != original:  # an earlier attempt wrote it, but its answer was lost
            return record
        if current != original:
            raise DataError(
                f"another command changed the {' and '.join(changes)} of '{info.name}' meanwhile; its result "
                "is kept",
                hint="run the same command again, if yours is to replace it",
            )
        return event_change(event, details, **changes)(record)

    return rewrite(cluster, info.name, change, settled=True)


def require_unchanged(cluster: Cluster, created: IndexInfo) -> None:
    """Raise DataError if a hidden index was deleted since it was created; a write may have re-created it."""
    if [info.uuid for info in cluster.indices(created.name)] != [created.uuid]:
        raise DataError(
            f"another command forgot or learnt meanwhile, and deleted '{created.name}'",
            hint="run the same command again to learn its queries",
        )


def without_job(job: str) -> Change:
    """Return a function that returns a record without the memory of this job."""
    return lambda record: (
        record.changed(memory=None) if record.memory is not None and record.memory.job == job else record
    )


@dataclass(frozen=True)
class Forgetting(Reported):
    """Result (or preview in a dry run) of forgetting: the hidden index, None if there was none."""

    index: str
    memory: str | None


def unlearn(cluster: Cluster, name: str, *, dry_run: bool = False) -> Forgetting:
    """Delete what an index has learnt. Raises as `learn`, and DataError while an experiment uses it."""
    info = resolve(cluster, name, whole_index=True)
    memories = list_memories(cluster, info.name)

    def forget(record: Record) -> Record:
        """Return the record without memory, and with the event. Raises DataError for an experiment by it."""
        experiment = record.experiment
        if experiment and not experiment.ended and (experiment.a.memory or experiment.b.memory):
            raise DataError(
                f"an experiment of '{info.name}' compares a ranking by what was learnt: "
                f"{experiment.names[0]} against {experiment.names[1]}",
                hint=f"hybridr experiment stop {quote(name)}",
            )
        changes: dict[str, Any] = {"memory": None}
        if experiment and experiment.ended in ("a", "b"):  # undoing the promotion must not name what is gone
            before = experiment.before.model_copy(update={"memory": None})
            changes["experiment"] = experiment.model_copy(update={"before": before})
        return event_change("forgotten", {}, **changes)(record)

    forget(info.record)
    if info.record.memory is not None:
        memories = [current_memory(info), *memories]
    if not memories:
        return Forgetting(info.name, None)
    if not dry_run:
        rewrite(cluster, info.name, forget, settled=True)
        drop_memories(cluster, info.name)
    return Forgetting(info.name, memories[0])


@dataclass(frozen=True)
class Changes(Reported):
    """Differences of judged queries from the `learnt` ones, for a random sample of `compared` queries.

    `same` were learnt with the same relevant documents, `others` with different ones, `new` not at all.
    """

    learnt: int
    compared: int
    same: int
    others: int
    new: int


def compare_with_learnt(
    cluster: Cluster, name: str, judgements: tuple[Sequence[Query], Qrels]
) -> Changes | None:
    """Compare judged queries with those that an index has learnt; None if it has learnt nothing.

    Raises NotFound, ModelError if its encoder is missing.
    """
    info = resolve(cluster, name)
    if not info.record.remembers or info.record.memory is None:
        return None
    encoder, qrels = encoder_for(info, None), judgements[1]
    queries = judged_queries(*judgements)
    sample = random.Random(DRAW_SEED).sample(queries, min(MAX_LOOKED_UP, len(queries)))
    texts, learnt = [query.text for query in sample], dict[str, list[set[str]]]()
    for start in range(0, len(texts), LOOKUP_BATCH):
        part = texts[start : start + LOOKUP_BATCH]
        for text, similar in find_past_queries(
            cluster, info, part, query_vectors(encoder, part), SAME
        ).items():
            if similar:  # the relevant documents of each time that it was learnt
                learnt[text] = [{doc.doc_id for doc in past.relevant} for past in similar]
    pairs = [
        (learnt.get(query.text, []), {doc for doc, _ in most_relevant(qrels[query.query_id])})
        for query in sample
    ]
    unchanged = sum(judged_ids in learnt_ids for learnt_ids, judged_ids in pairs)
    new = sum(not learnt_ids for learnt_ids, _ in pairs)
    others = len(sample) - unchanged - new
    return Changes(info.record.memory.queries, len(sample), unchanged, others, new)
