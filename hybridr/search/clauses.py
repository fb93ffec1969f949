"""Reads queries in Lucene's query DSL: the text that a client's query searches for, or why it is not ranked
with vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from ..cluster.record import TEXT_TYPES
from ..cluster.retrievers.lexical import texts_in
from ..languages import has_visible_text
from .rules.matching import MatchedRules

QueryBody: TypeAlias = Mapping[str, Any]
REASONS: Mapping[str, str] = {
    "kind": "a query of this kind does not search a text by its words",
    "field": "it searches no analysed field; name one of type text too",
    "no_text": "it does not search for a text, but for a number, a date, or nothing",
    "phrase": "it requires exactly these letters, a phrase or a beginning; neighbours would violate that",
    "syntax": "its text has operators, which ask for more than words",
    "texts": "it searches for several texts",
    "only_a_filter": "its text only filters and does not score; put it into `must`",
    "clauses": "it has too many clauses, or some with their own filters, which neighbours would violate",
    "calibrating": "its form is new: it gets a scale within seconds, and is ranked from then on",
    "scale": "words of the documents do not score in it: search a field of type text, boost above 0",
    "operator": "it requires every word; neighbours would violate that",
    "several_fields": "it requires its text in each of several fields; neighbours would violate it",
    "minimum_should_match": "it requires several words; neighbours would violate that",
    "scores": "vectors or functions set its scores: put these around all clauses for the text",
    "functions": "its functions cut off at a BM25 score, or use none: multiply it, or use `_score`",
    "ranked": "it asks for hits inside of groups, by a query that ranks already",
    "no_query": "it has no query",
    "no_search": "it is not a `_search`; the bodies of `_msearch` are judged one by one",
    "pipeline": "it names a search pipeline of its own",
    "scroll": "OpenSearch ignores `rescore` in it: the order would be BM25 plus the cosines of neighbours",
    "counting": "it only counts matches, nothing is ranked",
    "by_query": "it changes or copies documents by query",
    "sort": "it asks for another order",
    "search_after": "it continues after a hit of another order",
    "rescore": "it has a `rescore` of its own",
    "slice": "it is one slice of a scan of all documents",
    "min_score": "its `min_score` is a BM25 score; neighbours, groups and ties have scores on another scale",
    "indices_boost": "it weights the scores of indices",
    "part": "it has a part that may mean something else beside `rescore`",
    "window": "its page is larger than index.max_rescore_window allows",
    "scripts": "it has functions, groups or ties, and the cluster runs no scripts",
    "signed": "its AWS signature would not fit another body",
    "unknown_words": "no document has any of its words",
    "too_long": "its text is longer than [serve] max_query_characters",
    "fusion": "the index is not ranked by true scores",
    "unreadable": "its body is malformed",
    "late": "the server took longer than [serve] rank_timeout_s",
    "another_index": "for some seconds the server follows another index than the one that was searched",
    "filtered_alias": "its alias shows a part of the index (filter, routing), the server's name another one",
    "anonymous": "it has no Authorization, which the cluster requires",
    "failed": "the encoder or the cluster failed",
}


MAX_CLAUSES, MAX_TEXTS = 50, 4  # clauses of one bool, texts that a query may search for
WAIVED_BY_OTHERS = ("phrase", "syntax")
"""Required matches of a clause that no longer hold if another clause may match instead."""
CHANGES_WORDS = ("fuzziness", "analyzer")
"""Options by which a query finds other words than those of its text."""
BY_WORDS = ("best_fields", "most_fields", "cross_fields")
"""Types of `multi_match` and `query_string` that look for words, not for phrases or prefixes."""
RANKED = {"adjust_pure_negative": False}
"""Mark of a `bool` that is ranked already; the option has no effect beside a `filter`."""
VECTOR_QUERIES = frozenset({"knn", "neural", "neural_sparse"})
CONDITION_KINDS = frozenset({"term", "terms", "range", "exists", "ids", "prefix", "wildcard", "match_all"})
"""Queries that select documents without saying which of them is better."""
SYNTAX = {
    "query_string": re.compile(r'[+=&|><!(){}\[\]^"~*?:\\/]|(?<!\w)-|-(?!\w)|\b(AND|OR|NOT)\b'),
    "simple_query_string": re.compile(r'[+|"()~*\\]|(?<!\w)-|-(?!\w)'),
}
"""Characters that may be syntax in a query of Lucene; a hyphen within a word is none."""
NO_WORDS = re.compile(r"[\[\]{}\\/<>]|\b_exists_:")
"""Characters of ranges, regular expressions and escapes, whose operands are not search text."""
NEGATED_WORDS = re.compile(r'(?:(?<![^\s(])[-!]|\bNOT\s+)(?:[\w.]+:)?(?:"[^"]*"|\([^()]*\)|[^\s()]+)')
FIELD_PREFIXED = re.compile(r'(?<![\w.*])([\w.*]+):("[^"]*"|\([^()]*\)|[^\s()]+)')
OPERATORS = re.compile(r'[~^][\d.]*|&&|\|\||\b(?:AND|OR|NOT)\b|(?<!\w)-|-(?!\w)|[+=&|!()"*?:]')
NO_TYPES: Mapping[str, str] = MappingProxyType({})


class NotRanked(NamedTuple):
    """The reason why a client's search is left unchanged: a key of REASONS, and its detail."""

    reason: str
    detail: str = ""

    @property
    def why(self) -> str:
        """Return the reason in a sentence."""
        return f"{self.detail}: {REASONS[self.reason]}" if self.detail else REASONS[self.reason]


