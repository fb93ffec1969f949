"""What is asked again at once when a host fails, on another host, and in whose name anything is asked."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import TypeVar

from ..errors import ClusterError, Unreachable

ASKED_BY: ContextVar[str | None] = ContextVar("asked_by", default=None)
"""What a client of the server calls its request: goes on to the cluster as its `X-Opaque-Id`."""
NOBODY = "hybridr"
LATE = "late"
READS = {"_search", "_msearch", "_mget", "_count", "_mtermvectors", "_termvectors", "_field_caps", "_analyze"}
GATEWAY = {502, 504}
T = TypeVar("T")


def is_read(method: str, path: str) -> bool:
    """Tell whether a request changes nothing, however often it is carried out."""
    return method in ("GET", "HEAD") or path.partition("?")[0].rpartition("/")[2] in READS


def once_more(ask: Callable[[], T]) -> T:
    """Ask, and where a host failed at once, another time: the client turns to another host if it has one.

    Who did not answer in time is not asked again: the time that somebody waits is up.
    """
    try:
        return ask()
    except ClusterError as failure:
        if failure.kind == LATE or not (isinstance(failure, Unreachable) or failure.status in GATEWAY):
            raise
    return ask()
