"""What comes back of documents: their vectors stay out of hits, of those inside groups and buckets too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..search.client_query import RELATIVES

WITHOUT_SOURCE = frozenset({"stored_fields", "script_fields"})
"""What has an answer without `_source` unless that is asked for, too."""
BUCKETS = ("aggregations", "aggs")


def without_field(field: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Leave a field out of the `_source` of hits, unless the client names it; `asked` says what they show."""
    if "_source" not in asked and WITHOUT_SOURCE.intersection(asked):
        return dict(asked)
    source = asked.get("_source", {})
    if not isinstance(source, Mapping) or field in one_or_more(source.get("includes", ())):
        return dict(asked)
    return {**asked, "_source": {**source, "excludes": [*one_or_more(source.get("excludes", ())), field]}}


def one_or_more(names: Any) -> list[Any]:
    """Give names as a list, of which a client may write one by itself."""
    return [names] if isinstance(names, str) else list(names)


def without_field_inside(field: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Leave a field out of all hits that a search shows, as `without_field` does."""
    shown = without_field(field, body)
    if isinstance(groups := body.get("collapse"), Mapping):
        shown["collapse"] = with_hits_inside(field, groups, "inner_hits")
    shown |= buckets_inside(field, body)
    if "query" in body:
        shown["query"] = in_query(field, body["query"])
    return shown


def with_hits_inside(field: str, part: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Leave the field out of the hits that a part asks for by a name."""
    asked = part.get(name)
    if isinstance(asked, list):
        return {**part, name: [without_field(field, one) for one in asked]}
    return {**part, name: without_field(field, asked)} if isinstance(asked, Mapping) else dict(part)


def in_buckets(field: str, aggregations: Mapping[str, Any]) -> dict[str, Any]:
    """Leave the field out of the hits that buckets show."""
    found = {}
    for name, one in aggregations.items():
        found[name] = with_hits_inside(field, one, "top_hits") if isinstance(one, Mapping) else one
        if isinstance(one, Mapping):
            found[name] |= buckets_inside(field, one)
    return found


def buckets_inside(field: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Give the aggregations of a body, or of a bucket, without the field."""
    return {part: in_buckets(field, body[part]) for part in BUCKETS if isinstance(body.get(part), Mapping)}


def in_query(field: str, query: Any) -> Any:
    """Leave the field out of relatives, documents of their own, that a query shows inside."""
    if isinstance(query, list):
        return [in_query(field, one) for one in query]
    if not isinstance(query, Mapping):
        return query
    return {
        kind: in_query(
            field,
            with_hits_inside(field, of, "inner_hits")
            if kind in RELATIVES and isinstance(of, Mapping) and "query" in of
            else of,
        )
        for kind, of in query.items()
    }
