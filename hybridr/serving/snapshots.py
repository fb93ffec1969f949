"""Snapshots of the index that the server searches, replaced when the index or its record changes.

A request takes the current snapshot once, when it begins, so that encoder, weights and term table belong
together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from threading import Event, Lock, Thread
from typing import Any, NamedTuple, get_args

from starlette.datastructures import State

from ..cluster.connection import Cluster
from ..cluster.destinations import resolve
from ..cluster.record import IndexInfo
from ..cluster.retrievers import FAMILY as RETRIEVERS
from ..cluster.retrievers.lexical import LexicalRetriever
from ..encoders.contract import Reading
from ..errors import DataError, FingerprintMismatch, HybridrError, ModelError
from ..evaluation.significance import team_draft
from ..families import load_member, member_names
from ..records import Hit
from ..relevance.clicks.ubi import NEITHER
from ..search.checks import HYBRID, Mode, encoder_for, encodes
from ..search.clauses import NotRanked
from ..search.client_query import Shapes
from ..search.context import SearchContext, obstacles_to, without_tokens
from ..search.search import Search, requirements_of
from ..search.settings import RecallMode, SearchSettings
from ..search.signals import Place
from .embeddings import MAX_WAIT_S, Embedder
from .requests import Refused
from .rewriting.rewriting import BodyRanking, RankedRequest, ReadBody
from .search_threads import STALLED_S, SearchThreads
from .settings import ServeSettings
from .telemetry import LOGGER

BUILT_AT_ONCE = 1_000  # characters of a text; longer ones would hold up the event loop for milliseconds
EVERY_S = 2.0
"""Seconds between two checks of the index, each of two small requests."""
RETRY_S = 60.0  # until an index that could not be opened is tried again
MIN_INTERVAL_S = 0.5  # between two checks, also those that requests cause
MAX_SEARCHES = 256  # running or waiting, of /search and of /v1/rank each; 503 with Retry-After beyond
BOOKKEEPING = frozenset(
    "accepted aliases deployment destinations history load original previous refused rejected synced "
    "warning".split()
)
"""Fields of a record that no search reads; `sync` writes some of them every few seconds."""


class TextAnalysis:
    """Lets the cluster analyse texts; texts that arrive during a request share the next one."""

    def __init__(self, threads: SearchThreads, search: Search, within_s: float) -> None:
        self._threads, self._search, self._within_s = threads, search, within_s
        self._turn = asyncio.Lock()
        self._texts: list[str] = []
        self._next: asyncio.Future[None] | None = None

    def is_ready(self, text: str) -> bool:
        """Return whether the body for a text can be built at once, without a request."""
        return len(text) <= BUILT_AT_ONCE and self._search.needs_no_request(text)

    async def wait_for(self, text: str) -> None:
        """Wait until a text is analysed; long texts are not waited for.

        Raises the error of the request, for all texts of it.
        """
        if len(text) > BUILT_AT_ONCE or self._search.needs_no_request(text):
            return
        if self._next is None:
            self._next = asyncio.ensure_future(self._take_turn())
        self._texts.append(text)
        await asyncio.shield(self._next)  # if one client leaves, the others still get their result

    async def _take_turn(self) -> None:
        """Wait for the turn, and analyse all texts that wait by one request."""
        try:
            await self._turn.acquire()
        finally:
            texts, self._texts, self._next = self._texts, [], None
        try:
            request = self._threads.run(partial(self._search.analysis.of, texts))
            await asyncio.wait_for(request, self._within_s)  # no ranking waits longer
        finally:
            self._turn.release()


class Teams(NamedTuple):
    """The rankings that the hits of a list come from, one letter per hit; `experiment` is an id."""

    experiment: str
    letters: str


@dataclass(frozen=True)
class Contest:
    """The running experiment: its id, and the second ranking to compare."""

    experiment: str
    rival: Search

    def draft(
        self, query_id: str, a: Sequence[Hit], b: Sequence[Hit], page: range
    ) -> tuple[list[Hit], Teams]:
        """Return a page of the interleaved hits of both rankings (team draft), with their teams.

        Every request with the same `query_id` gets the same list, so that pages fit. If one ranking has fewer
        hits, the rest of the other belongs to neither team.
        """
        random = Random(f"{self.experiment} {query_id}")  # noqa: S311 - a coin
        picks = team_draft([hit.doc_id for hit in a], [hit.doc_id for hit in b], random)
        teams = {pick.doc_id: pick.team for pick in picks}
        by_team = {"a": {hit.doc_id: hit for hit in a}, "b": {hit.doc_id: hit for hit in b}}
        hits = [by_team[pick.team or "a"][pick.doc_id] for pick in picks]
        hits += [hit for hit in max(a, b, key=len) if hit.doc_id not in teams]
        page_hits = [hit._replace(rank=rank) for rank, hit in enumerate(hits[: page.stop], 1)][page.start :]
        letters = "".join(teams.get(hit.doc_id) or NEITHER for hit in page_hits)
        return page_hits, Teams(self.experiment, letters)


def contest_of(search: Search, settings: SearchSettings) -> Contest | None:
    """Return the experiment of a search's index, if one runs and the index can rank by its second ranking;
    else None.
    """
    if (experiment := search.info.record.running_experiment) is None:
        return None
    try:
        info = search.info.with_record(search.info.record.with_ranking(experiment.b))
        return Contest(experiment.id, Search(search.cluster, info, search.encoder, settings=settings))
    except HybridrError as error:
        LOGGER.warning("no experiment", extra={"facts": {"experiment": experiment.id, "why": error.message}})
        return None


@dataclass(frozen=True)
class IndexSnapshot:
    """One index with one encoder, opened at one state of its record.

    `modes` are its searches, `rankings` rank clients' bodies, by recall, in `threads`. `lost` says why only
    words rank now, "" if vectors do. `contest` is the running experiment, if searches are recorded.
    """

    info: IndexInfo
    embedder: Embedder
    modes: Mapping[Mode, Search]
    rankings: Mapping[RecallMode, BodyRanking]
    words: TextAnalysis
    threads: SearchThreads
    settings: SearchSettings
    lost: str = ""
    contest: Contest | None = None

    @property
    def shapes(self) -> Shapes:
        """Return the shapes of clients' queries."""
        return next(iter(self.rankings.values())).queries.shapes

    def search(self, mode: Mode) -> Search:
        """Return the search in a mode. Raises Refused if the index lacks the retriever."""
        if mode not in self.modes:
            raise Refused(422, f"the index has no {mode} retriever", f"one of {', '.join(self.modes)}")
        return self.modes[mode]

    async def read(self, mode: Mode, query: str) -> Reading | None:
        """Return the encoder's reading of a query, with tokens if a signal needs them; None if words suffice.

        Raises EncodingFailed.
        """
        if not encodes(mode, self.settings):
            return None
        rival = [self.contest.rival] if self.contest else []
        if any(search.signals.reads_tokens for search in (self.search(mode), *rival)):
            return await self.embedder.read(query)
        [embedding] = await self.embedder.embed("query", [query])
        return without_tokens(embedding.vector)

    async def read_body(
        self, ranking: BodyRanking, body: dict[str, Any], within_s: float
    ) -> ReadBody | NotRanked:
        """Return a parsed body with the reading of its text, whose words the cluster has analysed; or why it
        is not ranked.

        Raises the errors of `BodyRanking.read` and of the encoder.
        """
        is_slow = ranking.search.rules.is_slow
        request = await asyncio.to_thread(ranking.read, body) if is_slow else ranking.read(body)
        if isinstance(request, NotRanked):
            return request
        text = request.query.text
        reading = self.embedder.read(text, within_s)
        if self.words.is_ready(text):
            return request._replace(reading=await reading)
        encoded, _ = await asyncio.gather(reading, self.words.wait_for(text))
        return request._replace(reading=encoded)

    async def rank(
        self, ranking: BodyRanking, request: ReadBody, boost: str | None = None
    ) -> RankedRequest | NotRanked:
        """Return the body that ranks a request; built in a thread if it takes a request to the cluster."""
        work = partial(ranking.rank, request, boost)
        return work() if self.words.is_ready(request.query.text) else await self.threads.run(work)

    def warm_up(self) -> IndexSnapshot:
        """Search once, so that encoder, connection and script are ready for the first request; return this
        snapshot.
        """
        with suppress(Exception):  # a client's search will report it
            next(iter(self.modes.values()))("a first question", 1)
        return self

    def warm_signals(self) -> bool:
        """Load the next part of the data that signals need; return whether it was the last."""
        with suppress(Exception):  # a client's search will report it
            search = next(iter(self.modes.values()))
            return not any([signal.warm() for signal in search.signals.members.values()])
        return True

    def description(self) -> dict[str, Any]:
        """Return which index, encoder and fields are searched, for `deploy` to compare."""
        search = next(iter(self.modes.values()))
        return {
            "index": self.info.name,
            **requirements_of(search, self.embedder.encoder.fingerprint),
            "left_out": dict(search.signals.left_out),
            "lost": self.lost,
        }


