"""`/search`, `/v1/rank`, `/v1/rewrite`: what an index answers, and what becomes of an ordinary search."""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from typing import Any, get_args

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from ..cluster.connection import Cluster
from ..cluster.legs import FAMILY as LEGS
from ..cluster.legs.lexical import LexicalLeg
from ..encoding.contract import Reading
from ..errors import ClusterError, HybridrError
from ..families import member_of, names_of
from ..rewriting.clauses import QueryBody, Reason, Wanted
from ..rewriting.rewriting import BodyRanking, filter_of
from ..search.candidates import HYBRID, encodes
from ..search.checks import Mode
from ..search.fusions.pipeline import hybrid_query
from ..search.search import Search
from ..search.settings import Finds, SearchSettings
from ..search.signal_set import without_tokens
from .doorway import SearchThreads, unless_gone
from .embeddings import Embedder
from .requests import (
    BAD_REQUEST,
    LATE,
    EncodingFailed,
    Refused,
    SearchRequest,
    answer,
    check_filter,
    check_query,
    is_too_long,
)
from .settings import ServeSettings
from .telemetry import described, note

MOST_SEARCHES = 256  # worked on or waiting, of /search and of /v1/rank each; 503 with Retry-After beyond
BUILT_AT_ONCE = 1_000  # characters of a text; longer ones would hold up the event loop for milliseconds
WARNING = "the encoder failed, these are lexical results"


class Searches:
    """Searches of one index in every mode; the encoder is checked against the index once, here."""

    def __init__(
        self, cluster: Cluster, embedder: Embedder, serving: ServeSettings, settings: SearchSettings | None
    ) -> None:
        self.cluster, self.embedder, self.settings = cluster, embedder, settings or SearchSettings()
        self.index, self.most_characters = str(serving.index), serving.max_query_characters
        self.threads = SearchThreads(MOST_SEARCHES)
        self.modes: dict[Mode, Search]
        self.rankings: dict[Finds, BodyRanking]
        self.reopen()

    def reopen(self) -> None:
        """Look at the index again: from now on searches rank by what its record says now."""
        hybrid = Search(self.cluster, self.index, self.embedder.encoder, settings=self.settings)
        record = hybrid.info.record
        single = [name for name in names_of(LEGS) if not member_of(LEGS, name).obstacle(record)]
        self.modes = {HYBRID: hybrid, **{name: hybrid.using(name) for name in single}}
        most = self.most_characters
        self.rankings = {recall: BodyRanking(hybrid, recall, most=most) for recall in get_args(Finds)}

    def search(self, mode: Mode) -> Search:
        """Give the search in a mode. Raises Refused where the index lacks its leg."""
        if mode not in self.modes:
            raise Refused(422, f"the index has no {mode} leg", f"one of {', '.join(self.modes)}")
        return self.modes[mode]

    async def read(self, mode: Mode, query: str) -> Reading | None:
        """Read a query for its vector, and for its tokens where a signal needs them; not where words suffice.

        Raises EncodingFailed.
        """
        if not encodes(mode, self.settings):
            return None
        if self.search(mode).signals.reads_tokens:
            return await self.embedder.read(query)
        [embedding] = await self.embedder.embed("query", [query])
        return without_tokens(embedding.vector)


def add_searching(app: FastAPI, searches: Searches, embedder: Embedder, settings: ServeSettings) -> None:
    """Add all that asks an index."""
    add_search(app, searches, settings)
    add_ranking(app, searches, embedder, settings)
    add_rewriting(app, searches, embedder, settings)


def add_search(app: FastAPI, searches: Searches, settings: ServeSettings) -> None:
    """Add `/search`. Where the encoder fails it answers with lexical hits and a `Warning` header."""

    @app.post("/search", summary="The best documents of the index for a query")
    async def search(body: SearchRequest, request: Request) -> Response:
        note(request, mode=body.mode, k=body.k, **({"input": body.query} if settings.log_queries else {}))
        check_query(body.query, settings)
        check_filter(body.filter, settings)
        mode, reading, warning = body.mode, None, None
        try:
            reading = await unless_gone(request, searches.read(mode, body.query), settings.search_timeout_s)
        except EncodingFailed as error:
            note(request, warning=WARNING, **described(error))
            mode, warning = LexicalLeg.name, WARNING
        page: dict[str, Any] = {"offset": body.offset, "filter": body.filter, "explain": body.explain}
        page |= {"boost": body.boost} if body.boost and not warning else {}
        asked = partial(searches.search(mode), **page, reading=reading)
        found = searches.threads.run(partial(asked, body.query, body.k))
        try:
            hits = await unless_gone(request, found, settings.search_timeout_s)
        except ClusterError as error:
            if body.filter is None or error.status != BAD_REQUEST or is_too_long(error):
                raise
            raise Refused(422, f"filter: {error.message}", "the mapping says what its fields take") from None
        return found_answer(mode, [hit.to_json() for hit in hits], warning)


def found_answer(mode: Mode, hits: list[dict[str, object]], warning: str | None) -> Response:
    """Answer with hits and the mode that found them."""
    if warning is None:
        return answer({"mode": mode, "hits": hits})
    shown = {"mode": mode, "hits": hits, "warning": warning}
    return answer(shown, headers={"Warning": f'199 hybridr "{warning}"'})


class RewriteRequest(BaseModel):
    """The body of `/v1/rewrite`: the `query` of a search, as JSON."""

    input: dict[str, Any] = Field(description="the query clause of a search request")


