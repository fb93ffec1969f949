"""`/search`, `/v1/rank`, `/v1/rewrite`: what an index answers, and what becomes of an ordinary search."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from ..cluster.connection import Cluster
from ..encoding.contract import Reading
from ..errors import SettingsError
from ..languages import says_something
from ..search.fusions.pipeline import hybrid_query
from ..search.search import Search
from ..search.settings import SearchSettings
from ..search.signal_set import without_tokens
from .doorway import unless_gone
from .embeddings import Embedder
from .requests import EncodingFailed, Mode, SearchRequest, answer, check_query
from .settings import ServeSettings
from .telemetry import described, note

WARNING = "the encoder failed, these are lexical results"
Query = Mapping[str, Any]
MOST_CLAUSES = 50  # of a bool query that is looked into
PLAIN = frozenset({"term", "terms", "range", "exists", "ids", "prefix", "wildcard"})
"""Queries that say which documents there are, and nothing about which one is better."""
BEST_FIRST = [{"_score": {"order": "desc"}}]
KEPT = frozenset(
    "query from size _source sort aggregations highlight post_filter track_total_hits timeout pit "
    "terminate_after explain profile version seq_no_primary_term include_named_queries_score track_scores "
    "stats suggest stored_fields docvalue_fields fields script_fields".split()
)
"""What a search may say and still mean where its hits are ranked by `rescore`."""
WINDOW_LIMITS = ("index.max_rescore_window", "index.max_result_window")
LARGEST_WINDOW = 10_000  # where an index sets neither


class Searches:
    """Searches of one index in every mode; the encoder is checked against the index once, here."""

    def __init__(
        self, cluster: Cluster, index: str, embedder: Embedder, settings: SearchSettings | None = None
    ) -> None:
        self.cluster, self.index, self.embedder, self.settings = cluster, index, embedder, settings
        self.modes: dict[Mode, Search]
        self.reopen()

    def reopen(self) -> None:
        """Look at the index again: from now on searches rank by what its record says now."""
        hybrid = Search(self.cluster, self.index, self.embedder.encoder, settings=self.settings)
        self.modes = {
            "hybrid": hybrid,
            "lexical": hybrid.using("lexical"),
            "dense": hybrid.using("dense"),
        }

    async def read(self, mode: Mode, query: str) -> Reading | None:
        """Read a query for its vector, and for its tokens where a signal needs them; not for lexical search.

        Raises EncodingFailed.
        """
        if mode == "lexical":
            return None
        if self.modes[mode].signals.reads_tokens:
            return await self.embedder.read(query)
        [embedding] = await self.embedder.embed("query", [query])
        return without_tokens(embedding.vector)


def add_search(
    app: FastAPI, cluster: Cluster, index: str, embedder: Embedder, settings: ServeSettings
) -> Searches:
    """Add `/search`, and give what it searches with.

    Where the encoder fails it answers with lexical hits and a `Warning` header.
    Raises what Search raises when the index and the encoder do not fit.
    """
    ranking = SearchSettings(query_template=settings.query_template)
    searches = Searches(cluster.hurried(settings.search_timeout_s), index, embedder, ranking)

    @app.post("/search", summary="The best documents of the index for a query")
    async def search(body: SearchRequest, request: Request) -> Response:
        note(request, mode=body.mode, k=body.k, **({"input": body.query} if settings.log_queries else {}))
        check_query(body.query, settings)
        mode, reading, warning = body.mode, None, None
        try:
            reading = await unless_gone(request, searches.read(mode, body.query))
        except EncodingFailed as error:
            note(request, warning=WARNING, **described(error))
            mode, warning = "lexical", WARNING
        page: dict[str, Any] = {"offset": body.offset, "filter": body.filter, "explain": body.explain}
        asked = partial(searches.modes[mode], **page, reading=reading)
        hits = await unless_gone(request, run_in_threadpool(asked, body.query, body.k))
        return found_answer(mode, [hit._asdict() for hit in hits], warning)

    return searches


def found_answer(mode: Mode, hits: list[dict[str, object]], warning: str | None) -> Response:
    """Answer with hits and the mode that found them."""
    if warning is None:
        return answer({"mode": mode, "hits": hits})
    shown = {"mode": mode, "hits": hits, "warning": warning}
    return answer(shown, headers={"Warning": f'199 hybridr "{warning}"'})


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
        "match": from_match,
        "multi_match": from_multi_match,
        "bool": from_bool,
    }
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


class RewriteRequest(BaseModel):
    """The body of `/v1/rewrite`: the `query` of a search, as JSON."""

    input: dict[str, Any] = Field(description="the query clause of a search request")


def add_rewriting(app: FastAPI, searches: Searches, embedder: Embedder, settings: ServeSettings) -> None:
    """Add `/v1/rewrite`. What is not a query for one text, or cannot be encoded, comes back as it was."""
    fields = searched_fields(searches.modes["hybrid"])

    async def vector_leg(one: Wanted) -> dict[str, Any]:
        [embedding] = await embedder.embed("query", [one.text])
        return searches.modes["hybrid"].dense_leg(embedding.vector, filter_of(one))

    @app.post("/v1/rewrite", summary="A query for one text, made hybrid; any other as it came")
    async def rewrite(body: RewriteRequest, request: Request) -> Response:
        query, one = body.input, wanted(body.input, fields)
        if one is not None and is_encodable(one.text, settings.max_characters):
            try:
                dense = await unless_gone(request, vector_leg(one))
                query = rewritten(query, dense, searches.modes["hybrid"].settings.depth)
            except EncodingFailed as error:
                note(request, **described(error))
        note(request, rewritten=query is not body.input)
        return answer({"data": [{"query": query}]})


def add_ranking(app: FastAPI, searches: Searches, embedder: Embedder, settings: ServeSettings) -> None:
    """Add `/v1/rank`, which never fails: whatever is in the way, a client's search goes on as it was."""

    async def ranked(raw: bytes) -> bytes:
        search = searches.modes["hybrid"]
        body = json.loads(raw, parse_float=finite_number, parse_constant=finite_number)
        found = await run_in_threadpool(rankable_text, search, body, settings.max_characters)
        if found is None:
            return raw
        reading = await embedder.read(found.text)
        return await run_in_threadpool(ranked_body, search, body, found, reading)

    @app.post("/v1/rank", summary="A search body for one text, ranked as /search does; any other as it came")
    async def rank(request: Request) -> Response:
        raw = body = await request.body()
        try:
            body = await unless_gone(request, ranked(raw), settings.rank_timeout_s)
        except Exception as error:
            note(request, **described(error))
        note(request, rewritten=body is not raw)
        # ml-commons would take `${...}` inside the answer for something to fill in.
        return answer({"body": body.decode(errors="replace").replace("$", "\\u0024")})


