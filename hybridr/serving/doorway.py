"""Guards every route of the server: sockets and connections, token, limits of size, and clients that left."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import h11
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..cluster.failures import ASKED_BY
from ..errors import SettingsError
from .requests import BAD_REQUEST, GONE, Busy, Refused, error_answer
from .search_threads import ARRIVED, CLIENT, unless_gone
from .settings import ServeSettings
from .telemetry import FACTS, LOGGER, PROBES, Metrics, described

OPEN = frozenset({"/healthz", "/", "/page/page.js", "/page/page.css"})
"""Paths without a token: the health check, and the page, which holds no data."""
OTHER = "other"  # one label for all unknown paths: they are the client's to choose
LARGE = 64 * 1024  # bytes of a body that is counted and waits for its turn
LARGE_AT_ONCE = 1
READ_AT_ONCE, READING_S = 2, 1.0
REST_S = 0.5  # after a large body that was refused: who sends nothing else has the server busy with refusing
MOST_BRACKETS = 100_000  # Python takes a second to read a million lists
HEADER_BYTES = 32 * 1024
MOST_UNREAD, UNREAD_S = 64 * 2**20, 60.0  # bytes of answers that nobody reads, and how long they are kept
CLOSE = {"Connection": "close"}
TOKEN_HEADER = b"x-hybridr-token"
ONCE = (b"authorization", b"content-type", b"content-encoding", b"host", TOKEN_HEADER)
"""Headers of which one reader takes the first, and another the last."""
TOO_MANY = 429
MOST_SHAKING = 100


class Doorway:
    """The outermost ASGI layer of the app, which refuses a body before it is read."""

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, metrics: Metrics, routes: Collection[str]
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.routes = routes
        self.settings = settings
        self.held = 0  # bytes of large bodies
        self.turns, self.readers = asyncio.Semaphore(LARGE_AT_ONCE), asyncio.Semaphore(READ_AT_ONCE)
        token = settings.token.get_secret_value() if settings.token else None
        self.expected = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request; lifespan events pass."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        scope[ARRIVED] = time.perf_counter()
        if self._is_proxied(without_slashes := scope["path"].rstrip("/")):
            scope["path"] = without_slashes
        exchange = Exchange(send)
        ASKED_BY.set(opaque_id(scope))  # of this request alone: each has a context of its own
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        host, _ = scope.get("client") or ("unknown", 0)
        CLIENT.set(f"{host} {authorization}")  # many clients may come by one proxy
        try:
            await self._admit(scope, receive, exchange)
        finally:
            path = scope["path"]  # or the pattern of its route: names of indices are for no metric
            path = path if path in self.routes else getattr(scope.get("route"), "path", OTHER)
            route = path if path in self.routes else OTHER
            self.metrics.requests.labels(route, str(exchange.status)).inc()
            seconds = time.perf_counter() - scope[ARRIVED]
            self.metrics.seconds.labels(route).observe(seconds)
            facts = {"method": scope["method"], "route": route, "status": exchange.status}
            facts |= {"seconds": round(seconds, 6), **scope.get(FACTS, {})}
            level = logging.ERROR if facts["status"] >= 500 else logging.INFO
            level = logging.DEBUG if facts["route"] in PROBES and level == logging.INFO else level
            LOGGER.log(level, "request", extra={"facts": facts})

    async def _admit(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        """Pass a request on to the application, and answer refusals and failures."""
        try:
            self._check(scope)
            await self._enter(scope, receive, exchange)
        except Refused as error:
            if exchange.received > LARGE:
                await asyncio.sleep(REST_S)
            answer = error_answer(error.status_code, error.detail, error.hint, headers=error.headers)
            await answer(scope, receive, exchange.send)
        except Exception as error:
            scope.setdefault(FACTS, {}).update(described(error))
            if not exchange.begun:
                answer = error_answer(500, "the server failed", "the server's log names the error")
                await answer(scope, receive, exchange.send)

    def _check(self, scope: Scope) -> None:
        """Raise Refused for what the headers alone forbid: size, host, token, ambiguous lengths."""
        headers = dict(scope["headers"])
        names = [name for name, _ in scope["headers"]]
        if repeated := next((name for name in ONCE if names.count(name) > 1), None):
            raise Refused(
                400, f"the header {repeated.decode()} is there twice", "send it once", headers=CLOSE
            )
        if b"transfer-encoding" in headers and b"content-length" in headers:
            raise Refused(400, "the request has two lengths", "send one of them", headers=CLOSE)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            raise Refused(431, f"the headers are larger than {HEADER_BYTES} bytes", headers=CLOSE)
        check_host(headers.get(b"host", b"").decode("latin-1"), self.settings)
        if self.expected and scope["path"] not in OPEN:
            check_token(headers, self.expected, proxied=self._is_proxied(scope["path"]))
        announced = headers.get(b"content-length", b"")
        if announced.isdigit():
            self._check_size(int(announced))

    def _is_proxied(self, path: str) -> bool:
        """Return whether a path may be that of a search in the cluster's place."""
        return self.settings.proxy is not None and path.endswith(("/_search", "/_msearch"))

    def _check_size(self, size: int) -> None:
        """Raise Refused for a body beyond the limit."""
        if size > (limit := self.settings.max_body_bytes):
            raise Refused(413, f"the body is larger than {limit} bytes", "send less in one request")

    async def _enter(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        """Read a body to its end and pass it to the app; large bodies a few at a time, in order of
        arrival.
        """
        body = bytearray()
        try:
            await self._read(body, receive)
            whole = replayed(bytes(body), receive)
            if len(body) <= LARGE:
                return await self.app(scope, whole, exchange.send)
            if body.count(b"[") + body.count(b"{") > MOST_BRACKETS:
                raise Refused(
                    413, f"the body has more than {MOST_BRACKETS} brackets", "send less in one request"
                )
            await unless_gone(Request(scope, receive), self.turns.acquire())
            try:
                await self.app(scope, whole, exchange.send)
                if exchange.status >= BAD_REQUEST:
                    await asyncio.sleep(REST_S)
            finally:
                self.turns.release()
        finally:
            self.held -= len(body) if len(body) > LARGE else 0
            exchange.received = len(body)
            body.clear()  # the error that may be under way would keep it

    async def _read(self, body: bytearray, receive: Receive) -> None:
        """Read a body; beyond LARGE bytes only in its turn, which ends for slow senders.

        A connection that waits is not read from, so nothing more arrives. Raises Refused.
        """
        turn_until = None
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(GONE, "the client went away")
                body += message.get("body", b"")
                self._hold(len(body), len(message.get("body", b"")))
                if not message.get("more_body", False):
                    return
                if turn_until is None and len(body) > LARGE:
                    turn_until = await self._reading_turn()
                elif turn_until is not None and turn_until < time.monotonic():
                    self.readers.release()
                    turn_until = float("inf")
        finally:
            if turn_until not in (None, float("inf")):
                self.readers.release()

    async def _reading_turn(self) -> float:
        """Wait until a large body may be read; return when its turn ends. Raises Busy."""
        try:
            await asyncio.wait_for(self.readers.acquire(), self.settings.read_timeout_s / 2)
        except asyncio.TimeoutError:
            raise Busy("the server reads as many large requests as it can") from None
        return time.monotonic() + READING_S

    def _hold(self, size: int, added: int) -> None:
        """Count received bytes of a body that now has `size` bytes. Raises Refused beyond the limits."""
        if size > LARGE:
            self.held += added if size - added > LARGE else size
        self._check_size(size)
        if size > LARGE and self.held > self.settings.max_bytes_in_work:
            raise Busy("the server has as much to read as it takes at once", TOO_MANY)


def check_token(headers: Mapping[bytes, bytes], expected: bytes, *, proxied: bool) -> None:
    """Raise Refused without the right token; a proxied request has it in its own header, because
    `Authorization` is for the cluster.
    """
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if proxied:
        scheme, token = b"bearer", headers.get(TOKEN_HEADER, b"")
    if scheme.lower() == b"bearer" and secrets.compare_digest(token.strip(), expected):
        return
    if proxied:
        raise Refused(401, "the token of hybridr is missing or wrong", "send X-Hybridr-Token: TOKEN")
    raise Refused(
        401,
        "the bearer token is missing or wrong",
        "send Authorization: Bearer TOKEN",
        headers={"WWW-Authenticate": "Bearer"},
    )


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that gives a body already read, then the messages of the connection."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        """Return the messages that were read already, then new ones."""
        return messages.pop() if messages else await receive()

    return replay


def check_host(host: str, settings: ServeSettings) -> None:
    """Raise Refused for a host name that is not the server's own, which a web page could use to ask through a
    browser.

    Such a name has a dot; addresses and names without a dot are accepted. With a token any name is accepted,
    because a page does not know the token.
    """
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    name = name.strip("[]").lower().rstrip(".")
    if settings.hosts:
        is_known = name in {own_host.lower() for own_host in settings.hosts} or is_local(name)
    else:
        is_known = bool(
            settings.token is not None or "." not in name or ip_of(name) or name == settings.host.lower()
        )
    if not is_known:
        raise Refused(421, "this is not a name of the server", "[serve] hosts names them")


def ip_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return a host as an IP address; None for a name."""
    with suppress(ValueError):
        return ip_address(host)
    return None


def is_local(host: str) -> bool:
    """Return whether a host name or address means this machine."""
    return host == "localhost" or ((address := ip_of(host)) is not None and address.is_loopback)


class BoundListener(socket.socket):
    """A bound socket that limits the connections that have not finished their TLS handshake.

    Beyond `MOST_SHAKING` of these the oldest is closed for each new one, so that clients that never finish
    neither use up file descriptors nor keep others out.
    """

    def __init__(self, family: int, kind: int, protocol: int, descriptor: int) -> None:
        super().__init__(family, kind, protocol, descriptor)
        self.shaking: OrderedDict[int, socket.socket] = OrderedDict()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and close the oldest unfinished one if there are too many."""
        taken, address = super().accept()
        self.shaking.pop(taken.fileno(), None)  # of one that ended in the middle of it
        self.shaking[taken.fileno()] = taken
        while len(self.shaking) > MOST_SHAKING:
            with suppress(OSError):  # it ended meanwhile
                self.shaking.popitem(last=False)[1].shutdown(socket.SHUT_RDWR)
        return taken, address


def listen(host: str, port: int) -> BoundListener:
    """Return a socket bound to a port; 0 takes a free one. Raises SettingsError if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(
            f"port {port} of {host} cannot be used: {error.strerror}",
            hint="--port takes another, 0 a free one",
        ) from None
    # asyncio sends without delay only where the protocol is named; 40 ms an answer otherwise.
    return BoundListener(bound.family, bound.type, socket.IPPROTO_TCP, bound.detach())


class TimedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, with time limits.

    The connection is closed if its client takes long to send or to read, or if another one needs its place.
    """

    settings = ServeSettings()
    listener: BoundListener | None = None
    deadline: asyncio.TimerHandle | None = None
    unread: asyncio.TimerHandle | None = None

    @classmethod
    def under(cls, settings: ServeSettings, listener: BoundListener) -> type[TimedProtocol]:
        """Return the protocol class for a listener's connections with the limits of these settings."""
        return type(cls.__name__, (cls,), {"settings": settings, "listener": listener})

    @property
    def waits(self) -> bool:
        """Return whether the server waits for the client to send."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; beyond the limit, the connection that has waited longest is closed."""
        super().connection_made(transport)
        if self.listener is not None:
            self.listener.shaking.pop(transport.get_extra_info("socket").fileno(), None)
        self.began = self.loop.time()
        self._watch()
        if len(self.connections) > self.settings.max_connections:
            waiting = [
                connection
                for connection in self.connections
                if isinstance(connection, TimedProtocol) and connection.waits
            ]
            oldest = min(waiting, key=lambda connection: connection.began)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        super().connection_lost(exc)
        for timer in (self.deadline, self.unread):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Process received data; the time limit of a request runs from its first byte."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Go on with the next request, part of which may have arrived."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Wait for the client to read; if unread answers exceed the limit, the connections that waited
        longest are closed.
        """
        super().pause_writing()
        self.unread = self.loop.call_later(UNREAD_S, self.transport.abort)
        late = [
            connection
            for connection in self.connections
            if isinstance(connection, TimedProtocol) and connection.unread
        ]
        held = 0
        for protocol in sorted(late, key=lambda connection: connection.unread.when(), reverse=True):  # type: ignore[union-attr]
            held += protocol.transport.get_write_buffer_size()
            if held > MOST_UNREAD:
                protocol.transport.abort()

    def resume_writing(self) -> None:
        """Stop the timer for reading."""
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None

    def _watch(self) -> None:
        """Start the deadline if the connection waits for a client, else cancel it."""
        if self.waits and self.deadline is None:
            self.deadline = self.loop.call_later(self.settings.read_timeout_s, self.transport.close)
        elif not self.waits and self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


@dataclass
class Exchange:
    """Status and size of one request and its answer."""

    _send: Send
    status: int = 500
    begun: bool = False
    received: int = 0  # bytes of the body

    async def send(self, message: Message) -> None:
        """Pass a message on and remember the status in it."""
        if message["type"] == "http.response.start":
            self.status, self.begun = message["status"], True
        await self._send(message)


def opaque_id(scope: Scope) -> str | None:
    """Return the `X-Opaque-Id` of a request, if it can be passed to the cluster; else None."""
    header = dict(scope["headers"]).get(b"x-opaque-id", b"").decode("latin-1")
    return header if re.fullmatch(r"[\x21-\x7e]{1,200}", header) else None
