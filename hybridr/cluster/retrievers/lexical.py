"""The lexical retriever: BM25 queries for the words of a text, or a user's own query template."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import SettingsError
from ...files.local import parsed_json, read_within
from ..record import IndexInfo, Record
from ..word_fields import SearchedField, can_be_combined, is_indexed_text
from . import Retriever

PLACE = "{{query}}"
TIE_BREAKER = 0.3
COMBINED_FIELDS = (3, 2, 0)  # first version with `combined_fields`
SCALE = 4.0  # BM25 is divided by this times the root of the summed idf of a query's terms
MAX_MARKED_CHARACTERS = 100_000  # first characters of a field in which words are marked
WRAPPING_QUERIES = ("function_score", "script_score", "boosting")  # these change the scores of an inner query


@dataclass(frozen=True)
class Template:
    """A user's own query with `{{query}}` in its strings as placeholder of the searched text.

    Scores are divided by `scale`, which makes them as large as those of the plain BM25 query.
    """

    body: Mapping[str, Any]
    scale: float = 1.0

    @classmethod
    def read(cls, file: Path) -> Template:
        """Read a query, or a search body with one, from a JSON file. Raises SettingsError otherwise."""
        try:
            value = parsed_json(read_within(file))
            texts = list(texts_in(value))
        except (OSError, ValueError, RecursionError) as error:
            raise SettingsError(f"{file}: {error}", hint=SHAPE) from None
        body = value.get("query", value) if isinstance(value, dict) else None
        if not isinstance(body, dict) or len(body) != 1:
            raise SettingsError(f"{file} is not a query", hint=SHAPE)
        if any(PLACE in text and in_script for text, in_script in texts):
            raise SettingsError(
                f"{file}: what users type would be part of a script", hint=f"{PLACE} among its params"
            )
        if not any(PLACE in text for text, _ in texts_in(body)):
            raise SettingsError(f"{file}: no value of the query holds {PLACE}", hint=SHAPE)
        return cls(body)

    def filled(self, text: str) -> dict[str, Any]:
        """Return the query with the text in its placeholders; in parsed JSON the text stays a string."""
        query: dict[str, Any] = fill_placeholders(self.body, text)
        return query if self.scale == 1 else {"bool": {"must": [query], "boost": 1 / self.scale}}

    def with_conditions(self, filter: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return `filter` joined with the template's conditions that do not depend on the text.

        None if there is neither.
        """
        conditions, exclusions = conditions_of(self.body)
        conditions += [] if filter is None else [filter]
        parts = {"filter": conditions, "must_not": exclusions}
        present = {name: part for name, part in parts.items() if part}
        return {"bool": present} if present else None


SHAPE = 'it looks like {"query": {"multi_match": {"query": "{{query}}", "fields": ["title^3", "body"]}}}'


