"""Filters that only compare the fields of a document with given values: what a stranger may ask for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CLAUSES: dict[str, tuple[str, ...]] = {
    "term": ("value", "case_insensitive"),
    "terms": ("values",),
    "range": ("gte", "gt", "lte", "lt", "format", "time_zone", "relation"),
    "exists": ("field",),
    "ids": ("values",),
    "match": ("query", "operator", "minimum_should_match", "zero_terms_query", "lenient"),
    "bool": ("minimum_should_match",),
}
"""The clauses that a filter may be made of, with their options; the first is what stands for all of them."""
BY_FIELD, LISTS = ("term", "terms", "range", "match"), ("terms", "ids")
BESIDE = ("boost", "_name")
PARTS_OF_BOOL = ("must", "filter", "should", "must_not")
MOST_CLAUSES_OF_FILTER, MOST_VALUES, DEEPEST_FILTER = 100, 1024, 8


def require_comparing(filter: Any) -> None:
    """Raise ValueError for a filter that does more than compare fields with values.

    Whoever asks for somebody else lends him his rights: a lookup would read other indices, a script runs
    code, and patterns may take minutes.
    """
    try:
        if sum(1 for _ in comparisons(filter)) > MOST_CLAUSES_OF_FILTER:
            raise ValueError(f"more than {MOST_CLAUSES_OF_FILTER} clauses")
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def comparisons(clause: Any, depth: int = 0) -> Iterator[str]:
    """Yield the kind of every clause of a filter. Raises ValueError for one that is not taken."""
    if not isinstance(clause, dict) or len(clause) != 1:
        raise ValueError("a clause is an object with one key")
    [(kind, body)] = clause.items()
    if kind not in CLAUSES or not isinstance(body, dict):
        raise ValueError(f"'{str(kind)[:50]}' is not taken")
    if depth > DEEPEST_FILTER:
        raise ValueError(f"nested deeper than {DEEPEST_FILTER}")
    yield kind
    if kind == "bool":
        for part, value in body.items():
            inner = value if isinstance(value, list) else [value]
            for condition in inner if part in PARTS_OF_BOOL else ():
                yield from comparisons(condition, depth + 1)
        body = {part: value for part, value in body.items() if part not in PARTS_OF_BOOL}
    check_clause(kind, body)


def check_clause(kind: str, body: dict[str, Any]) -> None:
    """Raise ValueError for an option of a clause that is unknown, or no plain value."""
    options = CLAUSES[kind]
    of_field = [value for name, value in body.items() if name not in BESIDE]
    if kind in BY_FIELD:
        if len(of_field) != 1:
            raise ValueError(f"{kind} names one field")
        body = of_field[0] if isinstance(of_field[0], dict) else {options[0]: of_field[0]}
    for name, value in body.items():
        if name not in options and name not in BESIDE:
            raise ValueError(f"'{str(name)[:50]}' of {kind} is not taken")
        values = value if isinstance(value, list) and kind in LISTS else [value]
        if len(values) > MOST_VALUES or any(isinstance(item, dict | list) for item in values):
            raise ValueError(f"{kind} takes plain values, at most {MOST_VALUES}")
