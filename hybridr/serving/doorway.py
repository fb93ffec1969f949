"""Guards every route of the server: sockets and connections, token, limits of size, clients that left."""

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
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

import h11
from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..cluster.failures import ASKED_BY
from ..errors import SettingsError
from .requests import BAD_REQUEST, CLIENT_GONE, Busy, Refused, error_response
from .search_threads import ARRIVED, CLIENT, client_result
from .settings import ServeSettings
from .telemetry import FACTS, LOGGER, PROBES, Metrics, error_facts

PATHS_WITHOUT_TOKEN = frozenset({"/healthz", "/", "/page/page.js", "/page/page.css"})
"""Paths that need no token: the health check, and the page, which holds no data."""
OTHER = "other"  # one label for all unknown paths, whose number is unlimited
LARGE_BYTES = 64 * 1024  # a larger body is counted, and waits for its turn
LARGE_AT_ONCE = 1
READ_AT_ONCE, READING_S = 2, 1.0
PAUSE_S = 0.5  # pause after a refused large body, so that refusals alone cannot keep the server busy
MAX_BRACKETS = 100_000  # Python takes a second to read a million lists
HEADER_BYTES = 32 * 1024
MAX_UNREAD_BYTES, UNREAD_S = 64 * 2**20, 60.0  # bytes of unread answers of all clients; longest time of each
CLOSE = {"Connection": "close"}
TOKEN_HEADER = b"x-hybridr-token"
SINGLE_HEADERS = (b"authorization", b"content-type", b"content-encoding", b"host", TOKEN_HEADER)
"""Headers that may occur once: of repeated ones some programs read the first, others the last."""
TOO_MANY = 429
MAX_HANDSHAKES = 100