class ParsedQuery(NamedTuple):
    """A client's query as hybridr reads it: the search text, and the conditions on documents.

    `wrappers` are queries that wrap the text and change its score, innermost first, each with the name of the
    part where the text stands. `required_match` is a key of REASONS that says why every hit must match the
    query's words, so that neighbours by vector may not be returned; None if they may. `words` is the part
    that scores the text in the client's own way, None if it equals the plain query on the searched fields. In
    `words` the text appears as `typed`, by default as in `text`; its scores are `scale` times those of the
    plain query. `ruling` holds the rules that match the text.
    """

    text: str
    filters: tuple[QueryBody, ...] = ()
    excluded: tuple[QueryBody, ...] = ()
    wrappers: tuple[tuple[str, QueryBody], ...] = ()
    required_match: str | None = None
    words: QueryBody | None = None
    typed: tuple[str, ...] = ()
    scale: float = 1.0
    ruling: MatchedRules | None = None

    @property
    def strings(self) -> tuple[str, ...]:
        """Return the strings of the query that the user typed."""
        return self.typed or (self.text,)

    @property
    def is_limited(self) -> bool:
        """Return whether filters or wrapping queries restrict or change where the text counts."""
        return bool(self.filters or self.excluded or self.wrappers)


class QueryReader:
    """Finds the search text in queries of the DSL.

    `fields` are the fields of the lexical search; `types` maps every field of the index to its type.
    """

    def __init__(self, fields: Collection[str], types: Mapping[str, str] = NO_TYPES) -> None:
        self.fields, self.types = frozenset(fields), types

    def read(self, query: Any) -> ParsedQuery | NotRanked:
        """Return the text that a query searches for, or why it is not ranked. Raises TypeError for a query
        that is not an object.
        """
        if not isinstance(query, Mapping):
            raise TypeError(f"a query is an object, not {type(query).__name__}")
        if len(query) != 1:
            return NotRanked("kind")
        [(kind, body)] = query.items()
        if kind not in READERS or not isinstance(body, Mapping):
            return NotRanked("kind", str(kind))
        return READERS[kind](self, kind, body)

    def parse_text(
        self, query: QueryBody, queried: Any, options: Mapping[str, Any], required_match: str | None = None
    ) -> ParsedQuery | NotRanked:
        """Return the parsed text in `options["query"]`, searched in the `queried` fields (boosts allowed;
        none means all).

        A query keeps its own scoring if it has other fields, different boosts, fuzziness or an analyser, or
        if its kind sets `required_match`.
        """
        text = options.get("query")
        fields = [queried] if isinstance(queried, str) else list(queried or ())
        parts = [str(field).partition("^") for field in fields]
        names, boosts = [name for name, _, _ in parts], {boost for _, _, boost in parts}
        if fields and not any(map(self.is_text_field, fields)):
            field_types = (f"{name} is {self.types.get(name, 'not mapped')}" for name in names[:3])
            return NotRanked("field", ", ".join(field_types))
        if not isinstance(text, str) or not text.strip():
            return NotRanked("no_text")  # numbers and dates are not encoded
        is_plain = self.fields.issuperset(names) and len(boosts) < 2 and not {"0", "0.0"} & boosts
        keeps_scoring = required_match is not None or not is_plain or any(map(options.get, CHANGES_WORDS))
        for name in ("operator", "default_operator"):
            if str(options.get(name, "or")).lower() != "or":
                required_match = required_match or "operator"
        if options.get("minimum_should_match") is not None:
            required_match = required_match or "minimum_should_match"
        return ParsedQuery(text, required_match=required_match, words=query if keeps_scoring else None)

    def is_text_field(self, field: Any) -> bool:
        """Return whether a field name, maybe with a boost or wildcard, means an analysed text field."""
        if not isinstance(field, str):
            return False
        name = field.partition("^")[0]
        if "*" in name:
            texts = [*self.fields, *(name for name, kind in self.types.items() if kind in TEXT_TYPES)]
            return any(fnmatchcase(text, name) for text in texts)
        parent, dot, _ = name.rpartition("._")  # search_as_you_type has sub-fields that no mapping shows
        return name in self.fields or self.types.get(parent if dot else name) in TEXT_TYPES

    def match(self, kind: str, body: QueryBody, required_match: str | None = None) -> ParsedQuery | NotRanked:
        """Read `match` and similar queries of one field, `{"field": "text"}` or `{"field": {"query": …}}`."""
        if len(body) != 1:
            return NotRanked("kind", kind)
        [(field, value)] = body.items()
        options = value if isinstance(value, Mapping) else {"query": value}
        return self.parse_text({kind: {field: options}}, [field], options, required_match)

    def several_fields(self, kind: str, body: QueryBody) -> ParsedQuery | NotRanked:
        """Read `multi_match` and `combined_fields`; their phrase and prefix types require exact matches."""
        by_words = kind == "combined_fields" or body.get("type", "best_fields") in BY_WORDS
        return self.parse_text({kind: body}, body.get("fields"), body, None if by_words else "phrase")

    def query_string(self, kind: str, body: QueryBody) -> ParsedQuery | NotRanked:
        """Read `query_string` (also from `?q=`) and `simple_query_string`.

        If a text has operators, only its words for text fields are read, without operators, field names and
        excluded words.
        """
        text = body.get("query")
        options = {**body, "fuzziness": None}  # applies only to words that the text marks with ~
        fields = body.get("fields") or body.get("default_field")
        fields = None if fields in ("*", ["*"], ["*^1.0"]) else fields
        if not isinstance(text, str) or not SYNTAX[kind].search(text):
            required_match = None if body.get("type", "best_fields") in BY_WORDS else "phrase"
            return self.parse_text({kind: body}, fields, options, required_match)
        words = NEGATED_WORDS.sub(" ", text)
        words = FIELD_PREFIXED.sub(lambda match: match[2] if self.is_text_field(match[1]) else " ", words)
        words = " ".join(OPERATORS.sub(" ", words).split())
        if NO_WORDS.search(text) or not has_visible_text(words):
            return NotRanked("syntax", kind)
        parsed = self.parse_text({kind: body}, fields, options, "syntax")
        return parsed._replace(text=words, typed=(text,)) if isinstance(parsed, ParsedQuery) else parsed

    def wrapper(self, kind: str, body: QueryBody, part: str = "query") -> ParsedQuery | NotRanked:
        """Read the query in `part` of a wrapper that changes its score; the wrapper goes to `wrappers`.

        A wrapper with a `min_score` demands a match of the words, because neighbours by vector would fall
        below that score.
        """
        options = {name: value for name, value in body.items() if name not in (part, "min_score")}
        if kind == "function_score" and body.get("boost_mode") == "replace":
            if not any("_score" in text and in_script for text, in_script in texts_in(options)):
                return NotRanked("functions", "boost_mode replace")
        inner = self.read(body.get(part))
        if isinstance(inner, NotRanked):
            return inner
        required_match = inner.required_match or ("functions" if body.get("min_score") is not None else None)
        return inner._replace(
            wrappers=(*inner.wrappers, (part, {kind: options})), required_match=required_match
        )

    def constant_score(self, kind: str, body: QueryBody) -> NotRanked:
        """Return why a `constant_score` is not ranked: the reason of its query, else that it only filters."""
        parsed = self.read(body.get("filter"))
        return parsed if isinstance(parsed, NotRanked) else NotRanked("only_a_filter", kind)

    def nested(self, kind: str, body: QueryBody) -> ParsedQuery | NotRanked:
        """Read a `nested` query: its text, scored by the client's own query."""
        parsed = self.read(body.get("query"))
        if isinstance(parsed, NotRanked):
            return parsed
        return ParsedQuery(parsed.text, required_match="clauses", words={kind: body}, typed=parsed.typed)

    def dis_max(self, kind: str, body: QueryBody) -> ParsedQuery | NotRanked:
        """Read the text that the queries of a `dis_max` search for."""
        queries = body.get("queries")
        if not isinstance(queries, list) or not queries:
            return NotRanked("no_text")
        parts = [(query, self.read(query)) for query in queries]
        clauses = [(query, part) for query, part in parts if isinstance(part, ParsedQuery)]
        if not clauses:
            return parts[0][1]
        parsed = join_clauses(clauses)
        if isinstance(parsed, NotRanked) or (parsed.words is None and len(clauses) == len(parts)):
            return parsed
        if setting := score_setting_kind(parsed):
            return NotRanked("scores", f"{setting} in {kind}")
        required_match = parsed.required_match or ("clauses" if parsed.is_limited else None)
        return ParsedQuery(parsed.text, required_match=required_match, words={kind: body}, typed=parsed.typed)

    def bool(self, kind: str, body: QueryBody) -> ParsedQuery | NotRanked:
        """Read a `bool`: its text clauses, with all other required clauses as filters.

        If a `must` clause has a text, it decides the text; `should` clauses with the same text add to its
        score.
        """
        if RANKED.items() <= body.items():
            return NotRanked("ranked")
        must, should, filters, excluded = (
            as_clauses(body.get(part)) for part in ("must", "should", "filter", "must_not")
        )
        if len(must) + len(should) + len(filters) + len(excluded) > MAX_CLAUSES:
            return NotRanked("clauses", f"more than {MAX_CLAUSES} in one {kind}")
        pairs = [(clause, self.read(clause)) for clause in (*must, *should)]
        required, optional = (
            [(clause, part) for clause, part in side if isinstance(part, ParsedQuery)]
            for side in (pairs[: len(must)], pairs[len(must) :])
        )
        texts = {part.text for _, part in required}
        repeated = [(clause, part) for clause, part in optional if part.text in texts and not part.wrappers]
        clauses = [*required, *repeated] if required else optional
        if not clauses:
            reasons = [part for _, part in pairs if isinstance(part, NotRanked) and part.reason != "kind"]
            return next(iter(reasons), NotRanked("only_a_filter" if filters and not pairs else "kind"))
        parsed = join_clauses(clauses)
        if isinstance(parsed, NotRanked):
            return parsed
        if required and isinstance(joined := join_clauses(required), ParsedQuery) and joined != parsed:
            parsed = parsed._replace(required_match=joined.required_match)
        scored = [clause for clause, _ in clauses]
        conditions = [clause for clause, part in pairs[: len(must)] if isinstance(part, NotRanked)]
        others = [clause for clause in should if clause not in scored]
        scoring = [*others, *(clause for clause in conditions if not CONDITION_KINDS.issuperset(clause))]
        if vectors := VECTOR_QUERIES.intersection(kind for clause in scoring for kind in clause):
            return NotRanked("scores", ", ".join(vectors))
        required_match = parsed.required_match
        usual = ("0",) if others and must else ("0", "1")
        if not required_match and len(required) > 1:
            required_match = "several_fields"
        elif not required_match and str(body.get("minimum_should_match", usual[-1])) not in usual:
            required_match = "minimum_should_match"
        score_wrappers = (("must", {"bool": {"should": scoring}}),) if scoring else ()
        return parsed._replace(
            filters=(*parsed.filters, *conditions, *filters),
            excluded=(*parsed.excluded, *excluded),
            wrappers=(*parsed.wrappers, *score_wrappers),
            required_match=required_match,
        )