class Searches:
    """The searches of the index that the server follows: `now` is the current snapshot, which `look`
    replaces.

    In `app_state` the routes find the current embedder; with `[serve] encoder` it never changes. `problem`
    says why a changed index could not be opened, while the previous snapshot stays.
    """

    def __init__(
        self, cluster: Cluster, place: State, serving: ServeSettings, settings: SearchSettings | None
    ) -> None:
        self.cluster, self.app_state, self.serving = cluster, place, serving
        self.settings, self.index = settings or SearchSettings(), str(serving.index)
        self.threads = SearchThreads(MAX_SEARCHES, STALLED_S)
        self.ranking_threads = SearchThreads(MAX_SEARCHES, STALLED_S)  # /search waits longer
        self.problem = ""
        self._lock, self._wake_up, self._ended = Lock(), Event(), Event()
        self._failed: IndexInfo | None = None
        self._retry_at = self._checked_at = 0.0
        self._retired: list[tuple[float, Embedder]] = []
        self.now = self._open(self.index, place.embedder)

    def reopen(self) -> None:
        """Open the index again, so that searches follow its current record."""
        with self._lock:
            self._replace_snapshot(resolve(self.cluster, self.index))

    def look(self) -> None:
        """Check the index, and open it again if its ranking changed.

        Raises nothing: after an error the current snapshot stays, and `problem` has the message.
        """
        with self._lock:
            self._look()

    def replacement_of(self, failed: IndexSnapshot) -> IndexSnapshot:
        """Return the snapshot that replaces `failed`, whose index just failed to answer, or `failed` itself
        if nothing changed.

        Requests that fail together check the index once.
        """
        failed_at = time.monotonic()
        with self._lock:
            if self.now is failed and self._checked_at < failed_at:
                self._look()
            return self.now

    def is_followed(self, uuid: str | None) -> bool:
        """Return whether a uuid is that of the followed index (None: any); if not, the index is checked
        soon.
        """
        is_same = uuid is None or uuid == self.now.info.uuid
        if not is_same:
            self.check_soon()
        return is_same

    def check_soon(self) -> None:
        """Let the thread of `follow` check the index at its next turn."""
        self._wake_up.set()

    def follow(self) -> None:
        """Start the thread that checks the index every few seconds, until `end`."""
        self.now.warm_up()
        Thread(target=self._follow, name="hybridr-follow", daemon=True).start()

    def end(self) -> None:
        """Stop checking, and close encoders that were replaced."""
        self._ended.set()
        self._wake_up.set()
        for _, embedder in self._retired:
            embedder.close()

    def _follow(self) -> None:
        """Check the index every few seconds, or when asked to, until `end` (background thread)."""
        warm_snapshot: IndexSnapshot | None = None
        while not self._ended.wait(MIN_INTERVAL_S):
            if (snapshot := self.now) is not warm_snapshot and snapshot.warm_signals():
                warm_snapshot = snapshot
            self._wake_up.wait(EVERY_S - MIN_INTERVAL_S)
            self._wake_up.clear()
            if not self._ended.is_set():
                self.look()

    def _look(self) -> None:
        """Check whether the index has changed, and open a new snapshot if it has."""
        self._checked_at = time.monotonic()
        problem = self.problem
        try:
            info = resolve(self.cluster, self.index)
            with_ranking = without_bookkeeping(info)
            if with_ranking != self._failed or self._retry_at <= self._checked_at:  # a failure takes 1 s
                has_changed = with_ranking != without_bookkeeping(self.now.info)
                if has_changed or self.now.lost or has_regained_signal(self.now.modes[HYBRID].context):
                    self._replace_snapshot(info)
                problem = self.now.lost
        except Exception as error:  # the thread must survive any answer of the cluster
            problem = error.message if isinstance(error, HybridrError) else repr(error)
        if problem and problem != self.problem:
            LOGGER.warning("cannot follow", extra={"facts": {"problem": problem}})
        self.problem = problem
        latest = time.monotonic() - MAX_WAIT_S  # no request can still use an encoder retired before
        for retired_at, embedder in [entry for entry in self._retired if entry[0] < latest]:
            self._retired.remove((retired_at, embedder))
            embedder.close()

    def _replace_snapshot(self, info: IndexInfo) -> None:
        """Open an index as the new snapshot. Raises HybridrError if the current one has to stay."""
        embedder: Embedder = self.app_state.embedder
        try:
            if not self.serving.encoder and info.record.encoder not in ("", embedder.encoder.fingerprint):
                encoder = encoder_for(info, None)
                embedder = Embedder(encoder, self.serving, embedder.metrics)
            snapshot = self._open(info, embedder).warm_up()
        except (DataError, ModelError, FingerprintMismatch) as error:
            self._failed, self._retry_at = without_bookkeeping(info), time.monotonic() + RETRY_S
            is_replaced = info.uuid != self.now.info.uuid  # an index filled in place lost its old vectors
            if is_replaced and not isinstance(error, DataError) and self.cluster.exists(self.now.info.name):
                raise
            settings = self.settings.model_copy(update={"rerank": ("none",)})  # it may need vectors
            mode = LexicalRetriever.name
            search = Search(self.cluster, info, mode=mode, settings=settings)
            snapshot = self._make_snapshot(search, self.app_state.embedder, {mode: search}, error.message)
        snapshot.shapes.take_over(self.now.shapes)
        if snapshot.embedder is not self.app_state.embedder:
            self._retired.append((time.monotonic(), self.app_state.embedder))
            self.app_state.embedder = snapshot.embedder
        self.now = snapshot
        LOGGER.info("opened", extra={"facts": {"opened": info.name, "lost": snapshot.lost or None}})

    def _open(self, index: str | IndexInfo, embedder: Embedder) -> IndexSnapshot:
        """Return a new snapshot of an index, with a search for each mode that is possible."""
        hybrid = Search(self.cluster, index, embedder.encoder, settings=self.settings)
        record = hybrid.info.record
        single = [
            name for name in member_names(RETRIEVERS) if not load_member(RETRIEVERS, name).obstacle(record)
        ]
        modes = {HYBRID: hybrid, **{name: hybrid.using(name) for name in single}}
        snapshot = self._make_snapshot(hybrid, embedder, modes)
        return replace(snapshot, contest=contest_of(hybrid, self.settings)) if self.serving.ubi else snapshot

    def _make_snapshot(
        self, search: Search, embedder: Embedder, modes: Mapping[Mode, Search], lost: str = ""
    ) -> IndexSnapshot:
        """Return a snapshot made of opened searches."""
        limit = self.serving.max_query_characters
        shapes = Shapes(self.cluster, search.info, search.context.plain, background=True)
        plain = search.reranked() if search.reranked_by else search  # no re-ranker is part of a body
        rankings = {
            recall: BodyRanking(plain, recall, limit=limit, shapes=shapes) for recall in get_args(RecallMode)
        }
        threads, settings = self.ranking_threads, self.settings
        words = TextAnalysis(threads, search, self.serving.rank_timeout_s)
        return IndexSnapshot(search.info, embedder, modes, rankings, words, threads, settings, lost)


def without_bookkeeping(info: IndexInfo) -> IndexInfo:
    """Return the description of an index without record fields that do not affect ranking."""
    values = info.record.model_dump(exclude=set(BOOKKEEPING))
    return replace(info, aliases={}, mappings={**info.mappings, "_meta": values})


def has_regained_signal(context: SearchContext) -> bool:
    """Return whether a signal that a search leaves out, such as a term table, can be used now."""
    if not (left_out := context.signals.left_out) or context.encoder is None:
        return False
    place = Place(context.cluster, context.info, context.fields, context.encoder)
    obstacles = obstacles_to(place, context.settings.signals)
    return any(not obstacles[name] for name in left_out)