def rankable_text(search: Search, body: Any, most: int) -> Wanted | None:
    """Read the one text that a whole search body looks for, of at most so many characters.

    None where its hits cannot be ranked anew, or where no document has any of the words: there are no hits.
    """
    fields = searched_fields(search)
    if search.fusion != "absolute" or not is_rankable(body) or not asks_by_words(body["query"], fields):
        return None
    one = wanted(body["query"], fields)
    return one if one and is_encodable(one.text, most) and search.knows(one.text) else None


def searched_fields(search: Search) -> frozenset[str]:
    """Name the fields in which a text is looked for, to be ranked by the search."""
    return frozenset(search.lexical_fields) | frozenset(search.info.record.fields)


def is_rankable(body: Mapping[str, Any]) -> bool:
    """Tell whether a body asks for hits by their score, or what aggregations say of them, and no more."""
    hits = body.get("size") != 0 or "aggregations" in body
    best_first = body.get("sort", BEST_FIRST) == BEST_FIRST
    return "query" in body and hits and best_first and KEPT.issuperset(body)


def asks_by_words(query: Query, fields: Collection[str]) -> bool:
    """Tell whether a query is about one text alone, any word of which will do.

    One that demands several words, or weighs something beside the text, is about its own scores and limits.
    """
    if wanted(query, fields) is None:
        return False
    [(kind, body)] = query.items()
    if kind == "bool":
        few = str(body.get("minimum_should_match", 1)) in ("0", "1")
        must = [one for one in clauses(body.get("must")) if not PLAIN.issuperset(one)]
        return few and all(asks_by_words(one, fields) for one in (*must, *clauses(body.get("should"))))
    options = next(iter(body.values())) if kind == "match" else body
    named = options if isinstance(options, Mapping) else {}
    return str(named.get("operator", "or")).lower() == "or" and "minimum_should_match" not in named


def ranked_body(search: Search, body: dict[str, Any], one: Wanted, reading: Reading) -> bytes:
    """Write a body anew, with the client's own query as what finds by words, and everything else as it is.

    Raises SettingsError for a page that lies beyond what is scored.
    """
    k = max(1, body.get("from", 0) + body.get("size", 10))
    made = search.body(one.text, k, filter=filter_of(one), reading=reading, matched=body["query"])
    known = (int(search.info.settings[name]) for name in WINDOW_LIMITS if name in search.info.settings)
    if made["rescore"]["window_size"] > (limit := next(known, LARGEST_WINDOW)):
        raise SettingsError(f"the {k} best need a larger window than the {limit} that the index allows")
    new = body | {name: made[name] for name in ("query", "rescore")}
    if "stored_fields" not in body:
        new["_source"] = without_field(search.info.record.vector_field, body.get("_source", {}))
    return orjson.dumps(new)


def finite_number(number: str) -> float:
    """Read a number of JSON. Raises ValueError for one too large: it would be written as null."""
    if not math.isfinite(found := float(number)):
        raise ValueError(f"{number} is no number that can be passed on")
    return found


def without_field(field: str, source: Any) -> Any:
    """Leave a field out of the `_source` of an answer, unless the client names it."""
    if not isinstance(source, Mapping) or field in source.get("includes", ()):
        return source
    return {**source, "excludes": [*source.get("excludes", ()), field]}


def is_encodable(text: str, most: int) -> bool:
    """Tell whether a text has something to encode and fits; lone surrogates no tokenizer can read."""
    whole = text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
    return whole and says_something(text) and len(text) <= most
