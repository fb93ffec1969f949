"""The look-up of words: the cluster reads texts, those that come meanwhile in one request."""

from __future__ import annotations

import asyncio
from functools import partial

from ..search.search import Search
from .search_threads import SearchThreads

BUILT_AT_ONCE = 1_000  # characters of a text; longer ones would hold up the event loop for milliseconds


class LookUp:
    """Has the cluster read texts; those that come meanwhile go together in the next request.

    A request for each would be most of what a busy server does.
    """

    def __init__(self, threads: SearchThreads, search: Search, within_s: float) -> None:
        self._threads, self._search, self._within_s = threads, search, within_s
        self._turn = asyncio.Lock()
        self._texts: list[str] = []
        self._next: asyncio.Future[None] | None = None

    async def wait_for(self, text: str) -> None:
        """Wait until a text was read, unless it was before or is long: long ones are read one by one.

        Raises what keeps the cluster from it, for all texts of a request.
        """
        if is_long(text) or self._search.at_hand(text):
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
            request = self._threads.run(partial(self._search.analysis.of, texts))
            await asyncio.wait_for(request, self._within_s)  # longer than that nobody waits for it
        finally:
            self._turn.release()


def is_long(text: str) -> bool:
    """Tell whether reading a text would hold up the event loop."""
    return len(text) > BUILT_AT_ONCE
