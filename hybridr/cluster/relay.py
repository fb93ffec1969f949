"""The relay: forwards clients' requests to the cluster with their headers, and returns answers unchanged.

It works in the event loop, without threads. A connection has one request at a time. Whatever arrives after
its answer closes it, so no client can get the answer to another one's request.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

from urllib3.util import create_urllib3_context
from urllib3.util.wait import wait_for_read

from ..errors import ClusterError, Unreachable, extra
from .client import AT_ONCE, Bounds, BoundsExceeded, answer_bounds
from .failures import LATE, NOBODY, TOO_LARGE, Watch, shortened, watched_request
from .settings import ClusterSettings

with extra("serve", "hybridr serve --proxy"):
    import httptools

HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade expect host content-length".split()
)
"""Headers that apply to a single connection."""
PROXY_HEADERS = re.compile(
    r"forwarded|x-forwarded-.*|x-real-ip|x-proxy-.*|_(opendistro|opensearch)_security.*"
)
"""Headers in which a trusted proxy names the user to the cluster. The relay removes them."""
TARGET = re.compile(r"/(?!/)[A-Za-z0-9._~!$&'()*+,;=:@/%-]*(\?[A-Za-z0-9._~!$&'()*+,;=:@/?%-]*)?")
"""Path and parameters as no program changes them."""
BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
HEAD = re.compile(
    rb"[A-Z]+ [!-~]+ HTTP/1\.1\r\n([!#$%&'*+.^_`|~0-9A-Za-z-]+: [^\x00-\x08\x0a-\x1f\x7f]*\r\n)+\r\n"
)
"""The head of a request."""
MAX_HEAD_BYTES, MAX_HEADERS = 2**16, 100  # of an answer, with its trailers
INTERIM = (100, 102, 103)
"""Statuses before the answer itself. 101 is none: nobody asked for another protocol."""
WITHOUT_BODY = ("GET", "HEAD", "OPTIONS", "DELETE")
"""Methods whose requests need no `Content-Length: 0`."""
KEPT_OPEN = 64  # idle connections per host
MAX_CONNECT_S = 10.0
UNREADABLE = "the cluster's answer has headers that cannot be read"
"""Message for an answer whose headers, and so whose end, cannot be read."""
Headers = tuple[tuple[str, str], ...]


class ClientRequest(NamedTuple):
    """A client's HTTP request to forward; `target` is path and parameters, percent-encoded."""

    method: str
    target: str
    headers: Headers
    body: bytes

    def header(self, name: str) -> str:
        """Return the value of a header by its lower-case name; "" if there is none."""
        return header_of(self.headers, name)

    def without(self, *names: str) -> ClientRequest:
        """Return the request without some headers, given by lower-case names."""
        return self._replace(
            headers=tuple(header for header in self.headers if header[0].lower() not in names)
        )


class ClusterAnswer(NamedTuple):
    """The cluster's answer to a forwarded request."""

    status: int
    headers: Headers
    body: bytes

    def header(self, name: str) -> str:
        """Return the value of a header by its lower-case name; "" if there is none."""
        return header_of(self.headers, name)


