"""Turns an ordinary query into a hybrid one: what a cluster's search pipeline asks of `hybridr serve`.

Only a query that looks for one text in the index's own text fields is rewritten; every other one is given
back as it came. The original stays the lexical leg, whole; its filters also limit the dense leg. Queries
travel as JSON values, so nothing that a user types can become part of the query language.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from .bodies import hybrid_query

Query = Mapping[str, Any]
MOST_CLAUSES = 50  # of a bool query that is looked into


class Wanted(NamedTuple):
    """The text that a query looks for, and what its documents must match besides."""

    text: str
    filters: tuple[Query, ...] = ()
    excluded: tuple[Query, ...] = ()


def wanted(query: Query, fields: Collection[str]) -> Wanted | None:
    """Read the one text that a query looks for in `fields`; None where there is none, or several."""
    if not isinstance(query, Mapping) or len(query) != 1:
        return None
    [(kind, body)] = query.items()
    readers: dict[str, Callable[[Any, Collection[str]], Wanted | None]] = {
        "match": from_match, "multi_match": from_multi_match, "bool": from_bool,
    }  # fmt: skip
    reader = readers.get(kind)
    return reader(body, fields) if reader and isinstance(body, Mapping) else None


def from_match(body: Mapping[str, Any], fields: Collection[str]) -> Wanted | None:
    """Read `{"field": "text"}` or `{"field": {"query": "text", ...}}`."""
    if len(body) != 1:
        return None
    [(field, value)] = body.items()
    text = value.get("query") if isinstance(value, Mapping) else value
    return found(text) if is_among(field, fields) else None


def from_multi_match(body: Mapping[str, Any], fields: Collection[str]) -> Wanted | None:
    """Read a `multi_match` of words; phrases and prefixes ask for exactly those letters.

    One that names no fields searches all of them, the texts too.
    """
    if body.get("type", "best_fields") not in ("best_fields", "most_fields", "cross_fields"):
        return None
    named = body.get("fields") or list(fields)
    named = [named] if isinstance(named, str) else named
    ours = all(isinstance(name, str) and is_among(name, fields) for name in named)
    return found(body.get("query")) if ours else None


def from_bool(body: Mapping[str, Any], fields: Collection[str]) -> Wanted | None:
    """Read a `bool` with one text among its clauses; what else must match becomes a filter."""
    must, should = clauses(body.get("must")), clauses(body.get("should"))
    filters, excluded = clauses(body.get("filter")), clauses(body.get("must_not"))
    if len(must) + len(should) + len(filters) + len(excluded) > MOST_CLAUSES:
        return None
    texts = [(clause, one) for clause in (*must, *should) if (one := wanted(clause, fields))]
    if len({one.text for _, one in texts}) != 1:
        return None
    read = [clause for clause, _ in texts]
    required = [clause for clause in must if clause not in read]
    if not must and any(clause not in read for clause in should):
        return None  # a document may match without the text
    inner = [part for _, one in texts for part in (*one.filters, *one.excluded)]
    if inner and len(texts) > 1:
        return None  # which of the filters hold depends on the clause
    one = texts[0][1]
    return Wanted(one.text, (*one.filters, *required, *filters), (*one.excluded, *excluded))


def clauses(value: Any) -> list[Query]:
    """Give the clauses of one part of a `bool`, which may be a list, a single one or missing."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def found(text: Any) -> Wanted | None:
    """Take what a user typed; numbers, dates and empty texts are no text to encode."""
    return Wanted(text) if isinstance(text, str) and text.strip() else None


def is_among(field: str, fields: Collection[str]) -> bool:
    """Tell whether a field, with or without a boost, is one of the index's texts."""
    return field.partition("^")[0] in fields


def rewritten(query: Query, dense: Query, depth: int) -> dict[str, Any]:
    """Join the original query and its dense leg, `depth` candidates of each."""
    return hybrid_query([dict(query), dict(dense)], depth)


def filter_of(one: Wanted) -> dict[str, Any] | None:
    """Build the filter of the dense leg; None where everything may be found."""
    if not one.filters and not one.excluded:
        return None
    parts = {"filter": list(one.filters), "must_not": list(one.excluded)}
    return {"bool": {name: part for name, part in parts.items() if part}}
