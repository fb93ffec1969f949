"""Clients that go away: their work is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request

from .answers import GONE, Refused

T = TypeVar("T")


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Wait for `work`; cancel it and raise Refused when the client leaves before it is done."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(departure(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refused(GONE, "the client went away")
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def departure(request: Request) -> None:
    """Return when the client of a request that was read to its end closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
