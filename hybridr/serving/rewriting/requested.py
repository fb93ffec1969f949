"""Requests: what path and parameters of one say of its search, and the body as OpenSearch writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...search.clauses import NotRanked
from .shown import one_or_more

OF_TEXT = ("analyzer", "analyze_wildcard", "lenient")  # beside `q`
OF_SOURCE = ("_source", "_source_includes", "_source_excludes")
WITHIN = frozenset(
    ("q", "df", "default_operator", "from", "size", "sort", "stored_fields", *OF_TEXT, *OF_SOURCE)
)
"""What of an address `as_sent` writes into the body."""
OF_BODY = ("source", "source_content_type")
"""A body in the address, for clients that cannot send one with GET."""
UNREAD = {"search_pipeline": "pipeline", "source": "unreadable", "pit": "part"}
"""What of an address keeps its search as it is, and why."""


def reason_of_path(api: str, params: Mapping[str, Any]) -> NotRanked | None:
    """Say why a request to an API of OpenSearch, with the parameters of its address, is not ranked anew."""
    if api in ("_delete_by_query", "_update_by_query", "_reindex"):
        return NotRanked("by_query")
    if api != "_search":
        return NotRanked("counting" if api == "_count" else "no_search")
    return next((NotRanked(UNREAD[name]) for name in params if name in UNREAD), None)


def source_of(params: Mapping[str, Any]) -> str | None:
    """Return the body of a search that stands in its address; None of none that is JSON."""
    kind = str(params.get("source_content_type", ""))
    return params["source"] if "source" in params and "json" in kind and "ndjson" not in kind else None


def as_sent(body: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Write a client's body as OpenSearch passes it on: parameters within, every sort in its long form."""
    names = {{"aggs": "aggregations"}.get(name, name): value for name, value in body.items()}
    names |= {name: int(params[name]) for name in ("from", "size") if name in params}
    if "q" in params:
        default = {"default_operator": params.get("default_operator", "or")}
        fields = {"default_field": params["df"]} if "df" in params else {}
        parameters = {name: params[name] for name in OF_TEXT if name in params}
        names["query"] = {"query_string": {"query": params["q"], **default, **fields, **parameters}}
    sort = params["sort"].split(",") if "sort" in params else names.get("sort")
    if sort is not None:
        names["sort"] = [long_sort(key) for key in (sort if isinstance(sort, list) else [sort])]
    if "stored_fields" in params:
        names["stored_fields"] = params["stored_fields"].split(",")
    source = source_in(params) if set(OF_SOURCE).intersection(params) else names.get("_source")
    return names if source is None else {**names, "_source": long_source(source)}


def source_in(params: Mapping[str, Any]) -> Any:
    """Write what the parameters of an address show of documents as a body does."""
    source = params.get("_source", "true")
    if source == "false":
        return False
    names = [] if source == "true" else source.split(",")
    parts = {"includes": params.get("_source_includes"), "excludes": params.get("_source_excludes")}
    return {"includes": names} | {part: fields.split(",") for part, fields in parts.items() if fields}


def long_source(source: Any) -> Any:
    """Write out what hits show of documents: `"title"`, `["title"]`, true."""
    if source is True:
        return {}
    return {"includes": one_or_more(source)} if isinstance(source, str | list) else source


def long_sort(key: Any) -> Any:
    """Write out what a client sorts by: `"price:desc"`, `"_score"`, `{"price": "desc"}`."""
    if isinstance(key, str):
        field, _, order = key.partition(":")
        return {field: {"order": order or ("desc" if field == "_score" else "asc")}}
    return {field: {"order": how} if isinstance(how, str) else how for field, how in key.items()}
