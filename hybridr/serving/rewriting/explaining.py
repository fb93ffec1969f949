"""Explains which requests of an application's log a transparent deployment would rank, and why not the
others.

Shadow ranking repeats requests that were answered already, and compares hybridr's ranking with those answers.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from ...cluster.aliases import resolve_complete
from ...cluster.connection import Cluster, path_of
from ...cluster.failures import BUSY
from ...cluster.record import sole_index
from ...cluster.retrievers.lexical import lexical_query
from ...errors import AccessDenied, ClusterError, DataError, HybridrError, Unreachable
from ...files.local import numbered_lines, parsed_json, replacing
from ...records import Progress, Qrels, Query, silent
from ...relevance.shadows import COMPARED, ShadowedRequest, ShadowFile, ShadowReport, compare_answers
from ...search.checks import stored_fusion
from ...search.clauses import NotRanked, ParsedQuery
from ...search.hits import fetch_texts
from ...search.search import Search
from ...search.settings import RecallMode, SearchSettings
from .rewriting import (
    BODY_PARAMETERS,
    BodyRanking,
    RankedRequest,
    normalised_body,
    page_of,
    reason_of_path,
    source_parameter,
)

ONE_FIELD = ("match", "match_phrase", "match_phrase_prefix", "match_bool_prefix")
SEVERAL_FIELDS = ("multi_match", "combined_fields", "query_string", "simple_query_string")
UNSCORED = ("filter", "must_not")
ALL_FIELDS = "*"
MAX_REQUESTS = 20_000
FORM = 'one request per line: a search body, or {"path": "/docs/_search?from=10", "body": {…}}'


@dataclass(frozen=True)
class Verdict:
    """Whether a request would be ranked; if not, the `reason`, a key of REASONS; `why` explains it."""

    ranked: bool
    reason: str | None
    why: str


@dataclass(frozen=True)
class Explained:
    """The requests of a log and whether each would be ranked."""

    log: RequestLog
    verdicts: tuple[Verdict, ...]

    @property
    def ranked(self) -> int:
        """Return how many requests would be ranked."""
        return sum(verdict.ranked for verdict in self.verdicts)

    @property
    def by_field(self) -> dict[str, dict[str, int]]:
        """Return for each field, as clients name it, the number of requests that search words in it
        ("asked"), and how many of these would be ranked.
        """
        counts: Counter[str] = Counter()
        ranked: Counter[str] = Counter()
        for entry, verdict in zip(self.log.requests, self.verdicts, strict=True):
            fields = searched_fields(entry.request)
            counts.update(fields)
            ranked.update(fields if verdict.ranked else ())
        return {name: {"asked": count, "ranked": ranked[name]} for name, count in counts.most_common()}

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        log, pairs = self.log, zip(self.log.requests, self.verdicts, strict=True)
        return {
            "ranked": self.ranked,
            "unreadable": log.unreadable,
            "by_field": self.by_field,
            "requests": [{"line": entry.line, **asdict(verdict)} for entry, verdict in pairs],
        }


def explain_file(
    cluster: Cluster, name: str, file: Path, settings: SearchSettings, recall: RecallMode = "all"
) -> Explained:
    """Return for each request in a file whether a transparent deployment would rank it with vectors.

    `recall` says which documents a ranked search finds. Raises the errors of `read_requests` and
    `verdicts_on`.
    """
    log = read_requests(file)
    requests = [logged.request for logged in log.requests]
    return Explained(log, tuple(verdicts_on(cluster, name, requests, settings, recall)))


def verdicts_on(
    cluster: Cluster,
    name: str,
    requests: Iterable[Mapping[str, Any]],
    settings: SearchSettings,
    recall: RecallMode = "all",
) -> list[Verdict]:
    """Return for each request whether a deployment of `--way transparent` would rank it; nothing is changed.

    A request is a search body, or `{"path": "/docs/_search?from=10", "body": {…}}`. Raises NotFound,
    AccessDenied, and DataError for an index without complete vectors.
    """
    info = resolve_complete(cluster, name, whole_index=False)
    searching = Search(cluster, info, mode="lexical", settings=settings)
    fusion, _ = stored_fusion(cluster, searching.settings, info)
    ranking = BodyRanking(searching, recall, fusion=fusion)
    return [verdict_on(ranking, request) for request in requests]


def verdict_on(ranking: BodyRanking, request: Mapping[str, Any]) -> Verdict:
    """Return whether one request would be ranked."""
    query = parsed_query(ranking, request)
    if isinstance(query, NotRanked):
        return Verdict(False, query.reason, query.why)
    own_query = "by its own query, with what hybridr search adds to words"
    why = f"ranked {'as hybridr search does' if query.words is None else own_query}"
    return Verdict(True, None, f"{why}; its own functions and boosts act on that" if query.wrappers else why)


def parsed_query(ranking: BodyRanking, request: Mapping[str, Any]) -> ParsedQuery | NotRanked:
    """Return the parsed query of a request, or why it is not ranked. Raises AccessDenied, Unreachable, and
    ClusterError while the cluster is too busy to answer.
    """
    try:
        search = search_request(ranking.search.cluster, request)
        if isinstance(search, NotRanked):
            return search
        body, params = search
        read_body = ranking.read(body)
        if isinstance(read_body, NotRanked):
            return read_body
        if reason := ranking.reason_of_words(read_body):
            return reason
    except ClusterError as error:
        if isinstance(error, (AccessDenied, Unreachable)) or error.status in BUSY:
            raise  # it says nothing about the request
        return NotRanked("unreadable")
    except (TypeError, ValueError, AttributeError, RecursionError):
        return NotRanked("unreadable")
    return NotRanked("scroll") if "scroll" in params else read_body.query


def search_request(
    cluster: Cluster, request: Mapping[str, Any]
) -> tuple[dict[str, Any], Mapping[str, str]] | NotRanked:
    """Return a request's search body, normalised as by OpenSearch, and its URL parameters; or why it is not
    ranked.

    A search template is rendered by the cluster. Raises TypeError, ValueError, AttributeError or
    RecursionError for a malformed request, ClusterError for a malformed template.
    """
    address = urlsplit(str(request.get("path", "_search")))
    path = address.path.removesuffix("/template")
    params = dict(parse_qsl(address.query)) | dict(request.get("params") or {})
    body = logged_body(request)
    source = None if body else source_parameter(params)
    if source is not None:
        params = {name: value for name, value in params.items() if name not in BODY_PARAMETERS}
    if reason := reason_of_path(path.rpartition("/")[2], params):
        return reason
    body = body if source is None else json.loads(source)
    if path != address.path:
        body = cluster.request("POST", "/_render/template", body)["template_output"]
    return normalised_body(body, params), params


def logged_body(request: Mapping[str, Any]) -> Any:
    """Return the search body of a logged request; a request without a path and a body is itself one."""
    return request.get("body") or {} if {"path", "body"} & request.keys() else request


def searched_fields(request: Mapping[str, Any]) -> set[str]:
    """Return the fields in which a request searches words, without boosts; `*` if it names none."""
    try:
        return scored_fields(logged_body(request).get("query"))
    except (AttributeError, RecursionError, TypeError):  # malformed, as its verdict states
        return set()


def scored_fields(query: Any) -> set[str]:
    """Return the fields of the scoring text clauses of a query."""
    if isinstance(query, list):
        return {name for clause in query for name in scored_fields(clause)}
    if not isinstance(query, Mapping):
        return set()
    searched: set[str] = set()
    for kind, parameters in query.items():
        if kind in SEVERAL_FIELDS and isinstance(parameters, Mapping):
            fields = parameters.get("fields") or parameters.get("default_field") or ALL_FIELDS
            names = [fields] if isinstance(fields, str) else fields
            searched |= {str(name).partition("^")[0] for name in names}
        elif kind in ONE_FIELD and isinstance(parameters, Mapping):
            searched |= parameters.keys()
        elif kind not in UNSCORED:
            searched |= scored_fields(parameters)
    return searched


class LoggedRequest(NamedTuple):
    """A request and its line in the log: a search body, or `{"path": …, "params": …, "body": …}`."""

    line: int
    request: Mapping[str, Any]


@dataclass(frozen=True)
class RequestLog:
    """The requests of a log file in order, and the numbers of unreadable lines."""

    requests: tuple[LoggedRequest, ...]
    unreadable: tuple[int, ...]


def read_requests(file: Path) -> RequestLog:
    """Return the requests of a log file, plain or gzip.

    Raises DataError for a file without any request, or with more than MAX_REQUESTS.
    """
    requests: list[LoggedRequest] = []
    unreadable: list[int] = []
    try:
        for number, line in numbered_lines(file, "utf-8-sig", errors="replace"):
            if not line.strip():
                continue
            try:
                request = parsed_json(line)
            except ValueError:
                request = None
            if isinstance(request, Mapping):
                requests.append(LoggedRequest(number, request))
            else:
                unreadable.append(number)
            if len(requests) > MAX_REQUESTS:
                raise ValueError(f"it has more than {MAX_REQUESTS:,} requests, use a part of it")
        if not requests:
            raise ValueError("it contains no request")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", hint=f"the file needs {FORM}") from None
    return RequestLog(tuple(requests), tuple(unreadable))


REQUEST_ERRORS = (400, 413, 422)  # statuses that concern one request only
MALFORMED = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""Errors raised by malformed requests and answers."""
Send: TypeAlias = "Callable[[Mapping[str, Any]], dict[str, Any]]"
"""Searches the index with vectors with a body, and returns the answer."""


