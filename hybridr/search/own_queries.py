"""Own queries: a user's template, filled with a text, ranks as a transparent deployment ranks that query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..cluster.retrievers.lexical import Template
from ..errors import DataError, SettingsError
from .clauses import REASONS, NotRanked, ParsedQuery
from .client_query import ClientQueries, filter_of, without_inner_hits
from .fusions import CompiledQuery, within
from .opened import SearchContext
from .settings import Finds
from .shapes import Shapes

SAMPLE_TEXT = "words"
AS_IT_STANDS = "--mode lexical asks the template as it stands"


class OwnQueries:
    """The queries of a template over one index.

    Raises SettingsError for a template that is not ranked, whatever its text, by the reason that
    `hybridr deploy --way transparent --explain` tells.
    """

    def __init__(self, opened: SearchContext, template: Template) -> None:
        self.template = template
        self.queries = ClientQueries(opened.info, opened.fields, opened.analysis, Shapes(opened))
        self.remarks: list[str] = []
        self.recall: Finds = opened.settings.recall
        parsed = self.parse(SAMPLE_TEXT, "lexical")
        if isinstance(parsed, NotRanked):
            raise SettingsError(
                f"{opened.settings.query_template} is not ranked: {parsed.why}", hint=AS_IT_STANDS
            )
        if parsed.demand and self.recall == "all":
            self.remarks.append(f"only what your query matches is found: {REASONS[parsed.demand]}")

    def parse(self, text: str, recall: Finds) -> ParsedQuery | NotRanked:
        """Return what the template asks for a text, or why it is not ranked."""
        try:
            return self.queries.parse(self.template.filled(text), recall)
        except (TypeError, ValueError, AttributeError):
            return NotRanked("unreadable")

    def parse_all(self, texts: Sequence[str]) -> list[ParsedQuery]:
        """Return what the template asks for each text. Raises DataError where that is not ranked."""
        readings = []
        for text in texts:
            parsed = self.parse(text, "lexical")
            if isinstance(parsed, NotRanked):
                raise DataError(f"'{text}' is not ranked: {parsed.why}", hint=AS_IT_STANDS)
            readings.append(parsed)
        return readings

    def question(self, text: str, question: CompiledQuery, parsed: ParsedQuery) -> CompiledQuery:
        """Return a question that asks the template too, which finds in place of the words.

        Neighbours are found too, unless the query demands what they would not keep.
        """
        query = without_inner_hits(self.template.filled(text))
        own = self.queries.own_query(query, parsed)
        asking = question.asking(own._replace(finds=within(own.finds, question.filter)))
        filters = [part for part in (asking.filter, filter_of(parsed)) if part]
        return replace(
            asking,
            filter={"bool": {"filter": filters}} if filters else None,
            words_find=asking.words_find or parsed.demand is not None,
        )
