"""Calibrates the confidence of an index's hits without labels, by the scores of unanswerable queries."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from shlex import quote
from statistics import mean, median
from typing import Any

import numpy as np

from ..cluster.connection import Cluster
from ..cluster.destinations import resolve, write_record
from ..cluster.field_values import text_of
from ..cluster.reading import sample_documents
from ..cluster.record import IndexInfo
from ..cluster.record_parts import Calibrated, Cosines
from ..encoders.contract import Encoder
from ..errors import HybridrError
from ..evaluation.evaluation import judged_queries
from ..indexing.recipe import COMPARED, TextRecipe, measured_cosines
from ..languages import has_visible_text, middle_words
from ..records import Hit, Progress, Qrels, Query, Reported, silent
from ..search.answers import Answers, comparison_obstacle, lowest_accepted_score, scoring_fingerprint
from ..search.calibration import is_reference
from ..search.checks import encoder_for
from ..search.retrieval import first_score
from ..search.search import BATCH, Search
from ..search.settings import SearchSettings

SEARCHED_QUERIES, MIN_QUERIES = 400, 40
"""Unanswerable queries that are searched, and the fewest usable ones that measure a share of 5 %."""
EXCERPTS, MAX_EXCERPT = 100, 200
"""Documents whose own words are searched, and the characters of each such query. An unanswerable query
that scores at least their median may have an answer in the index, and is not used (chosen on three
collections, docs/measured/answers.md)."""
CONFIDENCES, EXAMINED_HITS = (0.8, 0.9, 0.95, 0.99), 10
"""Confidences that are tried on judged queries, and the number of hits examined."""
GRID = np.linspace(0, 1, 101)
ENGLISH = "en"
DRAWS, THINGS = 13, 2 / 3
"""Seed of the drawn queries, and the share of those about things rather than deeds."""
OF_THINGS = (
    "{}",
    "what is known about {}",
    "{} explained",
    "why do people worry about {}",
    "who first wrote about {}",
    "the effect of {} on prices",
    "how much do {} cost",
    "which is better, {} or {}",
    "{} {}",
    "is there a link between {} and {}",
    "when did {} begin",
    "{} increase the risk of {}",
    "I am looking for material on {}, how it is measured, and how it compares with {}",
    "what methods are there to study {} and what were the results of experiments with {}",
)
OF_DEEDS = (
    "{}",
    "how to {}",
    "how do I {}",
    "what is the best way to {}",
    "can I {} by myself",
    "{} step by step",
    "do I need a licence to {}",
    "what do I need before I {} for the first time, and what goes wrong most often",
)


@cache
def words_by_subject() -> dict[str, tuple[list[str], list[str]]]:
    """Return the words of each subject: the things that people ask about, and what they do."""
    text = resources.files(__package__).joinpath("unanswerable_queries.txt").read_text(encoding="utf-8")
    by_subject = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            subject, _, words = line.partition(" = ")
            things, _, deeds = words.partition(" | ")
            by_subject[subject] = (things.split(", "), deeds.split(", "))
    return by_subject


@cache
def unanswerable_queries(number: int) -> list[str]:
    """Return this number of different queries, spread evenly over the subjects; some thousands exist."""
    draw, queries = random.Random(DRAWS), dict[str, None]()
    while len(queries) < number:
        for things, deeds in words_by_subject().values():
            of_things = draw.random() < THINGS
            form, words = (draw.choice(OF_THINGS), things) if of_things else (draw.choice(OF_DEEDS), deeds)
            queries[form.format(*draw.sample(words, form.count("{}")))] = None
    return draw.sample(list(queries), number)


@dataclass(frozen=True)
class ThresholdCost:
    """The cost of requiring a confidence, measured on judged queries.

    `kept` is the share of queries with a relevant document among the first ten hits that still return it.
    `false_answers` is the share of queries without a relevant document that still get hits.
    """

    at_least: float
    kept: float
    false_answers: float


@dataclass(frozen=True)
class Calibration(Reported):
    """The calibration of an index; without `answers` the `note` says why, and searches give no confidence.

    `costs` are measured on judged queries, if some of them have no relevant document.
    """

    index: str
    answers: Calibrated | None
    note: str = ""
    costs: tuple[ThresholdCost, ...] = ()

    @property
    def described(self) -> str:
        """Return the calibration in one line."""
        if self.answers is None:
            return f"none, and hits get no confidence: {self.note}"
        remark = f" ({self.answers.answered} more may have one)" if self.answers.answered else ""
        scores = self.answers.scores
        return (
            f"a hit that scores {scores[-6]:.3f} has .95, one of {scores[-2]:.3f} has .99; measured with "
            f"{self.answers.queries} queries that have no answer here{remark}"
        )


def calibrate(
    cluster: Cluster,
    name: str,
    encoder: Path | Encoder | None = None,
    *,
    search: SearchSettings | None = None,
    judgements: tuple[Sequence[Query], Qrels] | None = None,
    unchanged: bool = False,
    progress: Progress = silent,
) -> Calibration:
    """Measure how likely a score of an index means an answer, and store the calibration in its record.

    Two distributions are measured: the encoder's cosines, if unknown, and the best scores of unanswerable
    queries, from which searches with these settings compute the confidence of hits. Nothing is written
    through a filtered alias. Errors of the cluster or index are returned as the note, because searches work
    without a calibration.

    `judgements`: queries and qrels by which the cost of each confidence is measured too.
    `unchanged`: keep an earlier calibration if the number of documents and the ranking are the same.
    """
    try:
        info = resolve(cluster, name, whole_index=True)
        encoder = encoder_for(info, encoder, progress=progress)
        cosines = measure_missing_cosines(cluster, info, encoder, progress)
        changes: dict[str, Any] = {} if cosines is None else {"cosines": cosines}
        info = info.with_record(info.record.changed(**changes))
        settings = (search or SearchSettings()).model_copy(update={"at_least": 0.0})
        measured_search = Search(cluster, info, encoder, settings=settings)
        note = comparison_obstacle(measured_search.context)
        if unchanged and not note and (answers := info.record.answers):
            ranking = scoring_fingerprint(measured_search.context, measured_search.reordering.names)
            if answers.ranking == ranking and answers.documents == cluster.count(info.name):
                return Calibration(info.name, answers)
        answers = None if note else calibrate_search(measured_search, progress)
        if answers and answers.queries < MIN_QUERIES:
            note, answers = f"{answers.queries} queries are too few, {MIN_QUERIES} are needed", None
        if answers:
            changes["answers"] = answers
        if changes:
            write_record(cluster, info.name, **changes)
        if answers is None:
            return Calibration(info.name, None, note)
        costs = measure_threshold_costs(measured_search, Answers(answers), *judgements) if judgements else ()
        return Calibration(info.name, answers, costs=costs)
    except HybridrError as error:
        return Calibration(name, None, f"{error.message}; after that run hybridr tune {quote(name)}")


def measure_missing_cosines(
    cluster: Cluster, info: IndexInfo, encoder: Encoder, progress: Progress
) -> Cosines | None:
    """Return the distribution of an encoder's cosines on an index, measured on some of its documents, by
    their stored vectors if each has one vector of floats.

    None if it is known, cannot be measured, or is not needed because the packaged encoder defines the scale.
    """
    record = info.record
    if record.cosines is not None or record.encoder != encoder.fingerprint or is_reference(encoder):
        return None
    progress("calibrate", 0, None)
    recipe = TextRecipe.of(record, encoder)
    bodies = sample_texts(cluster, info, recipe, record.vector_field)
    stored = [body.get(record.vector_field) for body in bodies.values()]
    if recipe.windows or record.vectors == "byte" or not all(stored):
        return recipe.cosines(list(bodies), progress)
    return measured_cosines(encoder, list(bodies), np.array(stored, np.float32), progress=progress)


def sample_texts(
    cluster: Cluster, info: IndexInfo, recipe: TextRecipe, *fields: str
) -> dict[str, dict[str, Any]]:
    """Return text -> `_source` of sampled documents that have text, with these further `fields`."""
    documents = sample_documents(cluster, info, COMPARED, fields=(*recipe.text_fields, *fields))
    bodies = {recipe.text_of(document.source): document.source for document in documents}
    return {text: body for text, body in bodies.items() if text.strip()}


def calibrate_search(search: Search, progress: Progress = silent) -> Calibrated:
    """Return the calibration of a search: the distribution of the best scores of unanswerable queries."""
    excerpts = {}  # a few words from the middle of some documents: document id -> text
    fields = search.info.record.fields
    for document in sample_documents(search.cluster, search.info, EXCERPTS, fields=fields):
        text = middle_words(text_of(document.source, fields))[:MAX_EXCERPT].strip()
        if has_visible_text(text):
            excerpts[document.doc_id] = text
    if search.info.record.language in (None, ENGLISH):
        scores = fetch_best_hit_scores(search, unanswerable_queries(SEARCHED_QUERIES), progress)
        limit = median(fetch_best_hit_scores(search, list(excerpts.values()), progress) or [math.inf])
        lower = [score for score in scores if score < limit]
    else:  # the list is English; for other languages, words of a document are searched in all others
        scores = []
        for number, (doc_id, text) in enumerate(excerpts.items(), 1):
            hits = search(text, 1, filter={"bool": {"must_not": [{"ids": {"values": [doc_id]}}]}})
            scores.append(hits[0].score if hits else 0.0)
            progress("calibrate", number, len(excerpts))
        lower = scores
    quantiles = np.quantile(lower or [0.0], GRID)
    return Calibrated(
        ranking=scoring_fingerprint(search.context, search.reordering.names),
        scores=tuple(round(float(score_at), 4) for score_at in quantiles),
        queries=len(lower),
        answered=len(scores) - len(lower),
        documents=search.cluster.count(search.info.name),
    )


def fetch_best_hit_scores(search: Search, texts: Sequence[str], progress: Progress = silent) -> list[float]:
    """Return the score of the best hit for each text, 0 without a hit."""
    lists = fetch_reranked_hits(search, texts, 1, progress)
    return [first_score(hit.score for hit in hits) or 0.0 for hits in lists]


def fetch_reranked_hits(
    search: Search, texts: Sequence[str], k: int, progress: Progress = silent
) -> list[list[Hit]]:
    """Return the best `k` hits for each text, re-ranked, without their texts."""
    hits: list[list[Hit]] = []
    for start in range(0, len(texts), BATCH):
        progress("calibrate", start, len(texts))
        depth = max(k, search.settings.depth) if search.reordering.members else k
        questions = search.first_stage_hits(texts[start : start + BATCH], depth)
        hits += [ranking[:k] for ranking in search.reordering.reorder(*questions, time_limited=False)]
    progress("calibrate", len(texts), len(texts))
    return hits


def measure_threshold_costs(
    search: Search, answers: Answers, queries: Sequence[Query], qrels: Qrels
) -> tuple[ThresholdCost, ...]:
    """Return the cost of each confidence; empty unless some judged queries have, and some lack, an answer."""
    with_judgements = judged_queries(queries, qrels)
    lists = fetch_reranked_hits(search, [query.text for query in with_judgements], EXAMINED_HITS)
    relevant = [
        {doc for doc, grade in qrels[query.query_id].items() if grade > 0} for query in with_judgements
    ]
    bests = [first_score(hit.score for hit in hits) or 0.0 for hits in lists]
    firsts = [
        next((hit.score for hit in hits if hit.doc_id in relevant_ids), None)
        for hits, relevant_ids in zip(lists, relevant, strict=True)
    ]
    pairs = [(best, first) for best, first in zip(bests, firsts, strict=True) if first is not None]
    without_answer = [best for best, relevant_ids in zip(bests, relevant, strict=True) if not relevant_ids]
    if not pairs or not without_answer:
        return ()
    return tuple(
        ThresholdCost(
            confidence,
            mean(first >= lowest_accepted_score(best, threshold) for best, first in pairs),
            mean(best >= threshold for best in without_answer),
        )
        for confidence in CONFIDENCES
        for threshold in [answers.threshold(confidence)]
    )
