"""The relay: what others ask of a cluster goes to it with their own headers, and comes back as it is."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from http.client import HTTPResponse
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import urllib3
from urllib3 import exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import parse_url
from urllib3.util.response import assert_header_parsing

from ..errors import ClusterError, Unreachable
from .client import TooMuch, bounds_of, read_answer
from .failures import LATE, NOBODY, TOO_LARGE, Watch, sending, shortened
from .settings import ClusterSettings

HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade expect host content-length".split()
)
"""Headers of one connection alone."""
OF_PROXIES = re.compile(r"forwarded|x-forwarded-.*|x-real-ip|x-proxy-.*|_(opendistro|opensearch)_security.*")
"""Headers by which a cluster believes a proxy whom it asks for. The relay tells for nobody."""
KEPT_OPEN = 64  # connections to a host that are kept
LONGEST_CONNECT_S = 10.0
Headers = tuple[tuple[str, str], ...]


class Relayed(NamedTuple):
    """A request of somebody else. `target` is its path with its parameters, percent-encoded."""

    method: str
    target: str
    headers: Headers
    body: bytes

    def header(self, name: str) -> str:
        """Return a header by its name in small letters; "" of none."""
        return next((value for header, value in self.headers if header.lower() == name), "")

    def without(self, *names: str) -> Relayed:
        """Leave headers out, by their names in small letters."""
        return self._replace(
            headers=tuple(header for header in self.headers if header[0].lower() not in names)
        )


class Call:
    """A request that is being relayed, which another thread can end by closing its connection."""

    current: ContextVar[Call | None] = ContextVar("call", default=None)
    lock = Lock()

    def __init__(self) -> None:
        self.connection: Any = None
        self.ended = False

    def take(self, connection: Any) -> None:
        """Use a connection, which may have been another call's. Raises CallEnded."""
        with self.lock:
            connection.call, self.connection = self, connection
            if self.ended:
                raise CallEnded

    def end(self) -> None:
        """Close the connection: who reads or writes it fails at once, and the cluster stops the search."""
        with self.lock:
            self.ended = True
            if self.connection is not None and self.connection.call is self and self.connection.sock:
                with suppress(OSError):  # of the plain socket: that of TLS is being read by another thread
                    socket.socket.shutdown(self.connection.sock, socket.SHUT_RDWR)


class CallEnded(Exception):
    """A call was ended before its request was sent."""


class StrictResponse(HTTPResponse):
    """An answer whose headers can be read: beyond one that cannot, nobody knows where the answer ends."""

    def begin(self) -> None:
        """Read status and headers. Raises ClusterError."""
        super().begin()
        try:
            assert_header_parsing(self.msg)
        except exceptions.HeaderParsingError:
            self.close()
            raise ClusterError("the cluster's answer has headers that cannot be read") from None


class EndableConnection:
    """What makes a connection of the package one that a `Call` can end."""

    def connect(self) -> None:
        """Connect for the call of this thread."""
        super().connect()  # type: ignore[misc]
        if call := Call.current.get():
            call.take(self)

    def request(self, *arguments: Any, **options: Any) -> None:
        """Send a request for the call of this thread."""
        if call := Call.current.get():
            call.take(self)
        super().request(*arguments, **options)  # type: ignore[misc]


class PlainConnection(EndableConnection, HTTPConnection):
    """Without TLS."""

    response_class = StrictResponse


class SecureConnection(EndableConnection, HTTPSConnection):
    """With TLS."""

    response_class = StrictResponse


class PlainPool(urllib3.HTTPConnectionPool):
    """Connections without TLS."""

    ConnectionCls = PlainConnection


class SecurePool(urllib3.HTTPSConnectionPool):
    """Connections with TLS."""

    ConnectionCls = SecureConnection


class Relay:
    """Sends requests of others to the hosts of a cluster. None of hybridr's own credentials go with them."""

    def __init__(self, settings: ClusterSettings, watch: Watch | None = None) -> None:
        self.hosts, self.bounds, self.watch = str(settings.url).split(","), bounds_of(settings), watch
        tls: dict[str, Any] = {"cert_reqs": "CERT_REQUIRED" if settings.verify_certs else "CERT_NONE"}
        tls |= {"ca_certs": str(settings.ca_certs)} if settings.ca_certs else {}
        timeout = urllib3.Timeout(min(settings.timeout_s, LONGEST_CONNECT_S), settings.timeout_s)
        self.pool = urllib3.PoolManager(
            len(self.hosts), maxsize=KEPT_OPEN, retries=False, timeout=timeout, **tls
        )
        self.pool.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

    def send(self, request: Relayed, call: Call | None = None) -> Answered:
        """Send a request to the first host that takes a connection. `call` can end it from another thread.

        Raises Unreachable, and ClusterError for an answer beyond the bounds, for one that cannot be read, and
        for a target that would be sent as another one.
        """
        call = call or Call()
        before = Call.current.set(call)
        try:
            for host in self.hosts:
                try:
                    with sending(request.target, NOBODY, self.watch), understood_by(host):
                        return self._send(host.rstrip("/"), request)
                except Unreachable as failure:
                    if host == self.hosts[-1] or failure.kind == LATE:
                        raise
            raise AssertionError
        finally:
            Call.current.reset(before)
            with call.lock:
                call.connection = None

    def _send(self, host: str, request: Relayed) -> Answered:
        unsaid = (name for name in ("user-agent", "accept-encoding") if not request.header(name))
        headers = urllib3.HTTPHeaderDict(dict.fromkeys(unsaid, urllib3.util.SKIP_HEADER))
        for name, value in passed_on(request.headers):
            if not OF_PROXIES.fullmatch(name.lower()):
                headers.add(name, value)
        url = f"{host}{request.target}"
        prefix = parse_url(host).path or ""
        as_read = parse_url(url).request_uri  # it ends at `#`, and `/../` is resolved
        if as_read != f"{prefix}{request.target}" or not re.match("/[^/]", request.target):
            raise ClusterError(f"'{shortened(request.target)}' is no address that can be passed on")
        answer = self.pool.urlopen(
            request.method,
            url,
            body=request.body or None,
            headers=headers,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        read = read_answer(answer, self.bounds)
        return Answered(read.status, passed_on(answer.headers.iteritems()), read.data)


class Answered(NamedTuple):
    """What a cluster said to a request of somebody else."""

    status: int
    headers: Headers
    body: bytes


def passed_on(headers: Iterable[tuple[str, str]]) -> Headers:
    """Return the headers that go on from one connection to the next, less those that `Connection` names."""
    pairs = tuple(headers)
    named = {
        header.strip().lower()
        for name, value in pairs
        if name.lower() == "connection"
        for header in value.split(",")
    }
    left_out = HOP_BY_HOP | named
    return tuple((name, value) for name, value in pairs if name.lower() not in left_out)


@contextmanager
def understood_by(host: str) -> Iterator[None]:
    """Raise Unreachable, or ClusterError, in the place of the package's errors."""
    named = urlsplit(host).netloc
    try:
        yield
    except CallEnded:
        raise Unreachable(f"nobody waits for {named} any more", kind=LATE) from None
    except TooMuch:
        raise ClusterError(f"{named} gives too large an answer", kind=TOO_LARGE) from None
    except exceptions.ConnectTimeoutError as error:
        raise Unreachable(f"nothing answers at {named}: {shortened(error)}") from None
    except exceptions.TimeoutError:
        raise Unreachable(f"{named} did not answer in time", kind=LATE) from None
    except exceptions.HTTPError as error:
        raise Unreachable(f"nothing answers at {named}: {shortened(error)}") from None
