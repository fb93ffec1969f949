"""The relay: forwards clients' requests to the cluster with their headers, and returns answers unchanged."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
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
from .client import BoundsExceeded, JoiningConnection, answer_bounds, read_answer
from .failures import LATE, NOBODY, TOO_LARGE, Watch, shortened, watched_request
from .settings import ClusterSettings

HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade expect host content-length".split()
)
"""Headers that apply to a single connection."""
PROXY_HEADERS = re.compile(
    r"forwarded|x-forwarded-.*|x-real-ip|x-proxy-.*|_(opendistro|opensearch)_security.*"
)
"""Headers in which a trusted proxy names the user to the cluster. The relay removes them."""
KEPT_OPEN = 64  # idle connections per host
MAX_CONNECT_S = 10.0
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


class Call:
    """A request that is being forwarded, which another thread can end by closing its connection."""

    current: ContextVar[Call | None] = ContextVar("call", default=None)
    lock = Lock()

    def __init__(self) -> None:
        self.connection: Any = None
        self.ended = False

    def take(self, connection: Any) -> None:
        """Use this connection for the call. Raises CallEnded if the call was ended already."""
        with self.lock:
            connection.call, self.connection = self, connection
            if self.ended:
                raise CallEnded

    def end(self) -> None:
        """Close the call's connection: reading and writing fail at once, and the cluster stops the search."""
        with self.lock:
            self.ended = True
            if self.connection is not None and self.connection.call is self and self.connection.sock:
                with suppress(OSError):  # the plain socket, since another thread reads the TLS socket
                    socket.socket.shutdown(self.connection.sock, socket.SHUT_RDWR)


class CallEnded(Exception):
    """Raised when a call was ended before its request was sent."""


class StrictResponse(HTTPResponse):
    """An HTTP response that fails if its headers cannot be parsed, since its end is then unknown."""

    def begin(self) -> None:
        """Read status and headers. Raises ClusterError for headers that cannot be parsed."""
        super().begin()
        try:
            assert_header_parsing(self.msg)
        except exceptions.HeaderParsingError:
            self.close()
            raise ClusterError("the cluster's answer has headers that cannot be read") from None


class EndableConnection(JoiningConnection):
    """Mixin for the package's HTTP connections that lets a `Call` close them."""

    def connect(self) -> None:
        """Connect, and register the connection with the call of this thread."""
        super().connect()  # type: ignore[misc]
        if call := Call.current.get():
            call.take(self)

    def request(self, *arguments: Any, **options: Any) -> None:
        """Register the connection with the call of this thread, and send a request."""
        if call := Call.current.get():
            call.take(self)
        super().request(*arguments, **options)


class PlainConnection(EndableConnection, HTTPConnection):
    """An endable connection without TLS."""

    response_class = StrictResponse


class SecureConnection(EndableConnection, HTTPSConnection):
    """An endable connection with TLS."""

    response_class = StrictResponse


class PlainPool(urllib3.HTTPConnectionPool):
    """A pool of endable connections without TLS."""

    ConnectionCls = PlainConnection


class SecurePool(urllib3.HTTPSConnectionPool):
    """A pool of endable connections with TLS."""

    ConnectionCls = SecureConnection


class Relay:
    """Forwards clients' requests to the hosts of a cluster, without any of hybridr's own credentials."""

    def __init__(self, settings: ClusterSettings, watch: Watch | None = None) -> None:
        self.hosts, self.bounds, self.watch = str(settings.url).split(","), answer_bounds(settings), watch
        tls: dict[str, Any] = {"cert_reqs": "CERT_REQUIRED" if settings.verify_certs else "CERT_NONE"}
        tls |= {"ca_certs": str(settings.ca_certs)} if settings.ca_certs else {}
        timeout = urllib3.Timeout(min(settings.timeout_s, MAX_CONNECT_S), settings.timeout_s)
        self.pool = urllib3.PoolManager(
            len(self.hosts), maxsize=KEPT_OPEN, retries=False, timeout=timeout, **tls
        )
        self.pool.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

    def send(self, request: ClientRequest, call: Call | None = None) -> ClusterAnswer:
        """Send a request to the first host that accepts a connection, and return its answer.

        Another thread can end the request through `call`. Raises Unreachable, and ClusterError for an answer
        that is too large or unreadable, or for a target that the HTTP package would change.
        """
        call = call or Call()
        token = Call.current.set(call)
        try:
            for host in self.hosts:
                try:
                    with watched_request(request.target, NOBODY, self.watch), relay_errors(host):
                        return self._send(host.rstrip("/"), request)
                except Unreachable as failure:
                    if host == self.hosts[-1] or failure.kind == LATE:
                        raise
            raise AssertionError
        finally:
            Call.current.reset(token)
            with call.lock:
                call.connection = None

    def _send(self, host: str, request: ClientRequest) -> ClusterAnswer:
        """Send a request to a host, without headers in which proxies name users, and return its answer."""
        absent_names = (name for name in ("user-agent", "accept-encoding") if not request.header(name))
        headers = urllib3.HTTPHeaderDict(dict.fromkeys(absent_names, urllib3.util.SKIP_HEADER))
        for name, value in forwarded_headers(request.headers):
            if not PROXY_HEADERS.fullmatch(name.lower()):
                headers.add(name, value)
        url = checked_url(host, request.target)
        answer = self.pool.urlopen(
            request.method,
            url,
            body=request.body or None,
            headers=headers,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        complete = read_answer(answer, self.bounds)
        return ClusterAnswer(complete.status, forwarded_headers(answer.headers.iteritems()), complete.data)


@lru_cache(128)  # most clients use few addresses
def checked_url(host: str, target: str) -> str:
    """Return the URL of a request. Raises ClusterError for a target that the HTTP package would change."""
    url, prefix = f"{host}{target}", parse_url(host).path or ""
    parsed_target = parse_url(url).request_uri  # cut at `#`, with `/../` resolved
    if parsed_target != f"{prefix}{target}" or not re.match("/[^/]", target):
        raise ClusterError(f"'{shortened(target)}' is no address that can be passed on")
    return url


class ClusterAnswer(NamedTuple):
    """The cluster's answer to a forwarded request."""

    status: int
    headers: Headers
    body: bytes

    def header(self, name: str) -> str:
        """Return the value of a header by its lower-case name; "" if there is none."""
        return header_of(self.headers, name)


def header_of(headers: Headers, name: str) -> str:
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
    """Run the block; turn errors of urllib3 into Unreachable or ClusterError that names this host."""
    address = urlsplit(host).netloc
    try:
        yield
    except CallEnded:
        raise Unreachable(f"nobody waits for {address} any more", kind=LATE) from None
    except BoundsExceeded as cause:
        raise ClusterError(f"the answer of {address} takes too many {cause}", kind=TOO_LARGE) from None
    except exceptions.ConnectTimeoutError as error:
        raise Unreachable(f"nothing answers at {address}: {shortened(error)}") from None
    except exceptions.TimeoutError:
        raise Unreachable(f"{address} did not answer in time", kind=LATE) from None
    except exceptions.HTTPError as error:
        raise Unreachable(f"nothing answers at {address}: {shortened(error)}") from None
