"""Reads URL and parameters of a search request, normalises its body as OpenSearch does, and hides hybridr's
fields.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ...search.clauses import NotRanked
from ...search.client_query import RELATIVES

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
WITHOUT_SOURCE = frozenset({"stored_fields", "script_fields"})
"""What has an answer without `_source` unless that is asked for, too."""
OLD_NAMES = {"include": "includes", "exclude": "excludes"}
"""Of two names of one part a cluster takes what comes last."""
MOST_PATTERNS = 20  # of one search, each of which may stand for all fields
BUCKETS = ("aggregations", "aggs")


def reason_of_path(api: str, params: Mapping[str, Any]) -> NotRanked | None:
    """Return why a request to this API with these URL parameters is not ranked; None if it may be."""
    if api in ("_delete_by_query", "_update_by_query", "_reindex"):
        return NotRanked("by_query")
    if api != "_search":
        return NotRanked("counting" if api == "_count" else "no_search")
    return next((NotRanked(UNREAD[name]) for name in params if name in UNREAD), None)


def source_of(params: Mapping[str, Any]) -> str | None:
    """Return the JSON body given in the URL parameter `source`; None without one."""
    kind = str(params.get("source_content_type", ""))
    return params["source"] if "source" in params and "json" in kind and "ndjson" not in kind else None


def as_sent(body: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's body as OpenSearch normalises it: URL parameters included, every sort in its long
    form.
    """
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
    if source is not None:
        listed = {"includes": one_or_more(source)} if isinstance(source, str | list) else source
        names["_source"] = {} if source is True else listed
    return names


def source_in(params: Mapping[str, Any]) -> Any:
    """Return the `_source` filter in URL parameters, in the form of a body."""
    source = params.get("_source", "true")
    if source == "false":
        return False
    names = [] if source == "true" else source.split(",")
    parts = {"includes": params.get("_source_includes"), "excludes": params.get("_source_excludes")}
    return {"includes": names} | {part: fields.split(",") for part, fields in parts.items() if fields}


def long_sort(key: Any) -> Any:
    """Return a sort key in its long form: from `"price:desc"`, `"_score"` or `{"price": "desc"}`."""
    if isinstance(key, str):
        field, _, order = key.partition(":")
        return {field: {"order": order or ("desc" if field == "_score" else "asc")}}
    return {field: {"order": how} if isinstance(how, str) else how for field, how in key.items()}


class HiddenField(NamedTuple):
    """A field to keep out of hits, and `others`, all other fields of its index."""

    name: str
    others: tuple[str, ...] = ()


def without_field(hidden: HiddenField, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return a search body that leaves a field out of the hits, unless the client names the field."""
    changed = dict(query)
    if "fields" in query:
        changed["fields"] = without_patterns(hidden, one_or_more(query["fields"]))
    whole = "_source" in one_or_more(query.get("stored_fields", ()))  # whatever else is said of it
    if "_source" not in query and not whole and WITHOUT_SOURCE.intersection(query):
        return changed
    source = query.get("_source", {})
    source = {} if whole and source is False else source
    if not isinstance(source, Mapping):
        return changed
    parts = {OLD_NAMES.get(part, part): one_or_more(names) for part, names in source.items()}
    if hidden.name in parts.get("includes", ()):
        return changed
    return {**changed, "_source": {**parts, "excludes": [*parts.get("excludes", ()), hidden.name]}}


def without_patterns(hidden: HiddenField, fields: Sequence[Any]) -> list[Any]:
    """Return `fields` with patterns that match the hidden field replaced by the other fields they match.

    An entry is a name, or an object with a `field`. A list with too many patterns is returned unchanged.
    """
    names = [field.get("field") if isinstance(field, Mapping) else field for field in fields]
    matching = [isinstance(name, str) and "*" in name and matches(hidden.name, name) for name in names]
    if not 0 < sum(matching) <= MOST_PATTERNS:
        return list(fields)
    written: list[Any] = []
    for field, name, is_pattern in zip(fields, names, matching, strict=True):
        others = [pattern for pattern in hidden.others if is_pattern and matches(pattern, str(name))]
        if not is_pattern:
            written.append(field)
        elif isinstance(field, Mapping):
            written += [{**field, "field": pattern} for pattern in others]
        else:
            written += others
    return written


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern, in which only `*` is special, matches a name."""
    return fnmatchcase(name, re.sub(r"[][?]", r"[\g<0>]", pattern))


def one_or_more(names: Any) -> list[Any]:
    """Return names as a list; a client may give a single name."""
    return [names] if isinstance(names, str) else list(names)


def without_field_inside(hidden: HiddenField, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a search body that leaves a field out of all hits, also those inside of groups and
    aggregations.
    """
    changed = without_field(hidden, body)
    if isinstance(groups := body.get("collapse"), Mapping):
        changed["collapse"] = with_hits_inside(hidden, groups, "inner_hits")
    changed |= in_buckets(hidden, body)
    if "query" in body:
        changed["query"] = in_query(hidden, body["query"])
    return changed


def with_hits_inside(hidden: HiddenField, part: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a part of a body that leaves the field out of the inner hits requested under `name`."""
    queries = part.get(name)
    if isinstance(queries, list):
        return {**part, name: [without_field(hidden, query) for query in queries]}
    return {**part, name: without_field(hidden, queries)} if isinstance(queries, Mapping) else dict(part)


def in_buckets(hidden: HiddenField, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the aggregations of a body or bucket, leaving the field out of their `top_hits`."""
    parts: dict[str, Any] = {}
    for part in BUCKETS:
        if isinstance(body.get(part), Mapping):
            parts[part] = dict(body[part])
            for name, aggregation in body[part].items():
                if isinstance(aggregation, Mapping):
                    buckets = in_buckets(hidden, aggregation)
                    parts[part][name] = with_hits_inside(hidden, aggregation, "top_hits") | buckets
    return parts


def in_query(hidden: HiddenField, query: Any) -> Any:
    """Return a query that leaves the field out of the inner hits of `has_child` and `has_parent`."""
    if isinstance(query, list):
        return [in_query(hidden, clause) for clause in query]
    if not isinstance(query, Mapping):
        return query
    return {
        kind: in_query(
            hidden,
            with_hits_inside(hidden, inner, "inner_hits")
            if kind in RELATIVES and isinstance(inner, Mapping) and "query" in inner
            else inner,
        )
        for kind, inner in query.items()
    }


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object from its pairs. Raises ValueError for a repeated key."""
    keys = dict(pairs)
    if len(keys) < len(pairs):
        raise ValueError("an object has two parts of one name")
    return keys


def finite_number(number: str) -> float:
    """Return a JSON number. Raises ValueError for an infinite one, which would be written as null."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is no number that can be passed on")
    return value


def strict_json(raw: bytes) -> Any:
    """Return a parsed JSON body without ambiguities, because other programs parse it again. Raises
    ValueError.
    """
    return json.loads(
        raw, parse_float=finite_number, parse_constant=finite_number, object_pairs_hook=distinct
    )
