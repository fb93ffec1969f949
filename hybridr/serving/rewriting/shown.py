"""What comes back of documents: their vectors stay out of hits, of those inside groups and buckets too."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from ...search.client_query import RELATIVES

WITHOUT_SOURCE = frozenset({"stored_fields", "script_fields"})
"""What has an answer without `_source` unless that is asked for, too."""
OLD_NAMES = {"include": "includes", "exclude": "excludes"}
"""Of two names of one part a cluster takes what comes last."""
MOST_PATTERNS = 20  # of one search, each of which may stand for all fields
BUCKETS = ("aggregations", "aggs")


class HiddenField(NamedTuple):
    """A field that stays out of hits, and `others`, all other fields of its index."""

    name: str
    others: tuple[str, ...] = ()


def without_field(hidden: HiddenField, query: Mapping[str, Any]) -> dict[str, Any]:
    """Leave a field out of what hits show, unless the client names it; `asked` says what they show."""
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
    """Write out the patterns of `fields` that match the hidden field; a list of many of them stays as it is.

    One of `fields` is a name, or an object with a `field`.
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
    """Tell whether a pattern of a cluster, in which `*` is the only sign, matches a name."""
    return fnmatchcase(name, re.sub(r"[][?]", r"[\g<0>]", pattern))


def one_or_more(names: Any) -> list[Any]:
    """Give names as a list, of which a client may write one by itself."""
    return [names] if isinstance(names, str) else list(names)


def without_field_inside(hidden: HiddenField, body: Mapping[str, Any]) -> dict[str, Any]:
    """Leave a field out of all hits that a search shows, as `without_field` does."""
    changed = without_field(hidden, body)
    if isinstance(groups := body.get("collapse"), Mapping):
        changed["collapse"] = with_hits_inside(hidden, groups, "inner_hits")
    changed |= buckets_inside(hidden, body)
    if "query" in body:
        changed["query"] = in_query(hidden, body["query"])
    return changed


def with_hits_inside(hidden: HiddenField, part: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Leave the field out of the hits that a part asks for by a name."""
    queries = part.get(name)
    if isinstance(queries, list):
        return {**part, name: [without_field(hidden, query) for query in queries]}
    return {**part, name: without_field(hidden, queries)} if isinstance(queries, Mapping) else dict(part)


def in_buckets(hidden: HiddenField, aggregations: Mapping[str, Any]) -> dict[str, Any]:
    """Leave the field out of the hits that buckets show."""
    buckets = {}
    for name, aggregation in aggregations.items():
        buckets[name] = (
            with_hits_inside(hidden, aggregation, "top_hits")
            if isinstance(aggregation, Mapping)
            else aggregation
        )
        if isinstance(aggregation, Mapping):
            buckets[name] |= buckets_inside(hidden, aggregation)
    return buckets


def buckets_inside(hidden: HiddenField, body: Mapping[str, Any]) -> dict[str, Any]:
    """Give the aggregations of a body, or of a bucket, without the field."""
    return {part: in_buckets(hidden, body[part]) for part in BUCKETS if isinstance(body.get(part), Mapping)}


def in_query(hidden: HiddenField, query: Any) -> Any:
    """Leave the field out of relatives, documents of their own, that a query shows inside."""
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
