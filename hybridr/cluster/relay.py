"""The relay: what others ask of a cluster goes to it with their own headers, and comes back as it is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import urllib3
from urllib3 import exceptions
from urllib3.util import parse_url

from ..errors import ClusterError, Unreachable
from .clients.opensearch import TooMuch, bounds_of, read_answer
from .failures import TOO_LARGE, told
from .repeats import LATE, NOBODY, Watch, sending
from .settings import ClusterSettings

HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    "transfer-encoding upgrade expect host content-length".split()
)
"""Headers of one connection alone."""
KEPT_OPEN = 64  # connections to a host that are kept
Headers = tuple[tuple[str, str], ...]


class Relayed(NamedTuple):
    """A request of somebody else. `target` is its path with its parameters, percent-encoded."""

    method: str
    target: str
    headers: Headers
    body: bytes

    def header(self, name: str) -> str:
        """Give a header by its name in small letters; "" of none."""
        return next((value for given, value in self.headers if given.lower() == name), "")

    def without(self, *names: str) -> Relayed:
        """Leave headers out, by their names in small letters."""
        return self._replace(headers=tuple(one for one in self.headers if one[0].lower() not in names))


class Relay:
    """Sends requests of others to the hosts of a cluster. None of hybridr's own credentials go with them."""

    def __init__(self, settings: ClusterSettings, watch: Watch | None = None) -> None:
        self.hosts, self.bounds, self.watch = str(settings.url).split(","), bounds_of(settings), watch
        tls: dict[str, Any] = {"cert_reqs": "CERT_REQUIRED" if settings.verify_certs else "CERT_NONE"}
        tls |= {"ca_certs": str(settings.ca_certs)} if settings.ca_certs else {}
        timeout = urllib3.Timeout(settings.timeout_s)
        self.pool = urllib3.PoolManager(
            len(self.hosts), maxsize=KEPT_OPEN, retries=False, timeout=timeout, **tls
        )

    def send(self, asked: Relayed) -> Answered:
        """Send a request to the first host that takes a connection. Raises Unreachable, and ClusterError for
        an answer beyond the bounds and for a target that would be sent as another one."""
        for others in reversed(range(len(self.hosts))):
            host = self.hosts[-1 - others]
            try:
                with sending(asked.target, NOBODY, self.watch):
                    return understood_by(host, partial(self._send, host.rstrip("/"), asked))
            except Unreachable as failure:
                if not others or failure.kind == LATE:
                    raise
        raise AssertionError

    def _send(self, host: str, asked: Relayed) -> Answered:
        unsaid = (name for name in ("user-agent", "accept-encoding") if not asked.header(name))
        headers = urllib3.HTTPHeaderDict(dict.fromkeys(unsaid, urllib3.util.SKIP_HEADER))
        for name, value in passed_on(asked.headers):
            headers.add(name, value)
        url = f"{host}{asked.target}"
        prefix = parse_url(host).path or ""
        as_read = parse_url(url).request_uri  # it ends at `#`, and `/../` is resolved
        if as_read != f"{prefix}{asked.target}" or not re.match("/[^/]", asked.target):
            raise ClusterError(f"'{told(asked.target)}' is no address that can be passed on")
        answer = self.pool.urlopen(
            asked.method,
            url,
            body=asked.body or None,
            headers=headers,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        found = read_answer(answer, self.bounds)
        return Answered(found.status, passed_on(answer.headers.iteritems()), found.data)


class Answered(NamedTuple):
    """What a cluster said to a request of somebody else."""

    status: int
    headers: Headers
    body: bytes


def passed_on(headers: Iterable[tuple[str, str]]) -> Headers:
    """Give the headers that go on from one connection to the next."""
    return tuple((name, value) for name, value in headers if name.lower() not in HOP_BY_HOP)


def understood_by(host: str, ask: Callable[[], Answered]) -> Answered:
    """Ask a host. Raises Unreachable, or ClusterError, in the place of the package's errors."""
    named = urlsplit(host).netloc
    try:
        return ask()
    except TooMuch:
        raise ClusterError(f"{named} gives too large an answer", kind=TOO_LARGE) from None
    except exceptions.ConnectTimeoutError as error:
        raise Unreachable(f"nothing answers at {named}: {told(error)}") from None
    except exceptions.TimeoutError:
        raise Unreachable(f"{named} did not answer in time", kind=LATE) from None
    except exceptions.HTTPError as error:
        raise Unreachable(f"nothing answers at {named}: {told(error)}") from None