class AnswerReader:
    """Reads the bytes of one answer; the parser calls the methods `on_...`."""

    def __init__(self, method: str, bounds: Bounds) -> None:
        self.method, self.max_bytes = method, bounds.bytes
        self.parser = httptools.HttpResponseParser(self)
        self.status = self.received = self.head_bytes = 0
        self.headers: list[tuple[str, str]] = []
        self.lines = 0
        self.parts: list[bytes] = []
        self.has_head = self.is_complete = self.stays_open = self.lasts_to_end = False

    def feed(self, data: bytes) -> None:
        """Read a part of the answer. Raises BoundsExceeded, ClusterError for headers that cannot be read, and
        ConnectionError for what is no HTTP.
        """
        self.received += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.stays_open = False
        except httptools.HttpParserError as error:
            self.stays_open = False  # there are bytes after the answer, if this is not its own fault
            if not self.is_complete:
                if isinstance(cause := error.__context__, (ClusterError, ConnectionError)):
                    raise cause from None
                if self.parser.get_status_code() and not self.has_head:
                    raise ClusterError(UNREADABLE) from None
                raise ConnectionError(f"its answer is no HTTP ({error})") from None
        if self.received > self.max_bytes:
            raise BoundsExceeded("bytes")
        if not self.has_head and self.received > MAX_HEAD_BYTES:
            raise ConnectionError("its answer has too many headers")

    def end(self) -> None:
        """Note that the connection has ended. Raises ConnectionError if the answer has not."""
        if self.lasts_to_end:
            self.is_complete = True
        if not self.is_complete:
            raise ConnectionError("it closed the connection before its answer was complete")

    def on_message_begin(self) -> None:
        """Begin an answer, maybe after an interim one. Raises ConnectionError after the answer itself."""
        if self.is_complete:
            raise ConnectionError("it sent a second answer")
        self.headers.clear()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; trailers are only counted. Raises ConnectionError for too many."""
        self.lines, self.head_bytes = self.lines + 1, self.head_bytes + len(name) + len(value)
        if self.lines > MAX_HEADERS or self.head_bytes > MAX_HEAD_BYTES:
            raise ConnectionError("its answer has too many headers")
        if not self.has_head:
            self.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        """Note how the answer ends. Raises ClusterError for an end that programs read in different ways."""
        status, version = self.parser.get_status_code(), self.parser.get_http_version()
        if status in INTERIM:
            return
        if version not in ("1.0", "1.1"):
            raise ConnectionError(f"its answer is HTTP {version}")
        codings = [value.lower() for name, value in self.headers if name.lower() == "transfer-encoding"]
        if codings not in ([], ["chunked"]) or (codings and version == "1.0"):
            raise ClusterError(UNREADABLE)
        self.status, self.has_head = status, True
        self.stays_open = self.parser.should_keep_alive() and status >= 200 and self.method != "HEAD"
        self.lasts_to_end = not (codings or header_of(self.headers, "content-length"))
        self.is_complete = self.method == "HEAD"

    def on_body(self, part: bytes) -> None:
        """Keep a part of the body."""
        if not self.is_complete:
            self.parts.append(part)

    def on_message_complete(self) -> None:
        """Note that the answer is complete, unless it was an interim one."""
        self.is_complete = self.has_head

    def answer(self) -> ClusterAnswer:
        """Return the complete answer."""
        return ClusterAnswer(self.status, forwarded_headers(self.headers), b"".join(self.parts))


class RelayConnection(asyncio.Protocol):
    """A connection to a host of the cluster, for one request at a time.

    It closes with anything but a complete answer to a completely sent request: `is_open` is False then.
    """

    def __init__(self, bounds: Bounds, wait_s: float) -> None:
        self.bounds, self.wait_s, self.loop = bounds, wait_s, asyncio.get_running_loop()
        self.transport: asyncio.Transport | None = None
        self.reader: AnswerReader | None = None
        self.pending: asyncio.Future[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.is_open = False
        self.deadline = self.moved_at = 0.0
        self.unsent = 0  # bytes of the request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of a connection that is ready."""
        self.transport, self.is_open = cast("asyncio.Transport", transport), True

    def is_usable(self) -> bool:
        """Return whether an idle connection is open in this event loop, and the host has sent nothing."""
        if self.loop is not asyncio.get_running_loop() or not self.is_open or self.transport is None:
            return False
        if wait_for_read(self.transport.get_extra_info("socket"), timeout=0):  # it has ended, or is no HTTP
            self.close()
        return self.is_open

    def close(self) -> None:
        """Close the connection at once."""
        self.is_open = False
        if self.transport is not None:
            self.transport.abort()

    async def ask(self, method: str, head: bytes, body: bytes) -> ClusterAnswer:
        """Send a request and return the answer. Raises OSError, TimeoutError, BoundsExceeded, ClusterError.

        Whatever ends this early, an error or a cancelled task, closes the connection.
        """
        assert self.transport is not None
        self.reader = reader = AnswerReader(method, self.bounds)
        self.pending, self.moved_at = self.loop.create_future(), self.loop.time()
        self.deadline = self.moved_at + self.bounds.seconds
        try:
            if len(body) <= AT_ONCE:
                self.transport.write(head + body)  # at once, so the node wakes up once
            else:
                self.transport.writelines((head, body))
            self.unsent = self.transport.get_write_buffer_size()
            self._watch()
            await self.pending
            return reader.answer()
        except BaseException:
            self.close()
            raise
        finally:
            if self.timer is not None:
                self.timer.cancel()
            self.reader = self.pending = self.timer = None
            del reader.parser  # which refers to the reader

    def data_received(self, data: bytes) -> None:
        """Read a part of the answer."""
        if self.reader is None or self.pending is None or self.pending.done():
            return self.close()  # nobody asked for this
        self.moved_at = self.loop.time()
        try:
            self.reader.feed(data)
        except (OSError, ClusterError, BoundsExceeded) as error:
            return self._fail(error)
        if self.reader.is_complete:
            if not self.reader.stays_open or self.transport.get_write_buffer_size():  # type: ignore[union-attr]
                self.close()
            self.pending.set_result(None)

    def eof_received(self) -> None:
        """Note that the host will send no more; the connection closes."""
        self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the connection has closed."""
        self._end(exc)

    def _end(self, error: Exception | None) -> None:
        self.is_open = False
        if self.reader is None or self.pending is None or self.pending.done():
            return
        try:
            if error is not None:
                raise error
            self.reader.end()
            self.pending.set_result(None)
        except Exception as failure:
            self._fail(failure)

    def _fail(self, error: Exception) -> None:
        if self.pending is not None and not self.pending.done():
            self.pending.set_exception(error)
        self.close()

    def _watch(self) -> None:
        """Fail the request if its time is up; if not, look again when it may be."""
        assert self.transport is not None
        now, unsent = self.loop.time(), self.transport.get_write_buffer_size()
        if unsent < self.unsent:
            self.unsent, self.moved_at = unsent, now
        until = min(self.moved_at + self.wait_s, self.deadline)
        if now < until:
            self.timer = self.loop.call_at(until, self._watch)
        else:
            self._fail(BoundsExceeded("seconds") if now >= self.deadline else asyncio.TimeoutError())


class Host:
    """A host of the cluster, and its idle connections."""

    def __init__(self, url: str, settings: ClusterSettings) -> None:
        parts = urlsplit(url)
        self.url, self.prefix, self.name = url, parts.path.rstrip("/"), parts.hostname or ""
        self.tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            checking = ssl.CERT_REQUIRED if settings.verify_certs else ssl.CERT_NONE
            self.tls = create_urllib3_context(cert_reqs=checking)
            self.tls.check_hostname = settings.verify_certs
            if settings.ca_certs:
                self.tls.load_verify_locations(str(settings.ca_certs))
            else:
                self.tls.load_default_certs()
        usual_port = 443 if self.tls else 80
        self.port = parts.port or usual_port
        name = f"[{self.name}]" if ":" in self.name else self.name
        self.address = name if self.port == usual_port else f"{name}:{self.port}"
        self.idle: list[RelayConnection] = []


class Relay:
    """Forwards clients' requests to the hosts of a cluster, without any of hybridr's own credentials."""

    def __init__(self, settings: ClusterSettings, watch: Watch | None = None) -> None:
        self.settings, self.bounds, self.watch = settings, answer_bounds(settings), watch
        self.hosts = [Host(url, settings) for url in str(settings.url).split(",")]

    async def send(self, request: ClientRequest) -> ClusterAnswer:
        """Send a request to the first host that accepts a connection, and return its answer.

        A cancelled task closes the connection, and the cluster stops the search. Raises Unreachable, and
        ClusterError for an answer that is too large or unreadable, or for a request that cannot be passed on.
        """
        for host in self.hosts:
            try:
                with watched_request(request.target, NOBODY, self.watch), relay_errors(host.url):
                    return await self._send(host, request)
            except Unreachable as failure:
                if host is self.hosts[-1] or failure.kind == LATE:
                    raise
        raise AssertionError

    async def _send(self, host: Host, request: ClientRequest) -> ClusterAnswer:
        """Send a request by the connection that was used last, if one is still open, else by a new one."""
        head, connection = request_head(host, request), None
        while connection is None and host.idle:
            last_used = host.idle.pop()
            connection = last_used if last_used.is_usable() else None
        connection = connection or await self._connect(host)
        answer = await connection.ask(request.method, head, request.body)
        if connection.is_open and len(host.idle) < KEPT_OPEN:
            host.idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connect(self, host: Host) -> RelayConnection:
        """Return a new connection. Raises OSError, also if it takes too long."""
        connection = RelayConnection(self.bounds, self.settings.timeout_s)
        seconds = min(self.settings.timeout_s, MAX_CONNECT_S)
        tls: dict[str, Any] = {"ssl": host.tls, "server_hostname": host.name} if host.tls else {}
        opening = connection.loop.create_task(
            connection.loop.create_connection(lambda: connection, host.name, host.port, **tls)
        )
        try:
            if not (await asyncio.wait({opening}, timeout=seconds))[0]:
                raise ConnectionError(f"no connection in {seconds:g} s")
            opening.result()
        except BaseException:
            opening.cancel()
            connection.close()
            raise
        return connection


def request_head(host: Host, request: ClientRequest) -> bytes:
    """Return the head of a request, without headers in which proxies name users.

    Raises ClusterError for a target or header that could be read in two ways.
    """
    path = request.target.partition("?")[0]
    if (
        not TARGET.fullmatch(request.target)
        or BAD_ESCAPE.search(request.target)
        or not {".", ".."}.isdisjoint(path.split("/"))
    ):
        raise ClusterError(f"'{shortened(request.target)}' is no address that can be passed on")
    lines = [f"{request.method} {host.prefix}{request.target} HTTP/1.1", f"Host: {host.address}"]
    for name, value in forwarded_headers(request.headers):
        if not PROXY_HEADERS.fullmatch(name.lower()):
            lines.append(f"{name}: {value}")
    if request.body or request.method not in WITHOUT_BODY:
        lines.append(f"Content-Length: {len(request.body)}")
    head = "\r\n".join((*lines, "", "")).encode("latin-1")
    if not HEAD.fullmatch(head) or head.count(b"\n") != len(lines) + 1:
        raise ClusterError("the request has headers that cannot be passed on")
    return head


def header_of(headers: Iterable[tuple[str, str]], name: str) -> str:
    """Return the value of a header by its lower-case name; "" if there is none."""
    return next((value for header, value in headers if header.lower() == name), "")


def forwarded_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers to forward: all but hop-by-hop headers and those that `Connection` names."""
    pairs = tuple(headers)
    connection_names = {
        header.strip().lower()
        for name, value in pairs
        if name.lower() == "connection"
        for header in value.split(",")
    }
    excluded = HOP_BY_HOP | connection_names
    return tuple((name, value) for name, value in pairs if name.lower() not in excluded)


@contextmanager
def relay_errors(host: str) -> Iterator[None]:
    """Run the block; turn errors of the connection into Unreachable or ClusterError that names this host."""
    address = urlsplit(host).netloc.rpartition("@")[2]
    try:
        yield
    except BoundsExceeded as cause:
        raise ClusterError(f"the answer of {address} takes too many {cause}", kind=TOO_LARGE) from None
    except asyncio.TimeoutError:
        raise Unreachable(f"{address} did not answer in time", kind=LATE) from None
    except (OSError, UnicodeError) as error:  # UnicodeError: the host's name is none
        raise Unreachable(f"nothing answers at {address}: {shortened(error)}") from None
