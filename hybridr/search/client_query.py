"""Parses a client's own query and brings its scores to the scale of the plain query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from ..cluster.fields import types_of
from ..cluster.record import IndexInfo
from ..cluster.retrievers.lexical import Template
from ..indexing.terms.terms import Analysis, Word
from ..languages import says_something
from .clauses import NotRanked, ParsedQuery, QueryReader, scores_as
from .fusions import CompiledQuery, OwnQuery, times, within
from .settings import Finds
from .shapes import Shapes, clauses_per_word, leaves_in, query_shape

AS_IT_STANDS = "--mode lexical asks the template as it stands"
MOST_CHARACTERS = 1_000_000
MOST_SHOWN = 200  # characters of a query that a reason is about
RELATIVES = ("has_child", "has_parent")
WITH_HITS_INSIDE = ("nested", *RELATIVES)


class ClientQueries:
    """Parses queries that clients send to one index, or that a template makes of a text.

    `fields` are those of the lexical search. A text may have `limit` characters. `shapes` know the scales of
    queries of the same shape.
    """

    def __init__(
        self,
        info: IndexInfo,
        fields: Sequence[str],
        analysis: Analysis,
        shapes: Shapes,
        limit: int = MOST_CHARACTERS,
    ) -> None:
        self.analysis, self.shapes, self.most = analysis, shapes, limit
        types = types_of(info)
        self.reader = QueryReader({*fields, *info.record.fields}, types)
        self.per_word = {field: clauses_per_word(info, field) for field in types}

    def parse(self, query: Any, recall: Finds) -> ParsedQuery | NotRanked:
        """Return the text that a query searches for, or why it is not ranked.

        Raises TypeError, ValueError or AttributeError for a malformed query.
        """
        parsed = self.reader.read(query)
        if isinstance(parsed, NotRanked):
            return parsed
        if parsed.demand and recall == "all":
            return NotRanked(parsed.demand)
        if (reason := self.unreadable(parsed.text)) or parsed.words is None:
            return reason or parsed
        scale = self.shapes.scale(parsed.words, parsed.strings)
        if scale is None:
            return NotRanked("calibrating")
        if not scale:
            shape = orjson.dumps(query_shape(parsed.words, parsed.strings)).decode()[:MOST_SHOWN]
            return NotRanked("scale", shape)
        return parsed._replace(scale=scale)

    def unreadable(self, text: str) -> NotRanked | None:
        """Return why a text cannot be encoded; None if it can."""
        if len(text) > self.most:
            return NotRanked("too_long")
        return None if says_something(text) and is_unicode(text) else NotRanked("no_text")

    def own_query(
        self, query: Mapping[str, Any], parsed: ParsedQuery, *, recall: Finds = "all", whole: bool = False
    ) -> OwnQuery:
        """Return the client's query split into what finds hits and what scores words, scaled to the plain
        query.

        `whole` says that a single query finds and scores, without a `rescore`.
        """
        outer = tuple((part, without_inner_hits(outside)) for part, outside in parsed.around)
        if parsed.words is None:
            leaves = self.leaves(query, parsed) if whole else 0
            return OwnQuery(query, leaves=leaves, around=outer, scale=parsed.scale)
        again = recall == "all" or bool(outer) or not scores_as(query, parsed.words)
        finds, words = (times(part, 1 / parsed.scale) for part in (query, without_inner_hits(parsed.words)))
        leaves = self.leaves(parsed.words, parsed) * (again + whole) if again or whole else 0
        found_scale = 0.0 if again else parsed.scale
        return OwnQuery(finds, words, leaves, found_scale, outer, parsed.scale)

    def leaves(self, query: Mapping[str, Any], parsed: ParsedQuery) -> int:
        """Return an upper bound of the Lucene clauses that this query expands to.

        Counts analysed words, because languages such as Chinese have no spaces.
        """
        by_field = Counter(word.field for word in self.words(parsed.text))
        return leaves_in(query, max(len(parsed.text.split()), *by_field.values(), 0), self.per_word)

    def words(self, text: str) -> Sequence[Word]:
        """Return the words of a text as the searched fields analyse them."""
        return self.analysis.of([text])[0].words


class TemplateQueries(ClientQueries):
    """The queries that a user's template makes of texts, for one index; built like `ClientQueries`."""

    def __init__(self, *parts: Any, template: Template) -> None:
        super().__init__(*parts)
        self.template = template

    def parse_text(self, text: str) -> ParsedQuery | NotRanked:
        """Return the template's query for a text, parsed, or why it is not ranked."""
        try:
            return self.parse(self.template.filled(text), "lexical")
        except (TypeError, ValueError, AttributeError):
            return NotRanked("unreadable")

    def combined(self, text: str, parsed: ParsedQuery, query: CompiledQuery) -> CompiledQuery:
        """Return the compiled query extended by the template's query for the text.

        The template's query finds documents instead of the plain words. Neighbours by vector are found too,
        unless the template demands matches.
        """
        own = self.own_query(without_inner_hits(self.template.filled(text)), parsed)
        filters = [part for part in (query.filter, filter_of(parsed)) if part]
        return replace(
            query.with_own(own._replace(finds=within(own.finds, query.filter))),
            filter={"bool": {"filter": filters}} if filters else None,
            words_find=query.words_find or parsed.demand is not None,
        )


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8, which half a surrogate pair cannot."""
    try:
        text.encode()  # looking at each character in Python takes a hundred times as long
    except UnicodeEncodeError:
        return False
    return True


def filter_of(parsed: ParsedQuery) -> dict[str, Any] | None:
    """Return the filters of a parsed query for the dense retriever; None if there are none."""
    if not parsed.filters and not parsed.excluded:
        return None
    parts = {"filter": parsed.filters, "must_not": parsed.excluded}
    copied = {name: [without_inner_hits(query) for query in part] for name, part in parts.items()}
    return {"bool": {name: part for name, part in copied.items() if part}}


def without_inner_hits(query: Any) -> Any:
    """Return a copy of a query without `inner_hits`, which a request may name only once."""
    if isinstance(query, list):
        return [without_inner_hits(part) for part in query]
    if not isinstance(query, Mapping):
        return query
    return {
        name: without_inner_hits(
            {part: inner for part, inner in value.items() if part != "inner_hits"}
            if name in WITH_HITS_INSIDE and isinstance(value, Mapping) and "query" in value
            else value
        )
        for name, value in query.items()
    }
