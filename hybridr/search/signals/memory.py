"""Signal memory: documents that were judged relevant to similar past queries.

`hybridr learn` stores past queries beside the index. Their credits are added to scores; without a similar
past query the ranking is unchanged. Only documents that the search finds itself get credit, only within its
scope, and only if their text is still the one that was judged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from shlex import quote
from typing import Any

import numpy as np

from ...encoders.contract import unit_length
from ...errors import HybridrError
from ..calibration import likeness_threshold
from ..past_queries import document_credits, fetch_text_stamps, find_past_queries, query_vectors
from . import Place, QueryReading, Signal

LOGGER = logging.getLogger("hybridr.memory")
MAX_CREDITED = 20  # documents: a cluster takes 1,024 clauses, and soft terms may be most of them
CREDIT_DECIMALS = 6
SAME = 0.9999  # cosine of a query with itself
LOOKUP_S, RETRY_S = 2.0, 10.0
"""Seconds that a look-up may take, and seconds until the next one after a failure."""
CACHED_TEXTS, FRESH_S = 2_000, 60.0  # texts whose credits are cached, and the seconds for which they are


class MemorySignal(Signal):
    """Adds a credit to documents that were relevant to similar past queries."""

    name = "memory"
    help = "documents judged relevant to queries like this one"
    weight = 0.2
    learnt = True

    def __init__(self, place: Place) -> None:
        memory = place.info.record.memory
        assert memory is not None
        self.place, self.least = place, max(memory.least, likeness_threshold(place.encoder))
        self.cluster = place.cluster.with_patience(0.0).with_timeout(LOOKUP_S)
        self.credits: dict[str, tuple[float, Mapping[str, float]]] = {}  # text -> valid until, its credits
        self.silent_until = 0.0

    @classmethod
    def obstacle(cls, place: Place) -> str | None:
        """Return a reason if nothing was learnt, or with another encoder; else None."""
        record = place.info.record
        if record.remembers:
            return None
        reason = "its memory is of another encoder" if record.memory else "nothing was learnt yet"
        return f"{reason}: hybridr learn {quote(place.info.name)} --beir FOLDER"

    def needs_request(self, text: str) -> bool:
        """Return whether past queries must be searched for a text: results are cached for a minute."""
        now = time.monotonic()
        return now >= self.silent_until and (text not in self.credits or now >= self.credits[text][0])

    def prepare(self, readings: Sequence[QueryReading]) -> None:
        """Look up past queries similar to these. A failure is logged, and there are no credits for 10 s."""
        info = self.place.info
        texts = [reading.text for reading in readings]
        vectors = unit_length(np.stack([reading.reading.vector for reading in readings]))
        try:
            past = find_past_queries(self.cluster, info, texts, vectors, self.least)
            by_text = {
                text: list(document_credits(similar, self.least).items())[:MAX_CREDITED]
                for text, similar in past.items()
            }
            doc_ids = sorted({doc_id for entries in by_text.values() for doc_id, _ in entries})
            stamps = fetch_text_stamps(self.cluster, info, info.record.fields, doc_ids)
        except HybridrError as error:
            self.silent_until = time.monotonic() + RETRY_S
            self.credits.clear()
            LOGGER.warning("searches of '%s' go without memory: %s", info.name, error.message)
            return
        until = time.monotonic() + FRESH_S
        for text, entries in by_text.items():  # only documents in scope whose text is still the judged one
            credits = {doc: credit.score for doc, credit in entries if stamps.get(doc) == credit.stamp}
            self.credits[text] = until, credits
        for text in list(self.credits)[: max(0, len(self.credits) - CACHED_TEXTS)]:
            self.credits.pop(text, None)

    def clauses(self, reading: QueryReading) -> list[dict[str, Any]]:
        """Return a clause for each credited document."""
        _, credits = self.credits.get(reading.text, (0.0, {}))
        return [
            {"constant_score": {"filter": {"term": {"_id": doc_id}}, "boost": round(score, CREDIT_DECIMALS)}}
            for doc_id, score in credits.items()
        ]

    def learnt_from(self, texts: Sequence[str]) -> Collection[str]:
        """Return those texts that equal a past query."""
        vectors = query_vectors(self.place.encoder, list(texts))
        similar = find_past_queries(self.place.cluster, self.place.info, texts, vectors, SAME)
        return [text for text, past in similar.items() if past]
