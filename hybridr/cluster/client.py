"""The HTTP client of a cluster, based on opensearch-py: sends and signs requests, translates failures.

No other file of hybridr imports opensearch-py.
"""

from __future__ import annotations

import re
import threading
import time
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import opensearchpy
from opensearchpy import exceptions
from pydantic import SecretStr
from urllib3.exceptions import NewConnectionError

from ..errors import ClusterError, SettingsError, Unreachable, extra
from ..files.local import MAX_SETTINGS_BYTES, text_within
from .failures import ASKED_BY, LATE, NOBODY, TOO_LARGE, error_from_answer, reading_answer, shortened
from .settings import ClusterSettings

ADDRESS = re.compile(r"https?://[^/?#\\\s\x00-\x1f\x7f]+(/[^?#\\\s\x00-\x1f\x7f]*)?")
"""The address of a cluster. Its path has no `?` or `#`, because the paths of requests are appended to it."""
MAX_WAIT_S = 3600.0
RETRY_AFTER = threading.local()
"""`seconds` of `Retry-After` in this thread's last answer; opensearch-py drops the headers of failures."""
AT_ONCE = 2**16  # bytes of an answer read at once, and largest part of a request that is joined
MAX_ANSWER_BYTES = 256_000_000  # bytes, unpacked
MAX_READING_TIMEOUTS = 5  # longest reading time of an answer, in timeouts


