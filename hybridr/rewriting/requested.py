"""Requests: what path and parameters of one say of its search, and the body as OpenSearch writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .clauses import Reason


def reason_of_path(api: str, params: Mapping[str, Any]) -> Reason | None:
    """Say why a request to an API of OpenSearch, with the parameters of its address, is not ranked anew."""
    if api in ("_delete_by_query", "_update_by_query", "_reindex"):
        return "by_query"
    if api != "_search":
        return "counting" if api == "_count" else "no_search"
    return "pipeline" if "search_pipeline" in params else None


def as_sent(body: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Write a client's body as OpenSearch passes it on: parameters within, every sort in its long form."""
    found = {{"aggs": "aggregations"}.get(name, name): value for name, value in body.items()}
    found |= {name: int(params[name]) for name in ("from", "size") if name in params}
    if "q" in params:
        default = {"default_operator": params.get("default_operator", "or")}
        fields = {"default_field": params["df"]} if "df" in params else {}
        found["query"] = {"query_string": {"query": params["q"], **default, **fields}}
    sort = params["sort"].split(",") if "sort" in params else found.get("sort")
    if sort is not None:
        found["sort"] = [long_sort(one) for one in (sort if isinstance(sort, list) else [sort])]
    return found


def long_sort(one: Any) -> Any:
    """Write out what a client sorts by: `"price:desc"`, `"_score"`, `{"price": "desc"}`."""
    if isinstance(one, str):
        field, _, order = one.partition(":")
        return {field: {"order": order or ("desc" if field == "_score" else "asc")}}
    return {field: {"order": how} if isinstance(how, str) else how for field, how in one.items()}
