"""elasticsearch-py: sends requests, and names their failures. The only file that imports it."""

from __future__ import annotations

from typing import Any

from ...errors import ClusterError, Unreachable, extra
from ..failures import ASKED_BY, LATE, NOBODY, TOO_LARGE, error_of, shortened, understood
from ..settings import ClusterSettings
from . import Body, Params
from .opensearch import (
    TooMuch,
    bound,
    bounds_of,
    check_address,
    options_of,
    reason_in,
    seconds_to_wait,
)

with extra("elasticsearch", "Elasticsearch"):
    import elasticsearch
    from elastic_transport import (
        ConnectionError,
        ConnectionTimeout,
        SerializationError,
        TlsError,
        TransportError,
        Urllib3HttpNode,
    )

JSON, LINES = "application/json", "application/x-ndjson"
OF_LINES = ("_bulk", "_msearch")
SHARED = {"timeout": "request_timeout", "http_auth": "basic_auth", "pool_maxsize": "connections_per_node"}
"""What the package calls options of OpenSearch's, from which it was split."""

STRIPPED = "is the address right, and does nothing between take the header X-elastic-product off answers?"


class Elasticsearch:
    """The client that Elasticsearch's makers keep, which checks who answers."""

    name = "elasticsearch"

    def __init__(self, url: str, settings: ClusterSettings) -> None:
        self.url, hosts = url, url.split(",")
        for host in hosts:
            check_address(host)
        options = {SHARED.get(name, name): value for name, value in options_of(settings).items()}
        if not url.startswith("https"):
            options = {name: value for name, value in options.items() if name not in OF_TLS}
        bounds = bounds_of(settings)

        class Reading(Urllib3HttpNode):
            """The package's connection, which reads no answer beyond its bounds."""

            def __init__(self, config: Any) -> None:
                super().__init__(config)
                bound(self.pool, bounds)

        self.package = elasticsearch.Elasticsearch(
            [with_port(host) for host in hosts], node_class=Reading, retry_on_timeout=False, **options
        )

    def send(self, method: str, path: str, body: Body, params: Params, timeout_s: float | None) -> Any:
        """Send one request and give the parsed answer; False for a HEAD of what is not there."""
        kind = LINES if path.partition("?")[0].endswith(OF_LINES) else JSON
        headers = {"accept": JSON, "x-opaque-id": ASKED_BY.get() or NOBODY}
        headers |= {} if body is None else {"content-type": kind}
        package = self.package if timeout_s is None else self.package.options(request_timeout=timeout_s)
        try:
            with understood(self.url, f"{method} {shortened(path)}"):
                answer = package.perform_request(method, path, params=params, headers=headers, body=body)
                return bool(answer) if method == "HEAD" else answer.body
        except (elasticsearch.ApiError, TransportError) as error:
            raise failure_of(error, self.url) from None


OF_TLS = ("verify_certs", "ca_certs", "client_cert", "client_key", "ssl_show_warn")


def with_port(host: str) -> str:
    """Write an address with its port, without which the package takes none."""
    scheme, _, rest = host.partition("://")
    place, slash, path = rest.partition("/")
    usual = "443" if scheme == "https" else "9200"
    return f"{scheme}://{place if ':' in place.rpartition(']')[2] else f'{place}:{usual}'}{slash}{path}"


def failure_of(error: Any, url: str) -> ClusterError:
    """Turn an exception of the package into one of ours; credentials never appear in its text."""
    if isinstance(error, elasticsearch.UnsupportedProductError):
        return ClusterError(f"{url} answers, but it is not Elasticsearch", hint=STRIPPED)
    if isinstance(error, elasticsearch.ApiError):
        failure = error_of(error.meta.status, reason_in(error.body))
        failure.wait_s = seconds_to_wait(error.meta.headers)
        return failure
    causes = getattr(error, "errors", ())
    if any(isinstance(cause, TooMuch) for cause in causes):
        return ClusterError(f"{url} gives too large an answer", kind=TOO_LARGE)
    if isinstance(error, TlsError):
        hint = "--ca-certs FILE names the CA that signed it"
        return Unreachable(f"the certificate of {url} could not be verified: {shortened(error)}", hint=hint)
    if isinstance(error, ConnectionTimeout):
        return Unreachable(f"{url} did not answer in time", hint="hybridr doctor", kind=LATE)
    if isinstance(error, ConnectionError) and not isinstance(error, SerializationError):
        return Unreachable(f"nothing answers at {url}: {shortened(error.message)}", hint="is the node up?")
    return ClusterError(f"{url}: {shortened(error)}")