def texts_in(value: Any, *, in_script: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield every string value of a query, and whether it is in a script (but not in its `params`)."""
    if isinstance(value, str):
        yield value, in_script
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from texts_in(part, in_script=(in_script or name.endswith("script")) and name != "params")
    elif isinstance(value, list):
        for part in value:
            yield from texts_in(part, in_script=in_script)


def fill_placeholders(value: Any, text: str) -> Any:
    """Return a copy of the query with the text in its placeholders."""
    if isinstance(value, Mapping):
        return {name: fill_placeholders(part, text) for name, part in value.items()}
    if isinstance(value, list):
        return [fill_placeholders(part, text) for part in value]
    return value.replace(PLACE, text) if isinstance(value, str) else value


def conditions_of(query: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Return the `filter` and `must_not` clauses of a query that do not depend on the searched text."""
    [(kind, body)] = query.items() if len(query) == 1 else [("", {})]
    if kind in WRAPPING_QUERIES:
        return conditions_of(body.get("query") or body.get("positive") or {})
    if kind != "bool":
        return [], []

    def fixed(name: str) -> list[Any]:
        """Return the clauses of the `bool` query's section `name` that hold no placeholder."""
        clauses = body.get(name, [])
        clause_list = clauses if isinstance(clauses, list) else [clauses]
        return [clause for clause in clause_list if not any(PLACE in text for text, _ in texts_in(clause))]

    return fixed("filter"), fixed("must_not")


def lexical_divisor(idf_sum: float) -> float:
    """Return the divisor that brings BM25 scores to the scale of a cosine; 0 for a query without terms."""
    return SCALE * math.sqrt(idf_sum)


@dataclass(frozen=True)
class LexicalRetriever(Retriever):
    """Finds documents by BM25 over some text fields, or by a user's own query template.

    `query` takes a text, or the expanded query that feedback made from it.
    """

    fields: tuple[SearchedField, ...]
    template: Template | None = None
    as_one: bool = False
    name = "lexical"
    help = "by its words (BM25)"
    reads = "text"
    part = "words"
    of_words = True

    @classmethod
    def of(cls, record: Record, fields: Sequence[str]) -> LexicalRetriever:
        """Return a retriever that searches these fields, each with boost 1."""
        return cls(tuple(map(SearchedField, fields)))

    @classmethod
    def over(
        cls,
        info: IndexInfo,
        fields: Sequence[SearchedField],
        version: tuple[int, int, int],
        template: Template | None = None,
    ) -> LexicalRetriever:
        """Return a retriever for these fields; it uses `combined_fields` if server and fields allow it."""
        names = [field.name for field in fields]
        return cls(tuple(fields), template, version >= COMBINED_FIELDS and can_be_combined(info, names))

    def query(
        self,
        query: str | Mapping[str, Any],
        k: int,
        *,
        filter: dict[str, Any] | None = None,
        explain: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        """Return the query that matches the words of the text; the request's `size` counts, `k` is
        ignored.
        """
        if not isinstance(query, str):
            clause = dict(query)
        elif self.template:
            clause = self.template.filled(query)
        else:
            clause = words_query(query, self.fields, self.as_one)
        return named_query(clause, self.name if explain else None, filter, boost)

    @classmethod
    def scale(cls, idf_sum: float, spread: float) -> float:
        """Return the factor from BM25 to the scale of (1 + cosine): 1 / (4 x root of `idf_sum`), 0 for 0."""
        divisor = lexical_divisor(idf_sum)
        return 1 / divisor if divisor else 0.0

    @property
    def in_pieces(self) -> bool:
        """Return whether a text is split into pieces, as it is for several fields without a template."""
        return len(self.fields) > 1 and self.template is None

    def clause_count(self, words: int) -> int:
        """Return the most clauses that the cluster makes of `words`, which are counted once per field."""
        return words // len(self.fields) if self.as_one else words

    def pieces_query(self, pieces: Mapping[str, float]) -> dict[str, Any]:
        """Return the query that matches any of the pieces of a text, each with its boost."""
        clauses = (words_query(piece, self.fields, self.as_one, boost) for piece, boost in pieces.items())
        return {"bool": {"should": list(clauses)}}


def lexical_query(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Return the query that matches the words of a text in some fields with equal boosts."""
    return words_query(text, [SearchedField(field) for field in fields])


def words_query(
    text: str, fields: Sequence[SearchedField], as_one: bool = False, boost: float = 1.0
) -> dict[str, Any]:
    """Return the query that matches the words of a text in one field, or in several fields as one.

    `as_one` uses `combined_fields`: BM25 of the joined text. Else `cross_fields` counts each word mainly in
    the field where it scores best.
    """
    if len(fields) == 1:
        return {"match": {fields[0].name: {"query": text}}}
    boosts = [field.boost for field in fields]
    unit = min(boosts) if as_one else max(boosts)  # `combined_fields` refuses boosts below 1
    match: dict[str, Any] = {"query": text} | ({"boost": round(boost, 6)} if boost != 1 else {})
    match["fields"] = [name if share == unit else f"{name}^{share / unit:g}" for name, share in fields]
    if as_one:
        return {"combined_fields": match}
    return {"multi_match": match | {"type": "cross_fields", "tie_breaker": TIE_BREAKER}}


def named_query(
    query: dict[str, Any], name: str | None, filter: dict[str, Any] | None, boost: float | None
) -> dict[str, Any]:
    """Return a query with a name (reported by hits), a filter and a boost; unchanged if all are None."""
    optional = {"filter": None if filter is None else [filter], "_name": name, "boost": boost}
    options = {key: value for key, value in optional.items() if value is not None}
    return {"bool": {"must": [query], **options}} if options else query


def highlight(
    info: IndexInfo, fields: Sequence[str], text: str, searched: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the `highlight` part of a search: the query's words marked in the best fragment of each field.

    HTML of the document is escaped. Only the beginning of a field is analysed, since the search fails for a
    field longer than the index allows. If the words of one of `fields` are not indexed, the words that match
    in the `searched` fields are marked.
    """
    uses_searched = bool(searched) and not all(is_indexed_text(info, field) for field in fields)
    allowed = int(info.settings.get("index.highlight.max_analyzed_offset", MAX_MARKED_CHARACTERS))
    fragment = {"number_of_fragments": 1, "fragment_size": 160, "no_match_size": 160}
    return {
        "encoder": "html",
        "max_analyzer_offset": min(allowed, MAX_MARKED_CHARACTERS),
        "highlight_query": lexical_query(text, searched if uses_searched else fields),
        "fields": dict.fromkeys(fields, fragment),
        **({"require_field_match": False} if uses_searched else {}),
    }