class Client:
    """The HTTP client of a cluster, based on opensearch-py; it works with Elasticsearch too.

    It sends each request once; `Cluster` (connection.py) waits and repeats. Raises SettingsError for an
    unusable address or credentials.
    """

    def __init__(self, url: str, settings: ClusterSettings) -> None:
        self.url, self.hosts = url, url.split(",")
        for host in self.hosts:
            check_address(host)
        if settings.aws_service == "aoss" or ".aoss." in url:
            raise SettingsError(
                "Amazon OpenSearch Serverless (aoss) cannot be used: it lacks _seq_no, _refresh, _stats and "
                "_mtermvectors",
                hint="use a domain of Amazon OpenSearch Service (es), or another OpenSearch",
            )
        options = {
            **client_options(settings),
            "connection_class": BoundedConnection,
            "bounds": answer_bounds(settings),
        }
        self.transport = opensearchpy.OpenSearch(self.hosts, **options).transport

    def send(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Any:
        """Send one HTTP request and return the parsed answer; for HEAD return whether the target exists.

        `timeout_s` is how many seconds to wait for the answer; None means the settings' value. Raises
        Unreachable, AccessDenied, NotFound, or ClusterError with the server's reason; no message contains a
        password.
        """
        headers = {"x-opaque-id": ASKED_BY.get() or NOBODY}
        for remaining in reversed(range(len(self.hosts))):
            RETRY_AFTER.seconds = 0.0
            try:
                with reading_answer(self.url, f"{method} {shortened(path)}"):
                    return self.transport.perform_request(
                        method, path, headers=headers, params=params, body=body, timeout=timeout_s
                    )
            except exceptions.OpenSearchException as error:
                is_unsent = isinstance(error, exceptions.ConnectionError) and isinstance(
                    error.info, NewConnectionError
                )
                if remaining and is_unsent:
                    continue  # the next call uses the next host; an unsent request may be a write
                failure = hybridr_error(error, self.url)
                failure.wait_s = RETRY_AFTER.seconds
                raise failure from None
        raise AssertionError


class Bounds(NamedTuple):
    """Limits on an answer: its bytes, unpacked, and the seconds that reading all of it may take."""

    bytes: int
    seconds: float


class Answer(NamedTuple):
    """A whole HTTP answer in the form that the package's connection reads."""

    status: int
    headers: Any
    data: bytes


class BoundsExceeded(Exception):
    """Raised when an answer exceeds its `Bounds`, in bytes or in seconds."""


class JoiningConnection:
    """Mixin for HTTP connections that sends headers and a small body at once, so the node wakes up once."""

    unsent: list[bytes] | None = None

    def request(self, *arguments: Any, **options: Any) -> None:
        """Send a request."""
        self.unsent = []
        try:
            super().request(*arguments, **options)  # type: ignore[misc]
            self._flush()
        finally:
            self.unsent = None

    def send(self, data: Any) -> None:
        """Keep a small part of a request until the request is complete; send a large part."""
        if self.unsent is not None and len(data) <= AT_ONCE:
            self.unsent.append(data)
        else:
            self._flush()
            super().send(data)  # type: ignore[misc]

    def _flush(self) -> None:
        """Send the parts that were kept."""
        parts, self.unsent = self.unsent, None
        if parts:
            super().send(b"".join(parts))  # type: ignore[misc]


class BoundedConnection(opensearchpy.Urllib3HttpConnection):
    """opensearch-py's HTTP connection that raises BoundsExceeded for an answer beyond its bounds."""

    def __init__(self, *arguments: Any, bounds: Bounds, **options: Any) -> None:
        self.bounds = bounds
        super().__init__(*arguments, **options)

    def _create_urllib3_pool(self) -> None:
        """Make the connection pool, whose answers are read by `read_answer` within the bounds."""
        super()._create_urllib3_pool()
        plain = self.pool.ConnectionCls
        self.pool.ConnectionCls = type(plain.__name__, (JoiningConnection, plain), {})  # errors show the name
        urlopen = self.pool.urlopen
        self.pool.urlopen = lambda *arguments, **options: read_answer(
            urlopen(*arguments, preload_content=False, **options), self.bounds
        )


def read_answer(response: Any, bounds: Bounds) -> Answer:
    """Read the whole body of an HTTP response in parts, within `bounds`. Raises BoundsExceeded."""
    parts: list[bytes] = []
    remaining, deadline = bounds.bytes, time.monotonic() + bounds.seconds
    try:
        while part := response.read1(AT_ONCE):
            parts.append(part)
            remaining -= len(part)
            if remaining < 0 or time.monotonic() > deadline:
                raise BoundsExceeded("bytes" if remaining < 0 else "seconds")
    except BaseException:
        response.close()
        raise
    response.release_conn()
    delay = response.headers.get("retry-after", "")  # a date, the other form, is ignored
    if re.fullmatch(r"[0-9]{1,9}", delay):
        RETRY_AFTER.seconds = min(float(delay), MAX_WAIT_S)
    return Answer(response.status, response.headers, b"".join(parts))


def answer_bounds(settings: ClusterSettings) -> Bounds:
    """Return the bounds of each answer: a fixed number of bytes, and a multiple of the settings' timeout."""
    return Bounds(MAX_ANSWER_BYTES, MAX_READING_TIMEOUTS * settings.timeout_s)


def check_address(url: str) -> None:
    """Raise SettingsError for a cluster address that is not a URL or that holds a password."""
    try:
        is_address = ADDRESS.fullmatch(url) is not None and urlsplit(url).port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise SettingsError(f"{url!a} is not a cluster address", hint="it looks like https://host:9200")
    if "@" in url:
        # The message does not repeat the address: messages end up in logs and histories.
        raise SettingsError(
            "the cluster address holds a user or password",
            hint="set HYBRIDR_USER and HYBRIDR_PASSWORD, or --user and --password-file",
        )


def client_options(settings: ClusterSettings) -> dict[str, Any]:
    """Return the options of opensearch-py's client: TLS files, credentials, timeout.

    Raises SettingsError for a missing file, password or AWS credentials, and for credentials that exclude
    each other. Raises MissingExtra without the package that signs for AWS.
    """
    options: dict[str, Any] = {
        "timeout": settings.timeout_s,
        "max_retries": 0,
        "verify_certs": settings.verify_certs,
        "ssl_show_warn": False,
        "pool_maxsize": 8,
    }
    for name in ("ca_certs", "client_cert", "client_key"):
        if path := getattr(settings, name):
            if not path.is_file():
                raise SettingsError(f"{name}: no file at {path}")
            options[name] = str(path)
    if settings.api_key:
        options["headers"] = {"authorization": f"ApiKey {api_key_text(settings, settings.api_key)}"}
    elif settings.aws_region:
        with extra("aws", "signing requests for AWS"):
            from botocore.session import get_session
        region, service = settings.aws_region, settings.aws_service
        if (credentials := get_session().get_credentials()) is None:
            raise SettingsError(
                f"requests must be signed for {region}, but no AWS credentials were found",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
            )
        options["http_auth"] = opensearchpy.Urllib3AWSV4SignerAuth(credentials, region, service)
    elif settings.user:
        options["http_auth"] = settings.user, read_password(settings)
    return options


def api_key_text(settings: ClusterSettings, api_key: SecretStr) -> str:
    """Return the API key as it is sent to the cluster.

    Raises SettingsError for a malformed key, and for a key together with a user or an AWS region.
    """
    if settings.user or settings.aws_region:
        identity = f"user '{settings.user}'" if settings.user else "an AWS region"
        hint = "unset HYBRIDR_API_KEY, or the other"
        raise SettingsError(f"an API key and {identity} are given, but only one can be used", hint=hint)
    key = api_key.get_secret_value().strip()
    if ":" in key:
        key = b64encode(key.encode()).decode()
    elif not re.fullmatch(r"[A-Za-z0-9+/_=-]+", key):
        raise SettingsError("HYBRIDR_API_KEY holds no API key", hint="set it to base64, or to ID:KEY")
    return key


def read_password(settings: ClusterSettings) -> str:
    """Return the user's password from the settings or the password file. Raises SettingsError without one."""
    if settings.password is not None:
        return settings.password.get_secret_value()
    if settings.password_file is None:
        raise SettingsError(
            f"no password for user '{settings.user}'", hint="set HYBRIDR_PASSWORD or --password-file FILE"
        )
    try:
        return text_within(settings.password_file, MAX_SETTINGS_BYTES).strip()
    except (OSError, ValueError) as error:
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else error
        reason = getattr(error, "strerror", None) or reason
        raise SettingsError(f"password file {settings.password_file}: {reason}") from None


def hybridr_error(error: exceptions.OpenSearchException, url: str) -> ClusterError:
    """Return hybridr's error for an exception of opensearch-py; its text never contains credentials."""
    if isinstance(error, exceptions.SSLError):
        return Unreachable(
            f"the certificate of {url} could not be verified: {root_cause(error)}",
            hint="--ca-certs FILE names the CA that signed it",
        )
    if isinstance(cause := getattr(error, "info", None), BoundsExceeded):
        return ClusterError(
            f"the answer of {url} takes too many {cause}",
            hint="ask for less at once; a larger HYBRIDR_TIMEOUT_S allows more seconds",
            kind=TOO_LARGE,
        )
    if isinstance(error, exceptions.ConnectionTimeout):
        return Unreachable(f"{url} did not answer in time", hint="hybridr doctor", kind=LATE)
    if isinstance(error, exceptions.ConnectionError):
        return Unreachable(
            f"nothing answers at {url}: {root_cause(error)}",
            hint="is the address right and the node up? hybridr node start   starts an embedded one",
        )
    if isinstance(error, exceptions.TransportError):
        status = error.status_code if isinstance(error.status_code, int) else 0
        reason = error.info
        if isinstance(reason, dict):
            shard = None
            with suppress(KeyError, IndexError, TypeError, AttributeError):  # the answer may have any form
                shard = reason["_shards"]["failures"][0].get("reason")  # the first shard of a refresh
            reason = reason.get("error") or shard
        return error_from_answer(status, reason)
    return ClusterError(f"{url}: {shortened(error)}")


def root_cause(error: exceptions.ConnectionError) -> str:
    """Return the innermost reason of a connection error as text, without addresses of Python objects."""
    text = shortened(error.info if error.info is not None else error.error)
    address = r"HTTPS?Connection\([^)]*\): (?:Failed to establish a new connection: )?(?:\[.*?\] ?)?"
    shorter = re.sub(rf"^.*object at 0x[0-9a-f]+>:? ?|^.*Caused by \w+\(|^.*{address}", "", text)
    return shorter.strip("()'\" ") or text
