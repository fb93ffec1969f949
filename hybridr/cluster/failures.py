"""Turns a cluster's error answers into hybridr's errors with hints; tells which requests may be repeated."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from ..errors import AccessDenied, ClusterError, NotFound, Unreachable, printable

BUSY = {429, 502, 503, 504}
EXISTS = "resource_already_exists_exception"
NO_INDEX = "index_not_found_exception"
GONE = (NO_INDEX, "aliases_not_found_exception")
AGAIN = "if it was there before, somebody took it away meanwhile: run the same command again"
BLOCKED = 'lift the block, then run it again: PUT /INDEX/_settings {{"index.blocks.{}": null}}'
UNBLOCKED = 'lift the block: PUT /_cluster/settings {{"persistent": {{"{}": null}}}}'
RAISED = 'raise the limit: PUT /INDEX/_settings {{"index.{}": N}}'
HINTS = {
    r"Pipeline \S+ is not defined": "index.search.default_pipeline names a missing search pipeline: set it "
    "to _none; if it was hybridr's: hybridr deploy INDEX   makes it again, undeploy removes it",
    "number of weights": "one weight per sub-query in the search pipeline, see opensearch/pipelines/",
    "expected bounds array": "one bound per sub-query in the search pipeline, see opensearch/pipelines/",
    r"unknown query \[": "the filter or template names a kind of query that OpenSearch does not know",
    "index_closed_exception": "the index is closed, open it: POST /INDEX/_open",
    r"\[FORBIDDEN/5/": BLOCKED.format("read_only"),
    r"\[FORBIDDEN/7/": BLOCKED.format("read"),
    r"\[FORBIDDEN/8/": BLOCKED.format("write"),
    r"\[FORBIDDEN/9/": BLOCKED.format("metadata"),
    r"\[TOO_MANY_REQUESTS/12/": BLOCKED.format("read_only_allow_delete") + ", once its disk has room",
    r"\[FORBIDDEN/6/": UNBLOCKED.format("cluster.blocks.read_only"),
    r"\[FORBIDDEN/13/": UNBLOCKED.format("cluster.blocks.read_only_allow_delete"),
    r"\[FORBIDDEN/10/": UNBLOCKED.format("cluster.blocks.create_index"),
    "maxClauseCount|too_many_nested_clauses|too many clauses": "the query has too many words; "
    "indices.query.bool.max_clause_count is the limit",
    "maximum .*shards open": "cluster.max_shards_per_node is the limit: hybridr remove NAME deletes indices "
    "that hybridr status names, or raise it by PUT /_cluster/settings",
    "creates data streams only": "put an index template without data_stream and of higher priority over that "
    "name: PUT /_index_template/NAME",
    "Limit of total fields": RAISED.format("mapping.total_fields.limit"),
    "Limit of nested fields": RAISED.format("mapping.nested_fields.limit"),
    "Limit of mapping depth": RAISED.format("mapping.depth.limit"),
    "is longer than the limit of": RAISED.format("mapping.field_name_length.limit"),
    "number of nested documents|nested documents has exceeded": RAISED.format("mapping.nested_objects.limit"),
    r"changing the \[index\.": "ask for less, or raise that setting: PUT /INDEX/_settings",
    r"changing the \[": "raise that setting: PUT /_cluster/settings",
}
"""Hints by pattern of the server's message: about searches, their pipelines, limits and blocks."""
WINDOW = "Result window is too large"
RECOVERING = {
    *("no_shard_available_action_exception", "illegal_index_shard_state_exception"),
    *("shard_not_found_exception", "already_closed_exception", "index_closed_exception"),
}
MAX_REASON_CHARACTERS = 1000  # characters
TOO_LARGE = "answer_too_large"
BREAKER = "circuit_breaking_exception"
"""Error type of a node without enough memory for a request."""
FORBIDDEN = "security_exception"  # for a single document or shard it comes with status 500
NO_LICENCE = "license is non-compliant"
WITHOUT_IT = "hybridr needs only the free licence: look for a paid feature in the index or the request"
GROUPED = "search_phase_execution_exception"
"""Error type that the server gives to every failed search; its cause is the actual error."""


def is_busy(failure: ClusterError) -> bool:
    """Return whether the cluster is overloaded or starting, so that the request may be repeated.

    A full disk also answers 429, but repeating does not help there.
    """
    return failure.status in BUSY and failure.kind != "cluster_block_exception"


def shard_failure(answer: Mapping[str, Any]) -> ClusterError | None:
    """Return the error of the first shard that failed in an answer; None if all shards answered."""
    for document in answer.get("docs", ()):  # of _mget and _mtermvectors
        if error := document.get("error"):
            kind = kind_and_reason(error)[0]
            status = 404 if kind == NO_INDEX else 503 if kind in RECOVERING else 500
            return error_from_answer(int(document.get("status", status)), error)
    if is_partial(answer):
        failures = answer.get("_shards", {}).get("failures") or [{}]
        return Unreachable(f"some shards did not answer: {failures[0].get('reason', 'out of time')}")
    return None


