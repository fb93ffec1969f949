"""What is sent again at once when a host fails; in whose name, how long it took, and how it failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

from ..errors import AccessDenied, ClusterError, NotFound, Unreachable
from .failures import is_busy

ASKED_BY: ContextVar[str | None] = ContextVar("asked_by", default=None)
"""What a client of the server calls its request: goes on to the cluster as its `X-Opaque-Id`."""
NOBODY = "hybridr"
LATE = "late"
READS = {"_search", "_msearch", "_mget", "_count", "_mtermvectors", "_termvectors", "_field_caps", "_analyze"}
GATEWAY = {502, 504}
Watch: TypeAlias = Callable[[str, float, str], None]
"""Is told of each request: which API, the seconds until its answer, the kind of its failure, "" of none."""
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


@contextmanager
def sending(path: str, asked_by: str, watch: Watch | None) -> Iterator[None]:
    """Send a request in the block, in somebody's name unless its context has one, and tell `watch` of it."""
    name, started, kind = ASKED_BY.set(ASKED_BY.get() or asked_by), time.perf_counter(), ""
    try:
        yield
    except ClusterError as failure:
        kind = kind_of(failure)
        raise
    finally:
        ASKED_BY.reset(name)
        if watch is not None:
            watch(api_of(path), time.perf_counter() - started, kind)


def api_of(path: str) -> str:
    """Name the API of a path, without any name that others choose: "_search", "_bulk", "index" of none."""
    parts = path.partition("?")[0].split("/")
    return next((part for part in parts if part.startswith("_")), "index" if any(parts) else "root")


def kind_of(failure: ClusterError) -> str:
    """Say in a word how a request failed."""
    if failure.kind == LATE:
        return LATE
    for kind, error in (("denied", AccessDenied), ("missing", NotFound), ("unreachable", Unreachable)):
        if isinstance(failure, error):
            return kind
    return "busy" if is_busy(failure) else "refused"
