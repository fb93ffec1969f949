"""Compares two rankings on requests that both answered: the one users see, and hybridr's shadow ranking."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from html import escape
from shlex import quote
from threading import Lock
from typing import Any

import numpy as np

from ..cluster.record import IndexInfo
from ..errors import DataError
from ..evaluation.evaluation import Evaluation, evaluate
from ..evaluation.label_free import overlap, rank_biased_overlap
from ..evaluation.report import html_page, html_table
from ..files.local import append_private, numbered_lines, parsed_json
from ..files.remembered import SHADOWS, file_of_index
from ..records import Qrels, Query, Run

COMPARED = 10  # hits
MAX_KEPT = 20_000  # requests
SHOWN = 20  # changes
SNIPPET = 160  # characters of a document
BANDS = {"once": 1, "2 to 9 times": 2, "10 times or more": 10}
"""Name -> least number of times that a text was searched."""
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class ShadowedRequest:
    """A request and the first ten document ids of both answers; times in milliseconds.

    `index` is the uuid of the index with vectors.
    `reason` says why hybridr would not rank it, `error` why its ranking failed; `skipped` counts the requests
    before it that were not compared because the shadow was busy.
    """

    index: str
    text: str = ""
    reason: str = ""
    error: str = ""
    old: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    old_ms: float = 0.0
    new_ms: float = 0.0
    skipped: int = 0

    @property
    def compared(self) -> bool:
        """Return whether both rankings answered the request."""
        return not (self.reason or self.error)

    @property
    def rank_biased_overlap(self) -> float:
        """Return the rank-biased overlap of both answers."""
        return rank_biased_overlap(self.old, self.new)


@dataclass(frozen=True)
class RankingDifference:
    """Difference of two rankings over requests: the share of changed answers, mean overlaps from 0 to 1."""

    requests: int
    changed: float
    overlap_at_3: float
    overlap_at_10: float
    rank_biased_overlap: float

    @classmethod
    def of(cls, requests: Sequence[ShadowedRequest]) -> RankingDifference:
        """Return the means over requests that both rankings answered; at least one is needed."""
        means = np.mean(
            [
                (
                    request.old != request.new,
                    overlap(request.old, request.new, 3),
                    overlap(request.old, request.new, COMPARED),
                    request.rank_biased_overlap,
                )
                for request in requests
            ],
            axis=0,
        )
        return cls(len(requests), *(round(float(mean), 4) for mean in means))


@dataclass(frozen=True)
class ShadowReport:
    """The differences between the ranking that users see and hybridr's.

    `reasons` and `errors` count requests that were not compared; `times` are percentiles in milliseconds.
    `largest` are the requests whose answers differ most; `judged` measures both rankings if judgements were
    given. `stopped` says why a server stopped comparing.
    """

    index: str
    requests: int
    skipped: int
    reasons: dict[str, int]
    errors: dict[str, int]
    difference: RankingDifference | None
    by_frequency: dict[str, RankingDifference]
    times: dict[str, dict[str, float]]
    largest: tuple[ShadowedRequest, ...]
    judged: Evaluation | None
    stopped: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def shown_ids(self) -> list[str]:
        """Return the ids of the documents in the largest changes."""
        return sorted({doc_id for request in self.largest for doc_id in (*request.old, *request.new)})

    def with_texts(self, texts: Mapping[str, str]) -> ShadowReport:
        """Return the report with the beginning of each document in the largest changes."""
        return replace(self, texts={doc_id: text[:SNIPPET] for doc_id, text in texts.items()})

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; `texts` has the beginning of each document of `largest`."""
        values = {name: value for name, value in vars(self).items() if name not in ("largest", "judged")}
        values["difference"] = self.difference and asdict(self.difference)
        values["by_frequency"] = {name: asdict(part) for name, part in self.by_frequency.items()}
        values["largest"] = [
            {
                "text": request.text,
                "rank_biased_overlap": round(request.rank_biased_overlap, 4),
                "old": list(request.old),
                "new": list(request.new),
            }
            for request in self.largest
        ]
        values["judged"] = self.judged.to_json() if self.judged else None
        return values | {"texts": dict(self.texts)}

    @property
    def summary(self) -> list[str]:
        """Return the differences in lines, without texts of requests."""
        lines = [f"{self.index}: {self.requests:,} requests, {self.skipped:,} more were not compared"]
        if self.difference:
            part = self.difference
            lines.append(
                f"{part.requests:,} answered by both: {part.changed:.0%} changed, overlap "
                f"{part.overlap_at_3:.2f} of the first 3 and {part.overlap_at_10:.2f} of the first 10"
            )
        else:
            lines.append("no request was answered by both")
        lines += [f"left as they are ({reason}): {count:,}" for reason, count in self.reasons.items()]
        lines += [f"failed ({error}): {count:,}" for error, count in self.errors.items()]
        return lines + ([f"STOPPED: {self.stopped}"] if self.stopped else [])

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return tables for people, each with title and header."""
        headers = ["requests", "changed", "overlap at 3", "overlap at 10", "rank-biased overlap"]
        bands = [
            [name, f"{part.requests:,}", f"{part.changed:.0%}"]
            + [f"{value:.2f}" for value in (part.overlap_at_3, part.overlap_at_10, part.rank_biased_overlap)]
            for name, part in self.by_frequency.items()
        ]
        times = [[name, *(f"{value:,.1f}" for value in part.values())] for name, part in self.times.items()]
        tables = [("by how often a text was looked for", ["text", *headers], bands)]
        tables.append(("milliseconds", ["answer", *(f"p{part}" for part in PERCENTILES)], times))
        if self.judged:
            head, rows = self.judged.table()
            tables.append((f"{self.judged.queries} judged queries", list(head), [list(row) for row in rows]))
        return [table for table in tables if table[2]]

    def page(self) -> str:
        """Return the report as a self-contained HTML page, with the largest changes side by side."""
        title = f"{self.index}: what another ranking changes"
        parts = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(line)}</p>" for line in self.summary)]
        for name, head, rows in self.tables():
            parts.append(f"<h2>{escape(name)}</h2>{html_table(head, rows)}")
        for request in self.largest:
            parts.append(f"<section><h3>{escape(request.text)}</h3><div class=pair>")
            for side, ids in (("today", request.old), ("hybridr", request.new)):
                texts = [(escape(doc_id), escape(self.texts.get(doc_id, ""))) for doc_id in ids]
                items = "".join(f"<li>{doc_id} <small>{text}</small>" for doc_id, text in texts)
                parts.append(f"<div><b>{side}</b><ol>{items}</ol></div>")
            parts.append("</div></section>")
        return html_page(title, parts)


def compare_answers(
    index: str,
    requests: Sequence[ShadowedRequest],
    stopped: str = "",
    judgements: tuple[Sequence[Query], Qrels] | None = None,
) -> ShadowReport:
    """Return a report that compares both answers to each request; requests with judged queries are measured
    too.

    >>> compare_answers("docs", [ShadowedRequest("docs", "pen", old=("a",), new=("b",))]).difference.changed
    1.0
    """
    pairs = [request for request in requests if request.compared]
    counts = Counter(request.text for request in pairs)
    by_frequency: dict[str, list[ShadowedRequest]] = {name: [] for name in BANDS}
    for request in pairs:
        band = next(name for name, times in reversed(BANDS.items()) if counts[request.text] >= times)
        by_frequency[band].append(request)
    newest = {request.text: request for request in pairs}
    changes = [request for request in newest.values() if request.old != request.new]
    return ShadowReport(
        index,
        len(requests),
        sum(request.skipped for request in requests),
        dict(Counter(request.reason for request in requests if request.reason).most_common()),
        dict(Counter(request.error for request in requests if request.error).most_common()),
        RankingDifference.of(pairs) if pairs else None,
        {name: RankingDifference.of(part) for name, part in by_frequency.items() if part},
        time_percentiles(pairs) if pairs else {},
        tuple(sorted(changes, key=lambda request: request.rank_biased_overlap)[:SHOWN]),
        evaluate_judged(newest, judgements),
        stopped,
    )


def time_percentiles(requests: Sequence[ShadowedRequest]) -> dict[str, dict[str, float]]:
    """Return percentiles of the times of both answers, in milliseconds; at least one request is needed."""
    table = np.percentile([(request.old_ms, request.new_ms) for request in requests], PERCENTILES, axis=0)
    names = [f"p{part}" for part in PERCENTILES]
    return {
        side: dict(zip(names, values.round(1).tolist(), strict=True))
        for side, values in zip(("today", "hybridr"), table.T, strict=True)
    }


def evaluate_judged(
    requests: Mapping[str, ShadowedRequest], judgements: tuple[Sequence[Query], Qrels] | None
) -> Evaluation | None:
    """Return an evaluation of both answers to requests with judged texts; None without such requests."""
    queries = [query for query in judgements[0] if query.text in requests] if judgements else []
    if judgements is None or not any(judgements[1].get(query.query_id) for query in queries):
        return None
    measured = {query.query_id: requests[query.text] for query in queries}
    runs: dict[str, Run] = {"today": {}, "hybridr": {}}
    for query_id, request in measured.items():
        for name, ids in (("today", request.old), ("hybridr", request.new)):
            runs[name][query_id] = {doc_id: 1 / rank for rank, doc_id in enumerate(ids, 1)}
    qrels = {query_id: grades for query_id, grades in judgements[1].items() if query_id in measured}
    return evaluate(runs, queries, qrels, ["nDCG@10"])


class ShadowFile:
    """The file on this machine where a server stores compared requests of an index, readable by its owner
    only.

    Raises OSError if it cannot be written.
    """

    def __init__(self, info: IndexInfo) -> None:
        source = info.record.source or info.name
        self.path = file_of_index(SHADOWS, source, info.record.source_uuid or info.uuid)
        self._lock = Lock()

    def add(self, entry: ShadowedRequest | str) -> None:
        """Append a request, or the reason why comparing stopped."""
        value = {"stopped": entry} if isinstance(entry, str) else asdict(entry)
        with self._lock:
            append_private(self.path, json.dumps(value))

    def read(self, info: IndexInfo) -> tuple[list[ShadowedRequest], str]:
        """Return the requests of an index, and why comparing stopped. Raises DataError for none."""
        requests, stopped = [], ""
        lines = numbered_lines(self.path, errors="replace") if self.path.is_file() else ()
        for _, line in lines:
            try:
                value = parsed_json(line)
            except ValueError:  # a server was killed while it wrote
                continue
            if not isinstance(value, dict):
                continue
            stopped = str(value.get("stopped", ""))
            if value.get("index") == info.uuid:
                with suppress(KeyError, TypeError):  # a damaged line
                    lists = {name: tuple(value[name]) for name in ("old", "new")}
                    requests.append(ShadowedRequest(**value | lists))
        if not requests:
            why = f"; comparing stopped: {stopped}" if stopped else ""
            raise DataError(
                f"no server on this machine has sent requests to both rankings of '{info.name}'{why}",
                hint=f"hybridr serve --index {quote(info.record.source or info.name)} --proxy lexical "
                "--shadow 0.1; or --queries FILE",
            )
        return requests, stopped