def shadow_report(
    search: Search,
    file: Path | None,
    recall: RecallMode,
    *,
    judgements: tuple[Sequence[Query], Qrels] | None = None,
    page: Path | None = None,
    progress: Progress = silent,
) -> ShadowReport:
    """Compare both rankings on the requests of a file, else on those that a server recorded; with `page` also
    write the report there as HTML.

    Raises the errors of `shadow_requests` and `read_requests`, and DataError if no server recorded any.
    """
    source, stop_reason = search.info.record.source or search.info.name, ""
    if file is None:
        requests, stop_reason = ShadowFile(search.info).read(search.info)
    else:
        requests = shadow_requests(search, read_requests(file), recall, progress)
    report = compare_answers(source, requests, stop_reason, judgements)
    report = report.with_texts(fetch_texts(search.cluster, search.info, report.shown_ids))
    if page is not None:
        with replacing(page, private=True) as temporary:
            temporary.write_text(report.page(), encoding="utf-8")
    return report


def shadow_requests(
    search: Search, log: RequestLog, recall: RecallMode = "lexical", progress: Progress = silent
) -> list[ShadowedRequest]:
    """Send each request of a log to the source and, ranked, to the index with vectors; return both results.

    Nothing is changed. A line may be a text alone, `{"query": "wool socks"}`, which stands for the plain
    query. Raises Unreachable, AccessDenied or ClusterError if the source does not answer, or is closed.
    """
    cluster, info, ranking = search.cluster, search.info, BodyRanking(search, recall)
    sources = cluster.indices(info.record.source) if info.record.source else []
    source = sole_index(info.record.source, sources) if sources else info
    source_path = path_of(source.name, "_search")

    def send(body: Mapping[str, Any]) -> dict[str, Any]:
        """Search the index with a body and return the answer."""
        return dict(cluster.request("POST", path_of(info.name, "_search"), body))

    requests = [ShadowedRequest(info.uuid, reason="unreadable") for _ in log.unreadable]
    for number, logged in enumerate(log.requests, 1):
        text = logged.request.get("query", logged.request.get("text"))
        request = {"query": lexical_query(text, search.lexical_fields)} if isinstance(text, str) else None
        entry = ShadowedRequest(info.uuid)
        try:
            parts = search_request(cluster, request or logged.request)
            if isinstance(parts, NotRanked):
                requests.append(replace(entry, reason=parts.reason))
                continue
            began = time.perf_counter()
            answer = cluster.request("POST", source_path, parts[0])
            took_ms = milliseconds_since(began)
            requests.append(compared_request(entry, parts[0], first_ids(answer), took_ms, ranking, send))
        except ClusterError as error:
            if error.status not in REQUEST_ERRORS:
                raise
            requests.append(replace(entry, error=f"today's answer: {error_name(error)}"))
        except MALFORMED:
            requests.append(replace(entry, reason="unreadable"))
        progress("compare", number, len(log.requests))
    return requests


