"""The proxy with shadow ranking: clients get the cluster's own answers, and hybridr's ranking is computed
behind them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from queue import Empty, Full, Queue
from threading import Thread
from typing import Any, TypeAlias

import orjson
from fastapi import Request, Response

from ..cluster.record import WHOLE, IndexInfo, scope_of
from ..cluster.relay import ClientRequest, ClusterAnswer, Relay
from ..errors import ClusterError
from ..relevance.shadows import MAX_KEPT, ShadowedRequest, ShadowFile
from .proxy import (
    MAX_NAMES,
    NAMES_KEPT_S,
    PLAIN_NAME,
    ClientSearch,
    Proxy,
    SearchAddress,
    json_search,
    request_to_relay,
    response_of,
    search_at,
    searches_in,
    unzipped,
)
from .requests import BAD_REQUEST
from .rewriting.explaining import Send, compared_request, first_ids, milliseconds_since
from .rewriting.rewriting import MOVED_PARAMETERS, reason_of_path
from .snapshots import Searches
from .telemetry import LOGGER

MAX_WAITING = 16  # requests; further ones are not compared
FAILURES = 10  # in a row that stop the comparison
PAUSE_FACTOR = 3  # pause / work of the thread, which takes a quarter of a core at most
SLOW_S = 2.0  # a slower answer of the other ranking is a failure


ClientExchange: TypeAlias = tuple[SearchAddress, ClientRequest, ClusterAnswer, float]
"""A client's request, the cluster's answer, and its milliseconds."""


class ShadowingProxy(Proxy):
    """Passes searches on unchanged, and ranks a share of them by hybridr too, to be compared.

    The cost is bounded: one thread works, and rests three times as long as it worked; while MAX_WAITING
    requests wait, others are skipped. It stops after FAILURES in a row or MAX_KEPT requests.
    """

    def __init__(self, searches: Searches, relay: Relay, share: float) -> None:
        super().__init__(searches, relay)
        info = searches.now.info
        self.share, self.stopped, self.file = share, "", ShadowFile(info)
        self._waiting: Queue[ClientExchange] = Queue(MAX_WAITING)
        self._known: dict[str, tuple[float, bool]] = {}
        self._skipped = self._compared = self._failures = 0
        self._loop = asyncio.new_event_loop()  # of the thread, which has connections of its own
        self._relay = Relay(relay.settings, relay.watch)
        Thread(target=self._work, name="hybridr-shadow", daemon=True).start()

    async def search(self, request: Request) -> Response:
        """Answer `_search` as the cluster does."""
        address, upstream = await request_to_relay(request)
        began = time.perf_counter()
        answer = await self.send(request, upstream)
        if not self.stopped and answer.status < BAD_REQUEST and random.random() < self.share:  # noqa: S311
            try:
                self._waiting.put_nowait((address, upstream, answer, milliseconds_since(began)))
            except Full:
                self._skipped += 1
        return response_of(answer)

    msearch = search

    def _work(self) -> None:
        """Repeat the waiting requests with the other ranking and keep the answers (background thread)."""
        while not self.stopped:
            exchange = self._waiting.get()
            began = time.perf_counter()
            try:
                for entry in self.entries(exchange):
                    self.keep(entry)
            except OSError as error:
                self.stop(f"{self.file.path} cannot be written: {error.strerror}")
            except Exception as error:  # clients may send anything; they have their answers already
                self.count_result(type(error).__name__)
                LOGGER.warning("no shadow", extra={"facts": {"error": type(error).__name__}})
            time.sleep(PAUSE_FACTOR * (time.perf_counter() - began))

    def entries(self, exchange: ClientExchange) -> Iterator[ShadowedRequest]:
        """Yield an entry for each search of a client that asks the index or its source: the client's hits
        compared with those of hybridr's ranking, or the reason why the search is not ranked.

        The ranked search has the client's rights and parameters, and goes to the index with vectors.
        """
        address, upstream, answer, took_ms = exchange
        limit, snapshot = self.settings.max_body_bytes, self.searches.now
        ranking = snapshot.rankings[self.settings.proxy or "lexical"]
        answers = orjson.loads(unzipped(answer, limit))
        if address.api == "_msearch":
            searches = [search for _, search in searches_in(unzipped(upstream, limit), address.index)]
            pairs = list(zip(searches, answers["responses"], strict=True))
        else:
            pairs = [(search_at(address, upstream, limit)[1], answers)]
        for search, client_answer in pairs:
            if not self.is_followed_name(search.name, snapshot.info):
                continue
            entry = ShadowedRequest(snapshot.info.uuid)
            reason = self.reason_to_pass_on(upstream, search) or reason_of_path("_search", search.params)
            if reason:
                yield replace(entry, reason=reason.reason)
                continue
            target = (
                SearchAddress(snapshot.info.name, "_search", search.params).without(MOVED_PARAMETERS).target
            )
            send = self.search_function(upstream, search, target)
            yield compared_request(entry, search.body(), first_ids(client_answer), took_ms, ranking, send)

    def search_function(self, upstream: ClientRequest, search: ClientSearch, target: str) -> Send:
        """Return a function that searches the index with vectors with the rights of a client."""

        def send(body: Mapping[str, Any]) -> dict[str, Any]:
            """Search the index with vectors and return the answer. Raises ClusterError."""
            request = json_search(upstream, target, self.translated(search, body))
            answer = self._loop.run_until_complete(self._relay.send(request))
            if answer.status >= BAD_REQUEST:
                raise ClusterError("the index with vectors refused a search", status=answer.status)
            parsed: dict[str, Any] = orjson.loads(answer.body)
            return parsed

        return send

    def is_followed_name(self, name: str, info: IndexInfo) -> bool:
        """Return whether a name is the index that the server follows, its source, or an alias that shows all
        of one of them. The answer is cached for some seconds.
        """
        until, is_followed = self._known.get(name, (0.0, False))
        if time.monotonic() < until:
            return is_followed
        is_followed = False
        if PLAIN_NAME.fullmatch(name):
            infos = self.searches.cluster.indices(name)
            is_followed = [each.name for each in infos] in ([info.name], [info.record.source])
            is_followed = is_followed and scope_of(name, infos[0]) == WHOLE
        if len(self._known) > MAX_NAMES:
            self._known.clear()
        self._known[name] = time.monotonic() + NAMES_KEPT_S, is_followed
        return is_followed

    def keep(self, entry: ShadowedRequest) -> None:
        """Write a compared request to the file, and stop if there are enough. Raises OSError."""
        self._compared += 1
        self.file.add(replace(entry, skipped=self._skipped))
        self._skipped = 0
        if not entry.reason:  # an unranked search says nothing about the other ranking
            slow = f"slower than {SLOW_S:g} s" if entry.new_ms > SLOW_S * 1000 else ""
            self.count_result(entry.error or slow)
        if self._compared >= MAX_KEPT:
            self.stop(f"{MAX_KEPT:,} requests are enough")

    def count_result(self, problem: str) -> None:
        """Count a failure, or reset the count if `problem` is empty; stop after FAILURES in a row."""
        self._failures = self._failures + 1 if problem else 0
        if self._failures >= FAILURES:
            self.stop(f"{FAILURES} requests in a row failed, the last one: {problem}")

    def stop(self, reason: str) -> None:
        """Send no more requests to hybridr's ranking; clients do not notice."""
        self.stopped = reason
        LOGGER.warning("shadow stopped", extra={"facts": {"why": reason}})
        try:
            self.file.add(reason)
            while True:
                self._waiting.get_nowait()
        except (OSError, Empty):
            return