def is_partial(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer lacks the results of a shard, or timed out."""
    shards = answer.get("_shards", {})
    total = shards.get("total", 0)
    absent = "hits" in answer and shards.get("successful", total) < total
    return bool(answer.get("timed_out") or shards.get("failed") or absent)


def kind_and_reason(error: Any) -> tuple[str, str]:
    """Return the type and reason of a server's error; the error may be an object, a text or None."""
    if not isinstance(error, Mapping):
        return "", shortened(error or "")
    causes = error.get("root_cause")
    causes = [cause for cause in causes if isinstance(cause, Mapping)] if isinstance(causes, list) else []
    causes = causes or [error]
    kind = str(error.get("type", ""))
    if kind == GROUPED:
        kind = str(causes[0].get("type", kind))
    reason = "; ".join(dict.fromkeys(str(cause.get("reason")) for cause in causes))
    nested = error["caused_by"].get("reason") if isinstance(error.get("caused_by"), Mapping) else None
    if nested and str(nested) not in reason:
        reason += f" ({nested})"
    return shortened(kind), shortened(reason)


def shortened(text: Any) -> str:
    """Return a text of a server with control characters escaped, cut to `MAX_REASON_CHARACTERS`."""
    escaped = printable(str(text))
    return escaped if len(escaped) <= MAX_REASON_CHARACTERS else escaped[:MAX_REASON_CHARACTERS] + "…"


@contextmanager
def reading_answer(url: str, request: str) -> Iterator[None]:
    """Run the block, which reads the answer to `request`; raise ClusterError for an unexpected form."""
    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError) as error:
        raise ClusterError(
            f"{url} gives no answer to {request} that OpenSearch would give "
            f"({type(error).__name__}: {shortened(error)})",
            hint="check the address, and whether a proxy changes answers",
        ) from None


def error_from_answer(status: int, error: Any) -> ClusterError:
    """Return the exception for an error answer of the cluster, from its status and its `error` object:
    AccessDenied, NotFound, Unreachable or another ClusterError.
    """
    kind, reason = kind_and_reason(error)
    if status == 401:
        return AccessDenied(
            "the cluster does not know this user or password (401)",
            hint="set HYBRIDR_USER and HYBRIDR_PASSWORD, or HYBRIDR_API_KEY",
            status=status,
        )
    if NO_LICENCE in reason:
        refusal = f"the cluster's licence does not allow it: {reason}"
        return ClusterError(refusal, hint=WITHOUT_IT, status=status)
    if kind == FORBIDDEN or (status == 403 and kind != "cluster_block_exception"):
        return AccessDenied(f"the cluster forbids it (403): {reason}", hint="hybridr doctor", status=403)
    if status == 404:
        hint = AGAIN if kind in GONE else None
        return NotFound(reason or "not found (404)", hint=hint, status=status, kind=kind)
    if status == 503:
        reason = f"the cluster is not ready yet (503): {reason}"
        return Unreachable(reason, hint="wait a little", status=status)
    if status == 408:  # of /_cluster/health
        problem = "no node has taken the shards of a new index in time (408)"
        hint = "GET /_cluster/allocation/explain says why; then run the same command again"
        return ClusterError(problem, hint=hint, status=status)
    hint = next((help for pattern, help in HINTS.items() if re.search(pattern, f"{kind} {reason}")), None)
    if hint and (blocked := re.search(r"index \[([^\]]+)\] blocked", reason)):
        hint = hint.replace("INDEX", blocked[1])
    kind = TOO_LARGE if WINDOW in reason else kind
    refusal = f"the cluster refused ({status} {kind}): {reason}".replace(" )", ")")
    return ClusterError(refusal, hint=hint, status=status, kind=kind)


ASKED_BY: ContextVar[str | None] = ContextVar("asked_by", default=None)
"""The name of a client's request to the server, sent to the cluster as `X-Opaque-Id`."""
NOBODY = "hybridr"
LATE = "late"
Watch: TypeAlias = Callable[[str, float, str], None]
"""A function that gets each request's API, its seconds, and its kind of failure ("" if none)."""


@contextmanager
def watched_request(path: str, asked_by: str, watch: Watch | None) -> Iterator[None]:
    """Run the block, which sends a request, with `X-Opaque-Id` set; then call `watch` (see `Watch`)."""
    token, started, kind = ASKED_BY.set(ASKED_BY.get() or asked_by), time.perf_counter(), ""
    try:
        yield
    except ClusterError as failure:
        kind = failure_word(failure)
        raise
    finally:
        ASKED_BY.reset(token)
        if watch is not None:
            watch(api_of(path), time.perf_counter() - started, kind)


def api_of(path: str) -> str:
    """Return the API that a path belongs to ("_search", "_bulk", "index"), without names of indices."""
    parts = path.partition("?")[0].split("/")
    return next((part for part in parts if part.startswith("_")), "index" if any(parts) else "root")


def failure_word(failure: ClusterError) -> str:
    """Return one word for how a request failed: late, denied, missing, unreachable, busy or refused."""
    if failure.kind == LATE:
        return LATE
    for kind, error in (("denied", AccessDenied), ("missing", NotFound), ("unreachable", Unreachable)):
        if isinstance(failure, error):
            return kind
    return "busy" if is_busy(failure) else "refused"