def compared_request(
    entry: ShadowedRequest,
    body: dict[str, Any],
    old_ids: tuple[str, ...],
    old_ms: float,
    ranking: BodyRanking,
    send: Send,
) -> ShadowedRequest:
    """Return an entry with `old_ids`, which users got, and the ids of hybridr's ranking for the same body.

    If there are none, the entry has the reason or the error. Raises nothing.
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
        new_ids = first_ids(send(ranked.body))
    except (HybridrError, *MALFORMED) as error:
        return replace(entry, error=f"hybridr's answer: {error_name(error)}")
    new_ms = milliseconds_since(began)
    return replace(entry, text=parsed.query.text, old=old_ids, new=new_ids, old_ms=old_ms, new_ms=new_ms)


def error_name(error: Exception) -> str:
    """Return the status or class of an error, without its message, which may quote a request."""
    status = error.status if isinstance(error, ClusterError) else None
    return str(status or type(error).__name__)


def first_ids(answer: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids of the first hits. Raises LookupError or TypeError for a malformed answer."""
    return tuple(hit["_id"] for hit in answer["hits"]["hits"][:COMPARED])


def milliseconds_since(began: float) -> float:
    """Return the milliseconds since `began`, a value of `time.perf_counter`."""
    return round((time.perf_counter() - began) * 1000, 2)
