"""Clauses: kinds of queries by which a client may look for one text; one file each.

A member reads the body of its kind. What no member reads looks for no text, and is left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from ...cluster.fields import TEXT_TYPES
from ...families import member_of, names_of
from ..rules.matching import MatchedRules

FAMILY = "search.clauses"
QueryBody: TypeAlias = Mapping[str, Any]
REASONS: Mapping[str, str] = {
    "kind": "a query of this kind looks for no text by its words",
    "field": "it asks no field whose words are analysed; name one of type text too",
    "no_text": "what it looks for is no text: a number, a date, or nothing",
    "phrase": "it asks for exactly these letters: a phrase or a beginning, and neighbours would break that",
    "syntax": "signs and operators in its text ask for more than words",
    "texts": "it looks for several texts",
    "only_a_filter": "its text only says what is found, not what is better; ask for it in `must`",
    "clauses": "its clauses are too many, or have filters of their own, which neighbours would break",
    "calibrating": "its query is seen for the first time: in seconds it has a scale, and is ranked",
    "scale": "no words of the index's documents score by it: ask a field of type text, boost above 0",
    "operator": "it demands every word, and neighbours would break that",
    "several_fields": "it demands its text in each of several fields, and neighbours would break that",
    "minimum_should_match": "it demands several words, and neighbours would break that",
    "scores": "its scores are of vectors, or set by functions: put these around all clauses for the text",
    "functions": "its functions cut by a score of BM25, or use none: multiply it, or use `_score`",
    "ranked": "it asks for hits inside of groups, by a query that ranks already",
    "no_query": "it has no query",
    "no_search": "it is no `_search`; the bodies of `_msearch` are judged one by one",
    "pipeline": "it names a search pipeline of its own",
    "scroll": "OpenSearch leaves `rescore` out of it: BM25 plus the cosines of neighbours is its order",
    "counting": "nothing is ranked: matches are counted",
    "by_query": "it changes or copies documents by query",
    "sort": "it asks for another order",
    "search_after": "it goes on after a hit of another order",
    "rescore": "it has a `rescore` of its own",
    "slice": "it is one slice of a reading of everything",
    "min_score": "its `min_score` is on the scale of BM25, which neighbours, groups and ties have not",
    "indices_boost": "it weighs the scores of indices",
    "part": "it has a part that may mean something else beside `rescore`",
    "window": "its page is larger than index.max_rescore_window allows",
    "scripts": "it has functions, groups or ties, and the cluster runs no scripts",
    "signed": "it is signed by AWS's rules: of another body the signature would be wrong",
    "unknown_words": "no document has any of its words",
    "too_long": "its text is longer than [serve] max_query_characters",
    "fusion": "the index is not ranked by true scores",
    "unreadable": "its body is odd in some way",
    "late": "the server took longer than [serve] rank_timeout_s",
    "another_index": "the server asks another index than the one that was searched, for some seconds",
    "filtered_alias": "its alias shows a part of the index (filter, routing), the server's name another one",
    "anonymous": "it has no Authorization, which the cluster asks for",
    "failed": "the encoder or the cluster failed",
}


MOST_TEXTS = 4  # that one query may look for
ONLY_FOR_ALL = ("phrase", "syntax")
"""Demands of a clause that another one beside it need not keep."""
OTHERWISE = ("fuzziness", "analyzer")
"""Options by which a query finds other words than those of its text."""
NO_TYPES: Mapping[str, str] = MappingProxyType({})


class NotRanked(NamedTuple):
    """Why a search is left as its client wrote it: one of REASONS, and what it is about."""

    reason: str
    detail: str = ""

    @property
    def why(self) -> str:
        """The reason in a sentence."""
        return f"{self.detail}: {REASONS[self.reason]}" if self.detail else REASONS[self.reason]


class ParsedQuery(NamedTuple):
    """The text that a query looks for, and what its documents must match besides.

    `around` are queries that change the score of the text, the inner one first, each with the name of the
    part in which it stands. `demand` says why neighbours may not be found beside what the words match.
    `words` is what scores the text in the client's own way, None where that is the words of the searched
    fields; in it the text is `typed`, by default as it stands in `text`, and its scores are `scale` times
    those of the plain query. `ruling` is what rules make of the text.
    """

    text: str
    filters: tuple[QueryBody, ...] = ()
    excluded: tuple[QueryBody, ...] = ()
    around: tuple[tuple[str, QueryBody], ...] = ()
    demand: str | None = None
    words: QueryBody | None = None
    typed: tuple[str, ...] = ()
    scale: float = 1.0
    ruling: MatchedRules | None = None

    @property
    def strings(self) -> tuple[str, ...]:
        """Give the strings of the query that are what a user typed."""
        return self.typed or (self.text,)


Read: TypeAlias = tuple[QueryBody, ParsedQuery]
"""A clause, and what it looks for."""


class Clause(Protocol):
    """Reads one kind of query; a member subclasses this: `name`, that of the kind, and `read`."""

    name: ClassVar[str]

    def read(self, body: Mapping[str, Any], reader: QueryReader) -> ParsedQuery | NotRanked:
        """Read the text of a query of this kind, or say why there is none."""


class QueryReader:
    """Reads queries for the text that they look for.

    `fields` are those that are searched by words; `types` tells the type of every field of the index.
    """

    def __init__(self, fields: Collection[str], types: Mapping[str, str] = NO_TYPES) -> None:
        self.fields, self.types = frozenset(fields), types
        self._clauses: dict[str, Clause] = {name: member_of(FAMILY, name)() for name in names_of(FAMILY)}

    def read(self, query: Any) -> ParsedQuery | NotRanked:
        """Read the text that a query looks for, or why there is none. Raises TypeError for no query."""
        if not isinstance(query, Mapping):
            raise TypeError(f"a query is an object, not {type(query).__name__}")
        if len(query) != 1:
            return NotRanked("kind")
        [(kind, body)] = query.items()
        clause = self._clauses.get(kind)
        if clause and isinstance(body, Mapping):
            return clause.read(body, self)
        return NotRanked("kind", str(kind))

    def text_of(
        self, query: QueryBody, named: Any, options: Mapping[str, Any], demand: str | None = None
    ) -> ParsedQuery | NotRanked:
        """Take what a user typed, the `query` among the options, to be found in the `named` fields, with or
        without boosts; none are all. A query with a `demand` of its kind scores in its own way."""
        text = options.get("query")
        fields = [named] if isinstance(named, str) else list(named or ())
        if fields and not any(map(self.has, fields)):
            return NotRanked("field", ", ".join(map(self.described, fields[:3])))
        if not isinstance(text, str) or not text.strip():
            return NotRanked("no_text")  # numbers and dates are none to encode
        own = demand is not None or not self.is_plain(fields, options)
        return ParsedQuery(text, demand=demand or demand_of(options), words=query if own else None)

    def is_plain(self, fields: Sequence[str], options: Mapping[str, Any]) -> bool:
        """Tell whether words count in some of the searched fields alone, and in each alike."""
        names, boosts = (
            zip(*(field.partition("^")[::2] for field in fields), strict=True) if fields else ((), ())
        )
        alike = len(set(boosts)) < 2 and not {"0", "0.0"}.intersection(boosts)
        return self.fields.issuperset(names) and alike and not any(map(options.get, OTHERWISE))

    def inside(self, kind: str, body: Mapping[str, Any], part: str) -> ParsedQuery | NotRanked:
        """Read the text within a `part` of a query that changes its score by all that it says besides.

        Where it cuts by its score, that of the words cuts: neighbours have none.
        """
        inner = self.read(body.get(part))
        if isinstance(inner, NotRanked):
            return inner
        outside = {name: value for name, value in body.items() if name not in (part, "min_score")}
        demand = inner.demand or ("functions" if body.get("min_score") is not None else None)
        return inner._replace(around=(*inner.around, (part, {kind: outside})), demand=demand)

    def has(self, field: Any) -> bool:
        """Tell whether a field, with or without a boost or signs for any letters, is an analysed text."""
        if not isinstance(field, str):
            return False
        name = field.partition("^")[0]
        if "*" in name:
            return any(fnmatchcase(kind, name) for kind in self._texts())
        parent, inside, _ = name.rpartition("._")  # search_as_you_type has sub-fields that no mapping shows
        return name in self.fields or self.types.get(parent if inside else name) in TEXT_TYPES

    def described(self, field: Any) -> str:
        """Say of a field what it is."""
        name = str(field).partition("^")[0]
        return f"{name} is {self.types.get(name, 'not mapped')}"

    def _texts(self) -> Iterator[str]:
        yield from self.fields
        yield from (name for name, kind in self.types.items() if kind in TEXT_TYPES)


def demand_of(options: Mapping[str, Any]) -> str | None:
    """Name the option by which a query for words demands more than one of them."""
    for name in ("operator", "default_operator"):
        if str(options.get(name, "or")).lower() != "or":
            return "operator"
    return "minimum_should_match" if options.get("minimum_should_match") is not None else None


def joined(parts: Sequence[Read]) -> ParsedQuery | NotRanked:
    """Join clauses for texts, any of which may match, to one."""
    if len(parts) == 1:
        return parts[0][1]
    read = [part for _, part in parts]
    texts = list(dict.fromkeys(part.text for part in read))
    if len(texts) > MOST_TEXTS:
        return NotRanked("texts")
    if setting := next(filter(None, map(setting_scores, read)), None):
        return NotRanked("scores", f"{setting} in one of several clauses")
    plain = len(texts) == 1 and all(part.words is None and not is_limited(part) for part in read)
    alike = plain and len({multiplier_of(clause) for clause, _ in parts}) == 1
    words = None if alike else {"bool": {"should": [scoring(*part) for part in parts]}}
    typed = () if alike else tuple(dict.fromkeys(string for each in read for string in each.strings))
    return ParsedQuery(" ".join(texts), demand=demand_in(read, texts), words=words, typed=typed)


def scoring(clause: QueryBody, parsed: ParsedQuery) -> QueryBody:
    """Give what scores a text as a clause does."""
    return clause if parsed.words is None or is_limited(parsed) else parsed.words


def is_limited(parsed: ParsedQuery) -> bool:
    """Tell whether a text counts in some documents alone, or there more than in others."""
    return (parsed.filters, parsed.excluded, parsed.around) != ((), (), ())  # `bool` is a clause here


def setting_scores(parsed: ParsedQuery) -> str:
    """Name what makes of a text's score another than a multiple: what scales that tells nothing of words."""
    for _, outside in parsed.around:
        [(kind, body)] = outside.items()
        if kind == "script_score" or body.get("boost_mode", "multiply") != "multiply":
            return kind
    return ""


def multiplier_of(clause: QueryBody) -> float:
    """Give what a clause for words multiplies their scores by."""
    [body] = clause.values()
    options = body if {"query", "boost"} & body.keys() else next(iter(body.values()), None)
    return float(options.get("boost", 1.0)) if isinstance(options, Mapping) else 1.0


def demand_in(read: Sequence[ParsedQuery], texts: Sequence[str]) -> str | None:
    """Say why neighbours may not be found beside what any of several clauses matches."""
    if any(map(is_limited, read)):
        return "clauses"  # which of the filters hold depends on the clause
    if len(texts) > 1:
        return "texts"
    demands = [part.demand for part in read]
    strict = next((demand for demand in demands if demand and demand not in ONLY_FOR_ALL), None)
    return strict or (demands[0] if all(demands) else None)
