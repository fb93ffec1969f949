"""Bodies: how a client's search is read so that others read the same, written anew, or left as it was.

`LookUp` has the cluster read the words of texts, many in one request.
"""

from __future__ import annotations

import asyncio
import json
import math
from functools import partial
from typing import Any

import orjson

from ..errors import HybridrError
from ..search.clauses import NotRanked
from ..search.search import Search
from .requests import LATE, Refused
from .rewriting.rewriting import BodyRanking
from .search_threads import SearchThreads

BUILT_AT_ONCE = 1_000  # characters of a text; longer ones would hold up the event loop for milliseconds


def unranked(raw: bytes, ranking: BodyRanking) -> bytes:
    """Leave a search as its client wrote it, but for the vectors in its answer."""
    try:
        return orjson.dumps(ranking.without_vector(json.loads(raw, **STRICTLY)))
    except (TypeError, ValueError, AttributeError, RecursionError):  # odd bodies go on byte by byte
        return raw


def reason_of(error: Exception) -> NotRanked:
    """Name what kept a search from being ranked by the error that it ended with."""
    if isinstance(error, Refused):
        return NotRanked("late" if error.status_code == LATE else "failed")
    return NotRanked("failed" if isinstance(error, HybridrError) else "unreadable")


def facts_of(reason: NotRanked | None) -> dict[str, Any]:
    """Return what the log says of a search: whether it was ranked, or why not."""
    about = {"about": reason.detail} if reason and reason.detail else {}
    return {"rewritten": reason is None, "reason": reason.reason if reason else None, **about}


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Read an object of JSON. Raises ValueError for one that names a part twice."""
    keys = dict(pairs)
    if len(keys) < len(pairs):
        raise ValueError("an object has two parts of one name")
    return keys


def finite_number(number: str) -> float:
    """Read a number of JSON. Raises ValueError for one too large: it would be written as null."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is no number that can be passed on")
    return value


STRICTLY: dict[str, Any] = {
    "parse_float": finite_number,
    "parse_constant": finite_number,
    "object_pairs_hook": distinct,
}
"""How a body is read that others will read again."""


class LookUp:
    """Has the cluster read texts; those that come meanwhile go together in the next request.

    A request for each would be most of what a busy server does.
    """

    def __init__(self, threads: SearchThreads, search: Search, within_s: float) -> None:
        self.threads, self._search, self._within_s = threads, search, within_s
        self._turn = asyncio.Lock()
        self._texts: list[str] = []
        self._next: asyncio.Future[None] | None = None

    def has(self, text: str) -> bool:
        """Return whether a body for a text is built without a request, and without holding the event loop."""
        return len(text) <= BUILT_AT_ONCE and self._search.at_hand(text)

    async def wait_for(self, text: str) -> None:
        """Wait until a text was read, unless it was before or is long: long ones are read one by one.

        Raises what keeps the cluster from it, for all texts of a request.
        """
        if len(text) > BUILT_AT_ONCE or self._search.at_hand(text):
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
            request = self.threads.run(partial(self._search.analysis.of, texts))
            await asyncio.wait_for(request, self._within_s)  # longer than that nobody waits for it
        finally:
            self._turn.release()