class Doorway:
    """The outermost ASGI layer of the app, which refuses a request before its body is read."""

    def __init__(
        self, app: ASGIApp, settings: ServeSettings, metrics: Metrics, routes: Collection[str]
    ) -> None:
        self.app = app
        self.metrics = metrics
        self.routes = routes
        self.settings = settings
        self.bytes_held = 0  # bytes of large bodies
        self.large_body_turns = asyncio.Semaphore(LARGE_AT_ONCE)
        self.readers = asyncio.Semaphore(READ_AT_ONCE)
        token = settings.token.get_secret_value() if settings.token else None
        self.expected = token.encode() if token else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or refuse one request, count and log it; pass lifespan events on."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        scope[ARRIVED] = time.perf_counter()
        if self._is_proxied(without_slashes := scope["path"].rstrip("/")):
            scope["path"] = without_slashes
        exchange = Exchange(send)
        ASKED_BY.set(opaque_id(scope))  # for this request only: each has its own context
        authorization = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
        host, _ = scope.get("client") or ("unknown", 0)
        CLIENT.set(f"{host} {authorization}")  # clients behind one proxy differ in their authorization
        try:
            await self._admit(scope, receive, exchange)
        finally:
            path = scope["path"]  # or the pattern of its route: index names do not belong in metrics
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
        """Check a request and pass it on to the application; answer refusals and failures."""
        try:
            self._check(scope)
            await self._forward(scope, receive, exchange)
        except Refused as error:
            if exchange.received > LARGE_BYTES:
                await asyncio.sleep(PAUSE_S)
            answer = error_response(error.status_code, error.detail, error.hint, headers=error.headers)
            await answer(scope, receive, exchange.send)
        except Exception as error:
            scope.setdefault(FACTS, {}).update(error_facts(error))
            if not exchange.begun:
                answer = error_response(500, "the server failed", "the server's log names the error")
                await answer(scope, receive, exchange.send)

    def _check(self, scope: Scope) -> None:
        """Raise Refused for what the headers alone forbid: size, host, token, ambiguous lengths."""
        headers = dict(scope["headers"])
        names = [name for name, _ in scope["headers"]]
        if repeated := next((name for name in SINGLE_HEADERS if names.count(name) > 1), None):
            raise Refused(
                400, f"the request has several headers {repeated.decode()}", "send one", headers=CLOSE
            )
        if b"transfer-encoding" in headers and b"content-length" in headers:
            raise Refused(400, "the request has two lengths", "send one of them", headers=CLOSE)
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES:
            raise Refused(431, f"the headers are larger than {HEADER_BYTES} bytes", headers=CLOSE)
        check_host(headers.get(b"host", b"").decode("latin-1"), self.settings)
        if self.expected and scope["path"] not in PATHS_WITHOUT_TOKEN:
            check_token(headers, self.expected, proxied=self._is_proxied(scope["path"]))
        content_length = headers.get(b"content-length", b"")
        if content_length.isdigit():
            self._check_size(int(content_length))

    def _is_proxied(self, path: str) -> bool:
        """Return whether a path may be that of a search for the proxy."""
        return self.settings.proxy is not None and path.endswith(("/_search", "/_msearch"))

    def _check_size(self, size: int) -> None:
        """Raise Refused for a body beyond the limit."""
        if size > (limit := self.settings.max_body_bytes):
            raise Refused(413, f"the body is larger than {limit} bytes", "send less in one request")

    async def _forward(self, scope: Scope, receive: Receive, exchange: Exchange) -> None:
        """Read a body to its end and pass it to the app; large bodies one at a time, in order of arrival.
        Raises Refused.
        """
        body = bytearray()
        try:
            await self._read(body, receive)
            replay = receive_body_first(bytes(body), receive)
            if len(body) <= LARGE_BYTES:
                return await self.app(scope, replay, exchange.send)
            if body.count(b"[") + body.count(b"{") > MAX_BRACKETS:
                raise Refused(
                    413, f"the body has more than {MAX_BRACKETS} brackets", "send less in one request"
                )
            turn = asyncio.ensure_future(self.large_body_turns.acquire())
            try:
                await client_result(Request(scope, receive), turn)
                await self.app(scope, replay, exchange.send)
                if exchange.status >= BAD_REQUEST:
                    await asyncio.sleep(PAUSE_S)
            finally:
                if turn.done() and not turn.cancelled():  # also if this was cancelled as the turn came
                    self.large_body_turns.release()
        finally:
            self.bytes_held -= len(body) if len(body) > LARGE_BYTES else 0
            exchange.received = len(body)
            body.clear()  # the traceback of an error would keep the bytes alive

    async def _read(self, body: bytearray, receive: Receive) -> None:
        """Read a body into `body`; beyond LARGE_BYTES only in its turn, which ends after READING_S.

        A connection that waits is not read from, so nothing more arrives. Raises Refused.
        """
        turn_until = None
        try:
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(CLIENT_GONE, "the client went away")
                body += message.get("body", b"")
                self._hold(len(body), len(message.get("body", b"")))
                if not message.get("more_body", False):
                    return
                if turn_until is None and len(body) > LARGE_BYTES:
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
        if size > LARGE_BYTES:
            self.bytes_held += added if size - added > LARGE_BYTES else size
        self._check_size(size)
        if size > LARGE_BYTES and self.bytes_held > self.settings.max_bytes_in_work:
            raise Busy("the server holds as many bytes of large requests as it can", TOO_MANY)


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
        raise Refused(401, "hybridr's token is missing or wrong", "send X-Hybridr-Token: TOKEN")
    raise Refused(
        401,
        "the bearer token is missing or wrong",
        "send Authorization: Bearer TOKEN",
        headers={"WWW-Authenticate": "Bearer"},
    )


