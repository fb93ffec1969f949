"""What stands before every route: token, limits, and who is still there."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection, Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .requests import GONE, LATE, Refused, error_answer
from .settings import ServeSettings
from .telemetry import FACTS, Metrics, described, log_request

OPEN = frozenset({"/healthz", "/", "/page/page.js", "/page/page.css"})
"""What asks for no token: whether the server lives, and the page, which holds no data."""
OTHER = "other"  # one label for all unknown paths: they are the client's to choose
T = TypeVar("T")


class Doorway:
    """The outermost layer of the app; plain ASGI, so that a body is refused before it is read."""

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, metrics: Metrics, routes: Collection[str]
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.routes = routes
        self.max_body = settings.max_body_bytes
        token = settings.token.get_secret_value() if settings.token else None
        self.expected = f"Bearer {token}".encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it; lifespan events pass."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        exchange = Exchange(scope, send)
        try:
            await self._admit(scope, receive, exchange)
        finally:
            route = scope["path"] if scope["path"] in self.routes else OTHER
            self.metrics.count_request(route, exchange.status, exchange.seconds)
            log_request({"method": scope["method"], "route": route, **exchange.facts})

    async def _admit(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        try:
            self._check(scope)
            await self.app(scope, self._limited(receive), exchange.send)
        except Refused as error:
            answer = error_answer(error.status_code, error.detail, error.hint, "invalid_request_error")
            await answer(scope, receive, exchange.send)
        except Exception as error:
            scope.setdefault(FACTS, {}).update(described(error))
            if not exchange.begun:
                answer = error_answer(
                    500, "the server failed", "the server's log names the error", "server_error"
                )
                await answer(scope, receive, exchange.send)

    def _check(self, scope: Scope) -> None:
        """Raise Refused for a wrong token or a body whose announced size is over the limit."""
        headers = dict(scope["headers"])
        if self.expected and scope["path"] not in OPEN:
            if not secrets.compare_digest(headers.get(b"authorization", b""), self.expected):
                raise Refused(401, "the bearer token is missing or wrong", "send Authorization: Bearer TOKEN")
        announced = headers.get(b"content-length", b"")
        if announced.isdigit():
            self._check_size(int(announced))

    def _check_size(self, size: int) -> None:
        if size > self.max_body:
            raise Refused(413, f"the body is larger than {self.max_body} bytes", "send less in one request")

    def _limited(self, receive: Receive) -> Receive:
        """Count the bytes that come, announced or not."""
        size = 0

        async def counted() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            self._check_size(size)
            return message

        return counted


class Exchange:
    """One request and what was answered."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self._started = time.perf_counter()
        self.status = 500
        self.begun = False

    @property
    def seconds(self) -> float:
        """Measure the time since the request came."""
        return time.perf_counter() - self._started

    @property
    def facts(self) -> dict[str, object]:
        """Give what the log says of it."""
        return {"status": self.status, "seconds": round(self.seconds, 6), **self._scope.get(FACTS, {})}

    async def send(self, message: Message) -> None:
        """Pass a message on and remember the status in it."""
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], True
        await self._send(message)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Wait for `work`; cancel it and raise Refused when the client leaves, or time is up, before it is done.

    A thread that works goes on; nobody waits for it.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(departure(request))
    try:
        await asyncio.wait((task, gone), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and not gone.done():
            raise Refused(LATE, f"this took longer than {timeout_s} s")
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
