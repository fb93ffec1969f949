"""`bool`: one text among its clauses, and what else must or must not match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import Clause, QueryBody, QueryReader, Reason, Wanted, joined

MOST_CLAUSES = 50  # that are looked into
OF_VECTORS = frozenset({"knn", "neural", "neural_sparse"})
PLAIN = frozenset({"term", "terms", "range", "exists", "ids", "prefix", "wildcard", "match_all"})
"""Queries that say which documents there are, and nothing about which one is better."""


class Bool(Clause):
    """Joins queries; one of those that count must look for the text."""

    name = "bool"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> Wanted | Reason:
        """Take the text of its clauses; what else must match becomes a filter."""
        must, should, filters, excluded = map(
            clauses_of, (body.get(part) for part in ("must", "should", "filter", "must_not"))
        )
        if len(must) + len(should) + len(filters) + len(excluded) > MOST_CLAUSES:
            return "clauses"
        read = [(clause, reader.read(clause)) for clause in (*must, *should)]
        texts = [one for _, one in read if not isinstance(one, str)]
        if not texts:
            return without_text(read, filters)
        one = joined(texts)
        if isinstance(one, str):
            return one
        required = [clause for clause, found in read[: len(must)] if isinstance(found, str)]
        others = [clause for clause, found in read[len(must) :] if isinstance(found, str)]
        added = [*others, *beyond_plain(required)]
        if any(OF_VECTORS.intersection(clause) for clause in added):
            return "scores"
        beside = (("must", {"bool": {"should": added}}),) if added else ()
        return one._replace(
            filters=(*one.filters, *required, *filters),
            excluded=(*one.excluded, *excluded),
            around=(*one.around, *beside),
            demand=one.demand or demand_of_clauses(body, read[: len(must)], optional=bool(others and must)),
        )


def clauses_of(value: Any) -> list[QueryBody]:
    """Give the clauses of one part of a `bool`, which may be a list, a single one or missing."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def without_text(read: Sequence[tuple[QueryBody, Any]], filters: Sequence[QueryBody]) -> Reason:
    """Say why none of the clauses looks for a text."""
    told = [reason for _, reason in read if reason != "kind"]
    return next(iter(told), "only_a_filter" if filters and not read else "kind")


def beyond_plain(required: Sequence[QueryBody]) -> list[QueryBody]:
    """List the clauses that must match and have scores of their own."""
    return [one for one in required if not PLAIN.issuperset(one)]


def demand_of_clauses(
    body: Mapping[str, Any], must: Sequence[tuple[QueryBody, Any]], *, optional: bool
) -> Reason | None:
    """Say that such a query asks for more than one word of its text, or for the text in several fields; where
    clauses beside it are `optional`, for any of them."""
    if sum(not isinstance(found, str) for _, found in must) > 1:
        return "several_fields"
    few = ("0",) if optional else ("0", "1")
    return None if str(body.get("minimum_should_match", few[-1])) in few else "minimum_should_match"