READERS: Mapping[str, Callable[[QueryReader, str, QueryBody], ParsedQuery | NotRanked]] = {
    "bool": QueryReader.bool,
    "boosting": partial(QueryReader.wrapper, part="positive"),
    "combined_fields": QueryReader.several_fields,
    "constant_score": QueryReader.constant_score,
    "dis_max": QueryReader.dis_max,
    "function_score": QueryReader.wrapper,
    "match": QueryReader.match,
    "match_bool_prefix": partial(QueryReader.match, required_match="phrase"),
    "match_phrase": partial(QueryReader.match, required_match="phrase"),
    "match_phrase_prefix": partial(QueryReader.match, required_match="phrase"),
    "multi_match": QueryReader.several_fields,
    "nested": QueryReader.nested,
    "query_string": QueryReader.query_string,
    "script_score": QueryReader.wrapper,
    "simple_query_string": QueryReader.query_string,
}
"""Reader of each kind of query; other kinds look for no text."""


def join_clauses(clauses: Sequence[tuple[QueryBody, ParsedQuery]]) -> ParsedQuery | NotRanked:
    """Return several text clauses with their parsed forms, of which any may match, as one parsed query."""
    if len(clauses) == 1:
        return clauses[0][1]
    parts = [part for _, part in clauses]
    texts = list(dict.fromkeys(part.text for part in parts))
    if len(texts) > MAX_TEXTS:
        return NotRanked("texts")
    if setting := next(filter(None, map(score_setting_kind, parts)), None):
        return NotRanked("scores", f"{setting} in one of several clauses")
    is_limited = any(part.is_limited for part in parts)
    is_plain = len(texts) == 1 and all(part.words is None for part in parts) and not is_limited
    required_matches = [part.required_match for part in parts]
    strict_match = next(
        (
            required_match
            for required_match in required_matches
            if required_match and required_match not in WAIVED_BY_OTHERS
        ),
        None,
    )
    required_match = strict_match or (required_matches[0] if all(required_matches) else None)
    if is_limited:
        required_match = "clauses"  # each clause has its own filters
    elif len(texts) > 1:
        required_match = "texts"
    if is_plain and len({clause_boost(clause) for clause, _ in clauses}) == 1:
        return ParsedQuery(texts[0], required_match=required_match)
    scoring = [clause if part.words is None or part.is_limited else part.words for clause, part in clauses]
    typed = tuple(dict.fromkeys(string for part in parts for string in part.strings))
    return ParsedQuery(
        " ".join(texts), required_match=required_match, words={"bool": {"should": scoring}}, typed=typed
    )


def clause_boost(clause: QueryBody) -> float:
    """Return the boost of a clause for words."""
    [body] = clause.values()
    options = body if {"query", "boost"} & body.keys() else next(iter(body.values()), None)
    return float(options.get("boost", 1.0)) if isinstance(options, Mapping) else 1.0


def score_setting_kind(parsed: ParsedQuery) -> str:
    """Return the kind of a wrapping query that does more than multiply the text's score; else ""."""
    for _, wrapper in parsed.wrappers:
        [(kind, body)] = wrapper.items()
        if kind == "script_score" or body.get("boost_mode", "multiply") != "multiply":
            return kind
    return ""


def as_clauses(value: Any) -> list[QueryBody]:
    """Return the clauses of a part of a `bool`, which may be a list, a single clause or missing."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def scores_as(query: QueryBody, words: QueryBody) -> bool:
    """Return whether only `words` contributes to the score of a query, apart from conditions around it."""
    if query == words:
        return True
    [(kind, body)] = query.items()
    if kind != "bool" or "boost" in body:
        return False
    scoring = [*as_clauses(body.get("must")), *as_clauses(body.get("should"))]
    return scores_as(scoring[0], words) if len(scoring) == 1 else words == {"bool": {"should": scoring}}
