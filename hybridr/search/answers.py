"""Confidence of hits: how likely a hit answers, judged by the scores of unanswerable queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

import numpy as np

from ..cluster.record import IndexInfo
from ..cluster.record_parts import Calibrated
from ..errors import SettingsError
from ..files.local import fingerprint
from ..records import Hits
from .checks import HYBRID
from .context import SearchContext

MARGIN_BELOW = 0.1
"""Once the best hit reaches the threshold, hits that score at most this much below the threshold stay too.
Scores are absolute, so one number serves all indices. It is the smallest margin that loses no more relevant
hits than keeping all would (twelve collections, docs/measured/answers.md)."""

ABOVE_ALL_SCORES = 1e30
"""A score above that of any hit."""


@dataclass(frozen=True)
class Answers:
    """The confidence calibration of an index for a search, or the `reason` why there is none, and advice."""

    calibration: Calibrated | None
    reason: str = ""
    remedy: str | None = None

    def with_confidence(self, hits: Hits, at_least: float = 0.0, *, wordless: bool = False) -> Hits:
        """Return hits with their confidence, without those below the confidence `at_least`.

        Without a calibration the hits are returned unchanged. No hit answers a `wordless` query (see
        `is_wordless`). Hits pinned by a rule have no confidence and stay. If no hit is left, `nearest` of the
        result is the best hit, provided it is on this page.
        """
        if self.calibration is None:
            return hits
        rated = [
            hit if hit.rule else hit._replace(confidence=0.0 if wordless else self.confidence(hit.score))
            for hit in hits
        ]
        best = None if wordless else hits.best
        lowest = lowest_accepted_score(best, self.threshold(at_least)) if at_least else -math.inf
        confident = Hits((hit for hit in rated if hit.rule or hit.score >= lowest), hits.best)
        if rated and not confident and rated[0].rank == 1:
            confident.nearest = rated[0]
        return confident

    def confidence(self, score: float) -> float:
        """Return the confidence of a score: the share of unanswerable queries whose best hit scores less.

        Raises SettingsError if the index is not calibrated.
        """
        scores = self.required_calibration.scores
        return round(float(np.interp(score, scores, np.linspace(0, 1, len(scores)))), 4)

    def threshold(self, confidence: float) -> float:
        """Return the score at which a hit has a confidence. Raises SettingsError without a calibration."""
        scores = self.required_calibration.scores
        return float(np.interp(confidence, np.linspace(0, 1, len(scores)), scores))

    def min_score(self, at_least: float, *, wordless: bool = False) -> dict[str, float]:
        """Return the `min_score` of a search body for a required confidence; empty if none is required or
        the index is not calibrated. No hit of a `wordless` query reaches it.
        """
        if not (at_least and self.calibration):
            return {}
        return {"min_score": ABOVE_ALL_SCORES if wordless else self.threshold(at_least)}

    def checked_confidence(self, at_least: float) -> float:
        """Return the required confidence. Raises SettingsError unless it is at least 0 and below 1, and for
        one above 0 without a calibration.
        """
        if not 0 <= at_least < 1:
            raise SettingsError(
                f"{at_least} is not a confidence", hint="a number from 0 to below 1, such as 0.95"
            )
        if at_least:
            self.threshold(at_least)  # raises SettingsError without a calibration
        return at_least

    @property
    def required_calibration(self) -> Calibrated:
        """Return the calibration. Raises SettingsError with the reason if there is none."""
        if self.calibration is None:
            raise SettingsError(f"hits have no confidence: {self.reason}", hint=self.remedy)
        return self.calibration


def missing_parts_remark(info: IndexInfo) -> str:
    """Return a remark if a complete index lacks soft terms or confidence; empty if it lacks neither.

    A reindex moves the alias before its last stages, which make the term table and the calibration.
    """
    record = info.record
    parts = {"soft terms": record.term_table or record.passages, "confidence": record.answers}
    missing = [name for name, part in parts.items() if not part]
    if record.state != "complete" or not missing:
        return ""
    return (
        f"searches of '{info.name}' go without {' and '.join(missing)}: a running reindex adds that at its "
        f"end; otherwise run hybridr tune {quote(record.source or info.name)}"
    )


def lowest_accepted_score(best: float | None, threshold: float) -> float:
    """Return the lowest score at which a hit is shown; infinite if the best score is below the threshold."""
    return threshold - MARGIN_BELOW if best is not None and best >= threshold else math.inf


def matching_answers(context: SearchContext, reranking: Sequence[Any]) -> Answers:
    """Return the calibration of the index if it holds for this search's scores, else why it does not."""
    info, calibrated = context.info, context.info.record.answers
    if reason := comparison_obstacle(context):
        return Answers(None, reason, "search with the default mode and fusion")
    remedy = f"hybridr tune {quote(info.record.source or info.name)}   calibrates today's ranking"
    if calibrated is None:
        return Answers(None, f"'{info.name}' was not calibrated", remedy)
    if calibrated.ranking != scoring_fingerprint(context, reranking):
        return Answers(None, f"'{info.name}' was calibrated for another ranking", remedy)
    return Answers(calibrated)


def comparison_obstacle(context: SearchContext) -> str:
    """Return why scores of a search cannot be compared between queries; empty if they can."""
    if context.mode != HYBRID:
        return f"only hybrid searches have it, not mode {context.mode}"
    if not context.fusion.scoring_clause:
        return f"the fusion '{context.fusion.name}' gives no true scores"
    return ""


def scoring_fingerprint(context: SearchContext, reranking: Sequence[Any]) -> str:
    """Return a fingerprint of everything that decides the scores of a search, except the documents."""
    settings, record, signals = context.settings, context.info.record, context.signals.members
    learnt = {"soft_terms": record.term_table, "memory": record.memory}
    return fingerprint(
        {
            "encoder": context.encoder.fingerprint if context.encoder else None,
            "fusion": context.fusion.name,
            "shares": settings.shares,
            "recall": settings.recall,
            "boost": settings.boost,
            "fields": [str(field) for field in context.searched],
            "template": context.template.body if context.template else None,
            "signals": {name: signal.weight for name, signal in signals.items()},
            "learnt": {
                name: table.model_dump(mode="json") for name in signals if (table := learnt.get(name))
            },
            "rerank": list(reranking),
            "scripts": context.fusion.asks_once,
        }
    )
