"""Re-ranker by a cross-encoder: an exported model reads query and document together, and its score is added.

The logit is scaled to the spread of the packaged encoder's cosines, measured on documents of the index. It
counts from the lowest of the list. A hit that was not read in time counts as the lowest and keeps its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ...cluster.field_values import text_of
from ...cluster.fields import choose_text_fields
from ...cluster.reading import sample_documents
from ...encoders.graph_folders import PairScorer, open_once
from ...errors import DataError, SettingsError
from ...languages import middle_words
from ...records import Hit
from ...settings import Stage
from ..calibration import MINILM_SPREAD, QUESTIONS, STATEMENTS, measure_once, scale_factor
from . import IndexAccess, QueryHits, Reranker, add_scores

MEASURED, LONGEST = 10, 1_000  # texts, and characters of each


class CrossSettings(Stage):
    """Settings of the cross-encoder re-ranker."""

    table: ClassVar[str] = "search.rerank_settings"
    folder: Path | None = Field(None, description="folder of `hybridr export`")
    weight: float = Field(
        0.5,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="beside a dense weight of .5; `none` leaves it out",
    )
    candidates: int = Field(20, ge=1, le=1_000, description="of the best hits, so many are read")
    budget_s: float = Field(1.0, gt=0, allow_inf_nan=False, description="seconds a search may wait for it")


class CrossReranker(Reranker):
    """Adds a cross-encoder's score of how well a document answers the query."""

    name = "cross"
    help = "read together with the query by a cross-encoder, whose score is added"
    needs_texts = True
    tuned_by = "weight", "candidates"
    own_settings = CrossSettings

    def __init__(self, access: IndexAccess, settings: CrossSettings) -> None:
        if settings.folder is None:
            raise SettingsError(
                "the re-ranker 'cross' needs the folder of a cross-encoder", hint=PairScorer.how_to_name
            )
        self.settings, self.reach = settings, settings.candidates
        self.scorer = open_once(PairScorer, settings.folder)
        key = f"{self.scorer.fingerprint} {self.scorer.details.precision} pairs of {access.info.uuid}"
        spread = measure_once(key, partial(measure_spread, access, self.scorer))
        self.factor = settings.weight * scale_factor(spread, MINILM_SPREAD)

    @staticmethod
    def obstacle(access: IndexAccess) -> str | None:
        """Return a reason if the index does not store `_source`; else None."""
        has_source = access.info.mappings.get("_source", {}).get("enabled") is not False
        return None if has_source else "the index does not keep its documents (_source is disabled)"

    def rescored(self, lists: Sequence[QueryHits]) -> list[list[Hit]]:
        """Return the hits of each query with the cross-encoder's scores added to the first ones. Raises
        DataError if no hit has a text.
        """
        read_hits = [listed.hits[: self.reach] for listed in lists]
        pairs = [
            (listed.query, listed.contents.get(hit.doc_id, ""))
            for listed, hits in zip(lists, read_hits, strict=True)
            for hit in hits
        ]
        if pairs and not any(text.strip() for _, text in pairs):
            raise DataError("the hits hold no text that could be read", hint="does _source leave it out?")
        budget = self.settings.budget_s * len(lists) if all(listed.time_limited for listed in lists) else None
        scores = iter(self.scorer.score(pairs, within_s=budget))
        logits = [[float(next(scores)) for _ in hits] for hits in read_hits]
        return [
            add_scores(listed, self.name, row, self.factor) for listed, row in zip(lists, logits, strict=True)
        ]

    def late_remark(self, hits: Sequence[Hit]) -> str:
        """Return a remark with the number of hits of a page that were not read in time.

        Pinned hits and those of another ranking are not counted, because they are never read.
        """
        unread = [hit for hit in hits if self.name in hit.scores and hit.scores[self.name] is None]
        late = sum(hit.rank <= self.settings.candidates for hit in unread)
        if not late:
            return ""
        limit = f"{self.settings.budget_s:g} s"
        return f"{late} of {len(hits)} hits were not read by the cross-encoder within {limit}"


def measure_spread(access: IndexAccess, scorer: PairScorer) -> float:
    """Return the standard deviation of the logits of queries from the middle of documents with sampled
    documents.

    An index with few texts is measured by fixed texts.
    """
    fields = access.info.record.fields or choose_text_fields(access.cluster, access.info)
    sampled = sample_documents(access.cluster, access.info, 2 * MEASURED, fields=fields)
    texts = [text[:LONGEST] for document in sampled if (text := text_of(document.source, fields).strip())]
    queries: Sequence[str] = list(map(middle_words, texts[:MEASURED]))
    documents: Sequence[str] = texts[:MEASURED]
    if len(documents) < MEASURED:
        queries, documents = QUESTIONS, STATEMENTS
    return float(scorer.score([(query, text) for query in queries for text in documents]).std())
