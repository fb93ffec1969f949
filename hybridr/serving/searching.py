"""The routes `/search`, `/v1/rank` and `/events`: searches of the index, ranking of clients' own searches,
and storage of what users did, in the form of UBI (User Behavior Insights).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, TypeAlias

import orjson
from fastapi import FastAPI, Request, Response
from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field

from ..cluster.retrievers.lexical import LexicalRetriever
from ..errors import ClusterError
from ..records import Hit, Hits
from ..relevance.clicks.ubi import EVENTS, EXPERIMENT, QUERIES, TEAMS, UbiWriter
from ..search.calibration import QUESTIONS
from ..search.checks import HYBRID
from ..search.clauses import NotRanked
from ..search.settings import RecallMode
from .doorway import TOO_MANY
from .requests import (
    BAD_REQUEST,
    Busy,
    EncodingFailed,
    Refused,
    SearchRequest,
    UbiId,
    UbiSearch,
    check_filter,
    check_query,
    has_too_many_clauses,
    json_response,
    not_ranked_reason,
)
from .rewriting.rewriting import BodyRanking, strict_json
from .search_threads import SearchThreads, client_result
from .snapshots import Contest, IndexSnapshot, Searches, Teams
from .telemetry import LOGGER, error_facts, note, note_ranking

MAX_EVENTS = 1_000
ACCEPTED = 202
Short = Annotated[str, Field(max_length=256)]
DocumentName = Annotated[str, Field(min_length=1, max_length=512)] | int
Coordinate = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class EventPosition(BaseModel):
    """Position of an event on the page."""

    ordinal: Coordinate | None = None
    x: Coordinate | None = None
    y: Coordinate | None = None
    page_depth: Coordinate | None = None
    scroll_depth: Coordinate | None = None
    trail: Short | None = None


class EventObject(BaseModel):
    """The object of an event, such as a document."""

    object_id: DocumentName | None = None
    object_id_field: UbiId | None = None
    internal_id: DocumentName | None = None
    name: Short | None = None
    description: Short | None = None


class EventAttributes(BaseModel):
    """Further attributes of an event; unknown ones are dropped."""

    position: EventPosition | None = None
    object: EventObject | None = None


class UbiEvent(BaseModel):
    """An action of a user, in the form of `ubi_events`; unknown fields are dropped."""

    action_name: UbiId
    query_id: UbiId | None = None
    client_id: UbiId | None = None
    user_query: Annotated[str, Field(max_length=1_000)] | None = None
    application: UbiId | None = None
    message: Annotated[str, Field(max_length=1_000)] | None = None
    message_type: UbiId | None = None
    timestamp: AwareDatetime | None = Field(None, description="with its zone; None: when it arrived")
    event_attributes: EventAttributes | None = None


def as_list(value: Any) -> Any:
    """Return one event as a list of one. Raises ValueError for an empty or too long list."""
    items = [value] if isinstance(value, dict) else value
    if isinstance(items, list) and not 0 < len(items) <= MAX_EVENTS:
        raise ValueError(f"1 to {MAX_EVENTS} events are taken")
    return items


Events = Annotated[list[UbiEvent], BeforeValidator(as_list)]


def add_events(app: FastAPI, keeper: UbiWriter) -> None:
    """Add `/events`."""

    @app.post("/events", summary="What people did with the hits: an event of UBI, or a list of them")
    async def events(body: Events) -> Response:
        records = [event.model_dump(mode="json", exclude_none=True) for event in body]
        if not keeper.keep(EVENTS, records):
            raise Busy("the server has as many events to write as it takes", TOO_MANY)
        return json_response({"taken": len(records)}, ACCEPTED)


def query_record(
    body: SearchRequest, ubi: UbiSearch, query_id: str, hits: Sequence[Hit], teams: Teams | None
) -> dict[str, Any]:
    """Return the entry of `ubi_queries` for a search with these hits; `teams` if interleaved."""
    experiment_attributes = {EXPERIMENT: teams.experiment, TEAMS: teams.letters} if teams else {}
    reserved = {EXPERIMENT, TEAMS}
    client_attributes = {name: value for name, value in ubi.query_attributes.items() if name not in reserved}
    return {
        "user_query": body.query,
        **ubi.model_dump(exclude_none=True),
        "query_id": query_id,
        "query_response_id": secrets.token_hex(16),
        "query_response_hit_ids": [hit.doc_id for hit in hits],
        "query_attributes": client_attributes | experiment_attributes,
    }


WARM_S = 10.0  # longest time of warming up before the server is ready
INDEX_GONE = frozenset((404, 503))
"""Statuses of a search in an index that was just deleted: not found, or all shards failed."""
GivesHits: TypeAlias = "Callable[..., list[Hit]]"
WARNING = "the encoder failed, these are lexical results"
UNSURE = "these scores have no known confidence, so at_least left no hit out"


def add_searching(app: FastAPI, searches: Searches) -> None:
    """Add all routes that search the index."""
    add_search(app, searches)
    add_ranking(app, searches)

    @app.get("/v1/index", summary="Which index is asked, and by what, as deploy compares it")
    async def index() -> Response:
        await searches.threads.run(searches.look)
        return json_response(searches.now.description() | {"problem": searches.problem})


def add_search(app: FastAPI, searches: Searches) -> None:
    """Add `/search`. If the encoder fails, or the index lost its vectors, it answers with lexical hits and a
    `Warning` header.
    """
    settings = searches.serving

    async def search_current_index(body: SearchRequest, request: Request) -> Response:
        """Answer a search; if the index was deleted, from the index that replaced it."""
        snapshot = searches.now
        try:
            return await answer_search(body, request, searches, snapshot)
        except ClusterError as error:
            if error.status not in INDEX_GONE:
                raise
            newer_snapshot = await searches.threads.run(partial(searches.replacement_of, snapshot))
            if newer_snapshot is snapshot:
                raise
            return await answer_search(body, request, searches, newer_snapshot)

    @app.post("/search", summary="The best documents of the index for a query")
    async def search(body: SearchRequest, request: Request) -> Response:
        note(request, mode=body.mode, k=body.k, **({"input": body.query} if settings.log_queries else {}))
        check_query(body.query, settings)
        check_filter(body.filter, settings)
        try:
            return await search_current_index(body, request)
        except ClusterError as error:
            if body.filter is None or error.status != BAD_REQUEST or has_too_many_clauses(error):
                raise
            raise Refused(422, f"filter: {error.message}", "the mapping says what its fields take") from None


async def answer_search(
    body: SearchRequest, request: Request, searches: Searches, snapshot: IndexSnapshot
) -> Response:
    """Return the response to `/search` from one snapshot of the index, lexical if its vectors or the encoder
    fail.
    """
    settings, mode, reading, warning = searches.serving, body.mode, None, ""
    if snapshot.lost and mode != LexicalRetriever.name:
        mode, warning = LexicalRetriever.name, f"{snapshot.lost}: these are lexical results"
    rules = snapshot.search(mode).rules
    ruling = await asyncio.to_thread(rules.ruling, body.query) if rules.is_slow else rules.ruling(body.query)
    try:
        reading = await client_result(request, snapshot.read(mode, ruling.text), settings.search_timeout_s)
    except EncodingFailed as error:
        note(request, warning=WARNING, **error_facts(error))
        mode, warning = LexicalRetriever.name, WARNING
    page: dict[str, Any] = {"filter": body.filter, "explain": body.explain, "reading": reading}
    page |= {"boost": body.boost} if body.boost and not warning else {}
    ubi = body.ubi if settings.ubi else None
    query_id = (ubi.query_id or secrets.token_hex(16)) if ubi else ""
    search = snapshot.search(mode)
    if body.at_least is not None and not warning:
        search = search.requiring(body.at_least)
    contest = snapshot.contest if ubi and mode == HYBRID and not body.at_least else None
    rankings = [search, contest.rival] if contest else [search]
    calls = [partial(ranking, **page) for ranking in rankings]
    work = interleaved_hits(body, searches.threads, calls, contest, query_id)
    hits, teams = await client_result(request, work, settings.search_timeout_s)
    if ubi:
        entry = query_record(body, ubi, query_id, hits, teams)
        request.app.state.keeper.keep(QUERIES, [entry], ubi.object_id_field or "")
    unsure_warning = UNSURE if (warning or body.boost) and body.at_least else ""
    warning = "; ".join(filter(None, [warning, unsure_warning, *search.reordering.late_remarks(hits)]))
    response: dict[str, Any] = {"mode": mode, "hits": [hit.to_json() for hit in hits]}
    response |= {"nearest": hits.nearest.to_json()} if isinstance(hits, Hits) and hits.nearest else {}
    response |= {"ext": {"ubi": {"query_id": query_id}}} if query_id else {}
    response |= {"rules": list(ruling.names)} if ruling.names else {}
    if not warning:
        return json_response(response)
    text = "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in '"\\' else "?"
        for letter in warning  # a name may hold any letters
    )
    return json_response(response | {"warning": warning}, headers={"Warning": f'199 hybridr "{text}"'})


async def interleaved_hits(
    body: SearchRequest,
    threads: SearchThreads,
    calls: Sequence[GivesHits],
    contest: Contest | None,
    query_id: str,
) -> tuple[list[Hit], Teams | None]:
    """Return the hits of a search and None; with a `contest` the interleaved hits of two rankings, and their
    teams. `calls` are one or two rankings.

    If the second ranking fails, the hits of the first are returned, and None.
    """
    if contest is None:
        return await threads.run(partial(calls[0], body.query, body.k, offset=body.offset)), None
    stop = body.offset + body.k
    pending_hits = [threads.run(partial(call, body.query, stop)) for call in calls]
    a, b = await asyncio.gather(*pending_hits, return_exceptions=True)
    if isinstance(a, BaseException):
        raise a
    if isinstance(b, BaseException):
        LOGGER.warning("no draft", extra={"facts": {"experiment": contest.experiment, **error_facts(b)}})
        return a[body.offset :], None
    return contest.draft(query_id, a, b, range(body.offset, stop))


def add_ranking(app: FastAPI, searches: Searches) -> None:
    """Add `/v1/rank`, which never fails: for a search that cannot be ranked it returns the client's body,
    changed only to keep vectors out of the hits; an unreadable body comes back unchanged.

    The route's `index` is the uuid of the index whose pipeline sends the search; only the index that this
    server serves is ranked.
    """
    timeout_s = searches.serving.rank_timeout_s

    @app.post("/v1/rank", summary="A search body for one text, ranked as by /search; or unranked")
    async def rank(
        request: Request, recall: RecallMode = "all", boost: str | None = None, index: str | None = None
    ) -> Response:
        raw, snapshot = await request.body(), searches.now
        ranking = snapshot.rankings[recall]
        outcome: bytes | NotRanked = NotRanked("another_index")
        try:
            if searches.is_followed(index):
                work = ranked_body(snapshot, ranking, raw, timeout_s, boost)
                outcome = await client_result(request, work, timeout_s)
        except Exception as error:
            outcome = not_ranked_reason(error)
            note(request, **error_facts(error))
        not_ranked = outcome if isinstance(outcome, NotRanked) else None
        if not isinstance(outcome, NotRanked):
            body = outcome
        else:
            body = raw if outcome.reason == "unreadable" else ranking.unranked(raw)
        note_ranking(request, not_ranked)
        snapshot.embedder.metrics.count_ranking(not_ranked)
        # \u0024 is "$" in JSON: ml-commons would take `${...}` in the answer for a placeholder.
        return json_response({"body": body.decode(errors="replace").replace("$", "\\u0024")})


async def ranked_body(
    snapshot: IndexSnapshot, ranking: BodyRanking, raw: bytes, within_s: float, boost: str | None = None
) -> bytes | NotRanked:
    """Return the body that ranks a search, or why one request cannot rank it. Raises ValueError for a
    malformed body.
    """
    request = await snapshot.read_body(ranking, strict_json(raw), within_s)
    if isinstance(request, NotRanked):
        return request
    ranked = await snapshot.rank(ranking, request, boost)
    if isinstance(ranked, NotRanked):
        return ranked
    return NotRanked("failed") if ranked.only_finds else orjson.dumps(ranked.body)


async def warm_up(searches: Searches) -> None:
    """Rank example texts until two in a row are fast, for WARM_S at most, so that encoder, threads and
    cluster are warm for the first clients.
    """
    snapshot, quick, until = searches.now, 0, time.monotonic() + WARM_S
    ranking, within_s = snapshot.rankings["all"], searches.serving.rank_timeout_s
    for text in QUESTIONS:
        if snapshot.lost or quick == 2 or time.monotonic() > until:
            return
        began = time.monotonic()
        with suppress(Exception):  # a client's search will report it
            sent_body = orjson.dumps(
                {"query": snapshot.modes[HYBRID].context.words.query(text, 1), "size": 1}
            )
            ranked = await ranked_body(snapshot, ranking, sent_body, within_s)
            took = time.monotonic() - began
            quick = quick + 1 if took < within_s / 2 else 0
            body = ranking.unranked(sent_body) if isinstance(ranked, NotRanked) else ranked
            search = partial(searches.cluster.search, snapshot.info, orjson.loads(body))
            await searches.ranking_threads.run(search)