def add_rewriting(app: FastAPI, searches: Searches, embedder: Embedder, settings: ServeSettings) -> None:
    """Add `/v1/rewrite`. What is not a query for one text, or cannot be encoded, comes back as it was."""

    async def rewritten(query: QueryBody, one: Wanted) -> dict[str, Any]:
        [embedding] = await embedder.embed("query", [one.text], settings.rank_timeout_s)
        hybrid, reading = searches.modes[HYBRID], without_tokens(embedding.vector)
        legs = hybrid.further_legs(one.text, reading, filter_of(one))
        return hybrid_query([dict(query), *legs], hybrid.settings.depth)

    @app.post("/v1/rewrite", summary="A query for one text, made hybrid; any other as it came")
    async def rewrite(body: RewriteRequest, request: Request) -> Response:
        query, ranking = body.input, searches.rankings["all"]
        one = ranking.reader.read(query)
        if isinstance(one, Wanted) and not one.around and not ranking.unreadable(one.text):
            try:
                query = await unless_gone(request, rewritten(query, one), settings.rank_timeout_s)
            except Refused as error:  # EncodingFailed is one
                note(request, **described(error))
        note(request, rewritten=query is not body.input)
        return answer({"data": [{"query": query}]})


def add_ranking(app: FastAPI, searches: Searches, embedder: Embedder, settings: ServeSettings) -> None:
    """Add `/v1/rank`, which never fails: whatever is in the way, a client's search goes on as it was."""
    threads = SearchThreads(MOST_SEARCHES)  # of its own: /search waits for the cluster longer
    words = LookUp(threads, searches, settings.rank_timeout_s)

    async def ranked(raw: bytes, ranking: BodyRanking, boost: str | None) -> tuple[bytes, Reason | None]:
        body = json.loads(raw, **STRICTLY)
        one = ranking.wanted(body)
        if one == "too_long":
            return raw, one
        if isinstance(one, str):
            return orjson.dumps(ranking.without_vector(body)), one
        reading, _ = await asyncio.gather(
            embedder.read(one.text, settings.rank_timeout_s), words.wait_for(one.text)
        )
        work = partial(written, ranking, body, one, reading, boost)
        return work() if is_quick(ranking.search, one.text) else await threads.run(work)

    @app.post("/v1/rank", summary="A search body for one text, ranked as /search does; any other as it came")
    async def rank(request: Request, recall: Finds = "all", boost: str | None = None) -> Response:
        raw = body = await request.body()
        reason: Reason | None
        try:
            work = ranked(raw, searches.rankings[recall], boost)
            body, reason = await unless_gone(request, work, settings.rank_timeout_s)
        except Exception as error:
            reason = reason_of(error)
            note(request, **described(error))
        note(request, rewritten=reason is None, reason=reason)
        embedder.metrics.count_ranking(reason)
        # ml-commons would take `${...}` inside the answer for something to fill in.
        return answer({"body": body.decode(errors="replace").replace("$", "\\u0024")})


class LookUp:
    """Has the cluster read texts; those that come meanwhile go together in the next request.

    A request for each would be most of what a busy server does.
    """

    def __init__(self, threads: SearchThreads, searches: Searches, within_s: float) -> None:
        self._threads, self._searches, self._within_s = threads, searches, within_s
        self._turn = asyncio.Lock()
        self._texts: list[str] = []
        self._next: asyncio.Future[None] | None = None

    async def wait_for(self, text: str) -> None:
        """Wait until a text was read, unless it was before or is long: long ones are read one by one.

        Raises what keeps the cluster from it, for all texts of a request.
        """
        if is_long(text) or self._searches.modes[HYBRID].at_hand(text):
            return
        if self._next is None:
            self._next = asyncio.ensure_future(self._take_turn())
        self._texts.append(text)
        await asyncio.shield(self._next)  # a client that leaves takes nothing from the others

    async def _take_turn(self) -> None:
        try:
            await self._turn.acquire()
        finally:
            texts, self._texts, self._next = self._texts, [], None
        try:
            request = self._threads.run(partial(self._searches.modes[HYBRID].analysis.of, texts))
            await asyncio.wait_for(request, self._within_s)  # longer than that nobody waits for it
        finally:
            self._turn.release()


def written(
    ranking: BodyRanking, body: dict[str, Any], one: Wanted, reading: Reading, boost: str | None
) -> tuple[bytes, Reason | None]:
    """Write the body that ranks a text, or the client's own where no document has a word of it."""
    if not ranking.finds(one.text):
        return orjson.dumps(ranking.without_vector(body)), "unknown_words"
    return orjson.dumps(ranking.body(body, one, reading, boost)), None


def is_long(text: str) -> bool:
    """Tell whether reading a text would hold up the event loop."""
    return len(text) > BUILT_AT_ONCE


def is_quick(search: Search, text: str) -> bool:
    """Tell whether the body for a text is built in less time than a thread takes to begin."""
    return not is_long(text) and search.at_hand(text)


def reason_of(error: Exception) -> Reason:
    """Name what kept a search from being ranked by the error that it ended with."""
    if isinstance(error, Refused):
        return "late" if error.status_code == LATE else "failed"
    return "failed" if isinstance(error, HybridrError) else "unreadable"


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Read an object of JSON. Raises ValueError for one that names a part twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has two parts of one name")
    return found


def finite_number(number: str) -> float:
    """Read a number of JSON. Raises ValueError for one too large: it would be written as null."""
    if not math.isfinite(found := float(number)):
        raise ValueError(f"{number} is no number that can be passed on")
    return found


STRICTLY: dict[str, Any] = {
    "parse_float": finite_number,
    "parse_constant": finite_number,
    "object_pairs_hook": distinct,
}
"""How a body is read that others will read again."""
