"""The tools: what an agent may ask of some indices, and what it is told; nothing is ever written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
from fastapi import FastAPI

from ...errors import HybridrError
from ..openings import Searches
from .documents import describe_fields, require_ids, told_documents
from .wording import WARNED, ToolFailure, ask_inside, bounded, fitting, hit_lines

MOST_K, MOST_OFFSET, MOST_CHARACTERS = 20, 1_000, 8_000
NO_START = 100_000_000
T = TypeVar("T")


class Tools:
    """What agents ask of the indices by these names, each as its app answers `/search`.

    Every answer keeps to the bound of `wording.py`. Each raises ToolFailure, whose hint says what to do next.
    """

    def __init__(self, apps: Mapping[str, FastAPI]) -> None:
        self.apps = apps

    async def search(
        self,
        query: str,
        index: str | None,
        filters: dict[str, Any] | None,
        k: int,
        offset: int,
        at_least: float | None = None,
    ) -> str:
        """Search as `/search` does; one hit more is asked for, which tells whether there are more."""
        require_within("k", k, 1, MOST_K)
        require_within("offset", offset, 0, MOST_OFFSET)
        body = {"query": query, "k": k + 1, "offset": offset} | ({"filter": filters} if filters else {})
        body |= {} if at_least is None else {"at_least": at_least}
        answer = await ask_inside(self.app_of(index), "/search", body)
        return bounded(told_hits(answer, k, offset))

    async def get(self, ids: list[str], index: str | None, start: int, characters: int) -> str:
        """Read documents."""
        require_ids(ids)
        require_within("start", start, 0, NO_START)
        require_within("characters", characters, 1, MOST_CHARACTERS)
        searches = self.searches_of(index)
        work = partial(told_documents, searches.cluster, searches.now.info, ids, start, characters)
        return bounded(await in_thread(work))

    async def fields(self, index: str | None) -> str:
        """Describe the fields."""
        searches = self.searches_of(index)
        return bounded(await in_thread(partial(describe_fields, searches.cluster, searches.now.info)))

    def app_of(self, index: str | None) -> FastAPI:
        """Find an index by its name; None is the first."""
        if index is not None and index not in self.apps:
            raise ToolFailure("there is no such index", hint=f"index is one of {', '.join(self.apps)}")
        return self.apps[index] if index is not None else next(iter(self.apps.values()))

    def searches_of(self, index: str | None) -> Searches:
        """Give what follows an index."""
        searches: Searches = self.app_of(index).state.searches
        return searches

    def follow(self) -> None:
        """Follow the indices, as a server does."""
        for app in self.apps.values():
            app.state.searches.follow()

    def end(self) -> None:
        """End all threads."""
        for app in self.apps.values():
            app.state.searches.end()
            app.state.embedder.close()


def told_hits(answer: Mapping[str, Any], k: int, offset: int) -> str:
    """Write hits for a model, as many as there is room for, and how to go on."""
    hits = answer["hits"][:k]
    if not hits and (nearest := answer.get("nearest")):
        return f"nothing fits; the nearest is\n{WARNED}\n{hit_lines(nearest)}"
    if not hits:
        return "nothing found" + ("" if offset else ": try other words, or fewer filters")
    warned = f"{answer['warning']}\n" if answer.get("warning") else ""
    said, count = fitting(f"{warned}{WARNED}", map(hit_lines, hits))
    left = len(answer["hits"]) - count
    return said + (f"\nat least {left} more: offset={offset + count}" if left else "\nno more hits")


def require_within(name: str, value: int, minimum: int, maximum: int) -> None:
    """Raise ToolFailure for a number out of its range."""
    if not minimum <= value <= maximum:
        raise ToolFailure(f"{name} is {minimum} to {maximum:,}", hint=f"send {name} within that range")


async def in_thread(work: Callable[[], T]) -> T:
    """Work beside the loop. Raises ToolFailure for what the cluster refused."""
    try:
        return await anyio.to_thread.run_sync(work)
    except HybridrError as error:
        raise ToolFailure(error.message, hint=error.hint) from None
