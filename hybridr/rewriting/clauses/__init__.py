"""Clauses: kinds of queries by which a client may look for one text; one file each.

A member reads the body of its kind. What no member reads looks for no text, and is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from ...families import member_of, names_of

FAMILY = "rewriting.clauses"
QueryBody: TypeAlias = Mapping[str, Any]
Reason: TypeAlias = str
"""Why a search is left as its client wrote it: one of REASONS."""
REASONS: Mapping[Reason, str] = {
    "kind": "a query of this kind looks for no text by its words",
    "field": "it asks a field that is none of the texts that are searched",
    "no_text": "what it looks for is no text: a number, a date, or nothing",
    "phrase": "it asks for exactly these letters: a phrase or a beginning",
    "syntax": "signs and operators in its text ask for more than words",
    "texts": "it looks for several texts, or for none",
    "only_a_filter": "its text only says what is found, not what is better",
    "clauses": "its clauses are too many, or have filters of their own",
    "operator": "it demands every word, and neighbours would break that",
    "several_fields": "it demands its text in each of several fields, and neighbours would break that",
    "minimum_should_match": "it demands several words, and neighbours would break that",
    "scores": "vectors of its own, or functions of several clauses, make its scores",
    "functions": "its functions cut by a score of BM25, or leave nothing of it",
    "no_query": "it has no query",
    "no_search": "it is no `_search`; the bodies of `_msearch` are judged one by one",
    "pipeline": "it names a search pipeline of its own",
    "scroll": "OpenSearch leaves `rescore` out of it: BM25 plus the cosines of neighbours is its order",
    "counting": "nothing is ranked: matches are counted",
    "by_query": "it changes or copies documents by query",
    "sort": "it asks for another order",
    "search_after": "it goes on after a hit of another order",
    "collapse": "OpenSearch takes no `rescore` beside `collapse`",
    "rescore": "it has a `rescore` of its own",
    "slice": "it is one slice of a reading of everything",
    "min_score": "its `min_score` is on the scale of BM25, and is honoured there",
    "indices_boost": "it weighs the scores of indices",
    "part": "it has a part that may mean something else beside `rescore`",
    "window": "its page is larger than index.max_rescore_window allows",
    "unknown_words": "no document has any of its words",
    "too_long": "its text is longer than [serve] max_query_characters",
    "fusion": "the index is not ranked by true scores",
    "unreadable": "its body is odd in some way",
    "late": "the server took longer than [serve] rank_timeout_s",
    "another_index": "the server asks another index than the one that was searched, for some seconds",
    "failed": "the encoder or the cluster failed",
}


class Wanted(NamedTuple):
    """The one text that a query looks for, and what its documents must match besides.

    `around` are queries that change the score of the text, the inner one first, each with the name of the
    part in which it stands. `demand` says why neighbours may not be found beside what the words match.
    """

    text: str
    filters: tuple[QueryBody, ...] = ()
    excluded: tuple[QueryBody, ...] = ()
    around: tuple[tuple[str, QueryBody], ...] = ()
    demand: Reason | None = None


class Clause(Protocol):
    """Reads one kind of query; a member subclasses this: `name`, that of the kind, and `read`."""

    name: ClassVar[str]

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> Wanted | Reason:
        """Read the one text of a query of this kind, or say why there is none."""


class QueryReader:
    """Reads queries for the one text that they look for in some fields."""

    def __init__(self, fields: Collection[str]) -> None:
        self.fields = frozenset(fields)
        self._clauses: dict[str, Clause] = {name: member_of(FAMILY, name)() for name in names_of(FAMILY)}

    def read(self, query: Any) -> Wanted | Reason:
        """Read the one text that a query looks for, or why there is none. Raises TypeError for no query."""
        if not isinstance(query, Mapping):
            raise TypeError(f"a query is an object, not {type(query).__name__}")
        if len(query) != 1:
            return "kind"
        [(kind, body)] = query.items()
        clause = self._clauses.get(kind)
        return clause.read(body, self) if clause and isinstance(body, Mapping) else "kind"

    def text_of(self, text: Any, named: Any, options: Mapping[str, Any]) -> Wanted | Reason:
        """Take what a user typed to be found in the `named` fields, with or without boosts; none are all."""
        named = [named] if isinstance(named, str) else named or ()
        if not all(map(self.has, named)):
            return "field"
        if not isinstance(text, str) or not text.strip():
            return "no_text"  # numbers and dates are none to encode
        return Wanted(text, demand=demand_of(options))

    def inside(self, kind: str, body: Mapping[str, Any], part: str) -> Wanted | Reason:
        """Read the text within a `part` of a query that changes its score by all that it says besides."""
        one = self.read(body.get(part))
        if isinstance(one, str):
            return one
        outside = {name: value for name, value in body.items() if name != part}
        return one._replace(around=(*one.around, (part, {kind: outside})))

    def has(self, field: Any) -> bool:
        """Tell whether a field, with or without a boost, is one of the index's texts."""
        return isinstance(field, str) and field.partition("^")[0] in self.fields


def demand_of(options: Mapping[str, Any]) -> Reason | None:
    """Name the option by which a query for words demands more than one of them."""
    for name in ("operator", "default_operator"):
        if str(options.get(name, "or")).lower() != "or":
            return "operator"
    return "minimum_should_match" if options.get("minimum_should_match") is not None else None


def joined(texts: Iterable[Wanted]) -> Wanted | Reason:
    """Join clauses for the same text, any of which may match, to one."""
    found = list(texts)
    if len({one.text for one in found}) != 1:
        return "texts"
    if len(found) == 1:
        return found[0]
    if any(one.filters or one.excluded for one in found):
        return "clauses"  # which of the filters hold depends on the clause
    if any(one.around for one in found):
        return "scores"
    return Wanted(found[0].text, demand=next((one.demand for one in found if one.demand), None))
