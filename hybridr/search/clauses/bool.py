"""`bool`: a text among its clauses, and what else must or must not match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..fusions import WITHIN
from . import Clause, NotRanked, ParsedQuery, QueryBody, QueryReader, Read, joined

MOST_CLAUSES = 50  # that are looked into
OF_VECTORS = frozenset({"knn", "neural", "neural_sparse"})
PLAIN = frozenset({"term", "terms", "range", "exists", "ids", "prefix", "wildcard", "match_all"})
"""Queries that say which documents there are, and nothing about which one is better."""


class Bool(Clause):
    """Joins queries; one of those that count must look for a text.

    What has to match says which text it is, where it looks for one; others that may match add to its score.
    """

    name = "bool"

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Take the texts of its clauses; what else must match becomes a filter."""
        if WITHIN.items() <= body.items():
            return NotRanked("ranked")
        must, should, filters, excluded = map(
            clauses_of, (body.get(part) for part in ("must", "should", "filter", "must_not"))
        )
        if len(must) + len(should) + len(filters) + len(excluded) > MOST_CLAUSES:
            return NotRanked("clauses", f"more than {MOST_CLAUSES} in one bool")
        read = [(clause, reader.read(clause)) for clause in (*must, *should)]
        demanded, wished = looking_for_text(read[: len(must)]), looking_for_text(read[len(must) :])
        clauses = [*demanded, *alike(wished, demanded)] if demanded else wished
        if not clauses:
            return without_text(read, filters)
        parsed = joined(clauses)
        if isinstance(parsed, NotRanked):
            return parsed
        if demanded and (must_be := joined(demanded)) != parsed and isinstance(must_be, ParsedQuery):
            parsed = parsed._replace(demand=must_be.demand)
        counted = [clause for clause, _ in clauses]
        required = [clause for clause, part in read[: len(must)] if isinstance(part, NotRanked)]
        others = [clause for clause in should if clause not in counted]
        added = [*others, *beyond_plain(required)]
        if vectors := OF_VECTORS.intersection(kind for clause in added for kind in clause):
            return NotRanked("scores", ", ".join(vectors))
        extra = (("must", {"bool": {"should": added}}),) if added else ()
        return parsed._replace(
            filters=(*parsed.filters, *required, *filters),
            excluded=(*parsed.excluded, *excluded),
            around=(*parsed.around, *extra),
            demand=parsed.demand or demand_of_clauses(body, demanded, optional=bool(others and must)),
        )


def clauses_of(value: Any) -> list[QueryBody]:
    """Give the clauses of one part of a `bool`, which may be a list, a single one or missing."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def scores_as(query: QueryBody, words: QueryBody) -> bool:
    """Tell whether all that scores in a query is what scores its text: conditions may stand around it."""
    if query == words:
        return True
    [(kind, body)] = query.items()
    if kind != "bool" or "boost" in body:
        return False
    counted = [*clauses_of(body.get("must")), *clauses_of(body.get("should"))]
    return scores_as(counted[0], words) if len(counted) == 1 else words == {"bool": {"should": counted}}


def looking_for_text(read: Sequence[tuple[QueryBody, ParsedQuery | NotRanked]]) -> list[Read]:
    """List the clauses that look for a text, with it."""
    return [(clause, part) for clause, part in read if isinstance(part, ParsedQuery)]


def alike(wished: Sequence[Read], demanded: Sequence[Read]) -> list[Read]:
    """List the clauses that look for what is demanded once more, and do nothing else to its score."""
    texts = {part.text for _, part in demanded}
    return [(clause, part) for clause, part in wished if part.text in texts and not part.around]


def without_text(read: Sequence[tuple[QueryBody, Any]], filters: Sequence[QueryBody]) -> NotRanked:
    """Return why none of the clauses looks for a text."""
    reasons = [part for _, part in read if part.reason != "kind"]
    return next(iter(reasons), NotRanked("only_a_filter" if filters and not read else "kind"))


def beyond_plain(required: Sequence[QueryBody]) -> list[QueryBody]:
    """List the clauses that must match and have scores of their own."""
    return [clause for clause in required if not PLAIN.issuperset(clause)]


def demand_of_clauses(body: Mapping[str, Any], demanded: Sequence[Read], *, optional: bool) -> str | None:
    """Say that such a query asks for more than one word of its text, or for the text in several fields; where
    clauses beside it are `optional`, for any of them."""
    if len(demanded) > 1:
        return "several_fields"
    few = ("0",) if optional else ("0", "1")
    return None if str(body.get("minimum_should_match", few[-1])) in few else "minimum_should_match"