def receive_body_first(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that first gives a body already read, then the connection's messages."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        """Return the messages that were read already, then new ones."""
        return messages.pop() if messages else await receive()

    return replay


def check_host(host: str, settings: ServeSettings) -> None:
    """Raise Refused for a host name that is not the server's own: a web page could use one to send requests
    through a browser.

    Such a name has a dot; addresses and names without a dot are accepted. With a token any name is accepted,
    because a page does not know the token. `hosts` in the settings allow only these names and local ones.
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
        raise Refused(421, "the server is not called by this name", "add the name to [serve] hosts")


@lru_cache(128)  # each request has a host, most of them the same one
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

    Beyond `MAX_HANDSHAKES` of these, each new one closes the oldest. So clients that never finish neither
    use up file descriptors nor keep others out.
    """

    def __init__(self, family: int, kind: int, protocol: int, descriptor: int) -> None:
        super().__init__(family, kind, protocol, descriptor)
        self.handshakes: OrderedDict[int, socket.socket] = OrderedDict()

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and close the oldest unfinished one if there are too many."""
        connection, address = super().accept()
        self.handshakes.pop(connection.fileno(), None)  # a closed connection may have had the same descriptor
        self.handshakes[connection.fileno()] = connection
        while len(self.handshakes) > MAX_HANDSHAKES:
            with suppress(OSError):  # it was closed meanwhile
                self.handshakes.popitem(last=False)[1].shutdown(socket.SHUT_RDWR)
        return connection, address


def listen(host: str, port: int) -> BoundListener:
    """Return a socket bound to a port; 0 takes a free one. Raises SettingsError if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        server_socket = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(
            f"port {port} of {host} cannot be used: {error.strerror}",
            hint="choose another with --port; 0 takes a free one",
        ) from None
    # Without the protocol's number asyncio leaves TCP_NODELAY off, and every answer takes 40 ms more.
    return BoundListener(server_socket.family, server_socket.type, socket.IPPROTO_TCP, server_socket.detach())


class TimedProtocol(H11Protocol):
    """HTTP/1.1 on one connection, with time limits.

    The connection is closed if its client takes too long to send or to read, or a new one needs its place.
    """

    settings = ServeSettings()
    listener: BoundListener | None = None
    deadline: asyncio.TimerHandle | None = None
    unread: asyncio.TimerHandle | None = None

    @classmethod
    def with_limits(cls, settings: ServeSettings, listener: BoundListener) -> type[TimedProtocol]:
        """Return the protocol class for a listener's connections with the limits of these settings."""
        return type(cls.__name__, (cls,), {"settings": settings, "listener": listener})

    @property
    def waits_for_client(self) -> bool:
        """Return whether the server waits for the client to send."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection; beyond the limit, the connection that has waited longest is closed."""
        super().connection_made(transport)
        if self.listener is not None:
            self.listener.handshakes.pop(transport.get_extra_info("socket").fileno(), None)
        self.began = self.loop.time()
        self._watch()
        if len(self.connections) > self.settings.max_connections:
            waiting = [
                connection
                for connection in self.connections
                if isinstance(connection, TimedProtocol) and connection.waits_for_client
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
        """Continue with the next request, part of which may have arrived."""
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        """Start the timer for reading; if the unread answers of all clients exceed the limit, close the
        connections that have waited longest.
        """
        super().pause_writing()
        self.unread = self.loop.call_later(UNREAD_S, self.transport.abort)
        slow = [
            connection
            for connection in self.connections
            if isinstance(connection, TimedProtocol) and connection.unread
        ]
        size = 0
        for protocol in sorted(slow, key=lambda connection: connection.unread.when(), reverse=True):  # type: ignore[union-attr]
            size += protocol.transport.get_write_buffer_size()
            if size > MAX_UNREAD_BYTES:
                protocol.transport.abort()

    def resume_writing(self) -> None:
        """Stop the timer for reading."""
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None

    def _watch(self) -> None:
        """Start the deadline if the connection waits for a client, else cancel it."""
        if self.waits_for_client and self.deadline is None:
            self.deadline = self.loop.call_later(self.settings.read_timeout_s, self.transport.close)
        elif not self.waits_for_client and self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


@dataclass
class Exchange:
    """Status of the answer to one request, whether it has begun, and the size of the request's body."""

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
