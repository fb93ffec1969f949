"""Shadow ranking: requests that users already have answers to are ranked by hybridr too, to compare both,
unseen by users.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from ...cluster.connection import path_of
from ...cluster.retrievers.lexical import lexical_query
from ...errors import ClusterError, HybridrError
from ...files.atomic import replacing
from ...records import Progress, Qrels, Query, silent
from ...relevance.shadows import COMPARED, ShadowedRequest, ShadowFile, ShadowReport, report_of
from ...search.clauses import NotRanked
from ...search.search import Search
from ...search.settings import Finds
from ...search.systems import texts_of
from .explaining import RequestLog, read_requests, search_of
from .rewriting import BodyRanking, RankedRequest, page_of

REFUSED = (400, 413, 422)  # one request, and none of the others
ODD = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""What an odd request, or an odd answer, raises."""
Send: TypeAlias = "Callable[[Mapping[str, Any]], dict[str, Any]]"
"""Asks the index with vectors for a body, and gives its answer."""


def shadow_report(
    search: Search,
    file: Path | None,
    recall: Finds,
    *,
    judgements: tuple[Sequence[Query], Qrels] | None = None,
    page: Path | None = None,
    progress: Progress = silent,
) -> ShadowReport:
    """Compare both rankings on the requests of a file, else on those that a server recorded; write the report
    as HTML.

    Raises as `shadow_requests` and `read_requests`, and DataError if no server recorded any.
    """
    source, stopped = search.info.record.source or search.info.name, ""
    if file is None:
        requests, stopped = ShadowFile(source).read(search.info.name)
    else:
        requests = shadow_requests(search, read_requests(file), recall, progress)
    report = report_of(source, requests, stopped, judgements)
    report = report.with_texts(texts_of(search.cluster, search.info, report.shown_ids))
    if page is not None:
        with replacing(page, private=True) as temporary:
            temporary.write_text(report.page(), encoding="utf-8")
    return report


def shadow_requests(
    search: Search, log: RequestLog, recall: Finds = "lexical", progress: Progress = silent
) -> list[ShadowedRequest]:
    """Send each request of a log to the source and, ranked, to the index with vectors; return both results.

    Nothing is changed. A line may be a text alone, `{"query": "wool socks"}`, which stands for the plain
    query. Raises Unreachable, AccessDenied or ClusterError if the source does not answer.
    """
    cluster, info, ranking = search.cluster, search.info, BodyRanking(search, recall)
    source = info.record.source
    today = path_of(source if source and cluster.exists(source) else info.name, "_search")

    def send(body: Mapping[str, Any]) -> dict[str, Any]:
        """Search the index with a body and return the answer."""
        return dict(cluster.request("POST", path_of(info.name, "_search"), body))

    requests = [ShadowedRequest(info.name, reason="unreadable") for _ in log.unreadable]
    for number, logged in enumerate(log.requests, 1):
        text = logged.request.get("query", logged.request.get("text"))
        request = {"query": lexical_query(text, search.lexical_fields)} if isinstance(text, str) else None
        entry = ShadowedRequest(info.name)
        try:
            parts = search_of(cluster, request or logged.request)
            if isinstance(parts, NotRanked):
                requests.append(replace(entry, reason=parts.reason))
                continue
            began = time.perf_counter()
            answer = cluster.request("POST", today, parts[0])
            took_ms = milliseconds_since(began)
            requests.append(shadowed(entry, parts[0], ids_of(answer), took_ms, ranking, send))
        except ClusterError as error:
            if error.status not in REFUSED:
                raise
            requests.append(replace(entry, error=f"today's answer: {named(error)}"))
        except ODD:
            requests.append(replace(entry, reason="unreadable"))
        progress("compare", number, len(log.requests))
    return requests


def shadowed(
    entry: ShadowedRequest,
    body: dict[str, Any],
    old: tuple[str, ...],
    old_ms: float,
    ranking: BodyRanking,
    send: Send,
) -> ShadowedRequest:
    """Return an entry with the ids that hybridr's ranking gives for a body, beside the `old` ids that users
    got; raises nothing.
    """
    began = time.perf_counter()
    try:
        if page_of(body)[0]:
            return replace(entry, reason="later_page")
        parsed = ranking.read(body)
        if isinstance(parsed, NotRanked):
            return replace(entry, reason=parsed.reason)
        ranked = ranking.rank(parsed)
        if isinstance(ranked, RankedRequest) and ranked.only_finds:
            ranked = ranking.rank(parsed, among=[hit["_id"] for hit in send(ranked.body)["hits"]["hits"]])
        if isinstance(ranked, NotRanked):
            return replace(entry, reason=ranked.reason)
        new = ids_of(send(ranked.body))
    except (HybridrError, *ODD) as error:
        return replace(entry, error=f"hybridr's answer: {named(error)}")
    new_ms = milliseconds_since(began)
    return replace(entry, text=parsed.query.text, old=old, new=new, old_ms=old_ms, new_ms=new_ms)


def named(error: Exception) -> str:
    """Return the status or class of an error, without its message, which may quote a request."""
    status = error.status if isinstance(error, ClusterError) else None
    return str(status or type(error).__name__)


def ids_of(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the first hits. Raises LookupError or TypeError for a malformed answer."""
    return tuple(hit["_id"] for hit in answer["hits"]["hits"][:COMPARED])


def milliseconds_since(began: float) -> float:
    """Return the milliseconds since `began`, a value of `time.perf_counter`."""
    return round((time.perf_counter() - began) * 1000, 2)
