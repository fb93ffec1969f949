"""The HTTP server: embeddings in the form of OpenAI's API, and hybrid search if it has an index.

The end of the model name is the kind of text: `...-query` for queries, `...-passage` for documents
(`hybridr-query` and `hybridr-passage` are listed, any other beginning works too).
"""

from __future__ import annotations

import gc
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..errors import SettingsError, extra

with extra("serve", "hybridr serve"):
    import prometheus_client  # noqa: F401
    import uvicorn
    from fastapi import FastAPI, Request, Response
    from fastapi.responses import HTMLResponse

from starlette.types import ASGIApp

from ..cluster.settings import ClusterSettings
from ..encoders.contract import Encoder
from ..records import Progress, silent
from .doorway import HEADER_BYTES, BoundListener, Doorway, TimedProtocol, is_local, listen
from .embeddings import Embedder, add_embeddings
from .requests import QuickRoute, add_error_handlers, json_response
from .settings import ServeSettings
from .telemetry import CONTENT_TYPE, Metrics, log_configuration

if TYPE_CHECKING:
    from ..cluster.connection import Cluster
    from ..search.settings import SearchSettings
    from .snapshots import Searches

STOP_S = 30  # longest time for running requests when the server stops
SWITCH_S = 0.0005  # how long the event loop waits for a busy thread after a read; Python's default: 0.005
Addition: TypeAlias = "Callable[[FastAPI, Searches | None], None]"
"""A function that adds routes to an app, with its searches if it has an index."""
STYLE = "body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}td{padding:0 1em 0 0}"


class Server(NamedTuple):
    """An app and the socket, already bound, on which it will answer."""

    app: ASGIApp
    listener: BoundListener
    settings: ServeSettings = ServeSettings()

    @property
    def url(self) -> str:
        """Return the address, with the actual port if port 0 was requested."""
        host, port = self.listener.getsockname()[:2]
        scheme = "https" if self.settings.tls_cert else "http"
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

    def run(self, log_level: str = "warning") -> None:
        """Answer requests until the process is stopped; running requests are finished first.

        The log goes to stderr, one JSON object per line: every request from level `info` on.
        """
        config = uvicorn.Config(
            self.app,
            log_config=log_configuration(log_level),
            access_log=False,
            timeout_graceful_shutdown=STOP_S,
            loop="asyncio",  # uvloop accepts connections without the listener, which limits them
            http=TimedProtocol.with_limits(self.settings, self.listener),
            h11_max_incomplete_event_size=HEADER_BYTES,
            ssl_certfile=self.settings.tls_cert,
            ssl_keyfile=self.settings.tls_key,
        )
        sys.setswitchinterval(SWITCH_S)
        gc.collect()
        gc.freeze()  # a full collection of all loaded objects would block requests for 70 ms
        try:
            uvicorn.Server(config).run(sockets=[self.listener])
        except KeyboardInterrupt:
            pass  # Ctrl-C is the usual way to stop a server


def open_server(
    settings: ServeSettings,
    *,
    cluster: Cluster | None = None,
    search: SearchSettings | None = None,
    added: Addition | None = None,
    progress: Progress = silent,
) -> Server:
    """Return a server with a loaded encoder and a bound port.

    `cluster` is needed if the settings name an index, which is ranked as `search` says; `added` adds further
    routes. Raises ModelError, FingerprintMismatch if another encoder wrote the index, and SettingsError for a
    port that is taken and for the reasons of `require_guard`.
    """
    require_guard(settings)
    listener = listen(settings.host, settings.port)
    try:
        encoder = find_encoder(settings, cluster, progress)
        app = create_app(encoder, settings, cluster=cluster, search=search, added=added)
        return Server(app, listener, settings)
    except BaseException:
        listener.close()
        raise


def require_guard(settings: ServeSettings) -> None:
    """Raise SettingsError for a server that other machines could use without a token.

    Also for a certificate that cannot be used, and for an option whose required option is missing.
    """
    if not (is_local(settings.host) or settings.token or settings.insecure):
        raise SettingsError(
            f"other machines can reach {settings.host}, and the server has no token",
            hint="set HYBRIDR_SERVE_TOKEN; --insecure serves without one",
        )
    if settings.index is None and (settings.proxy or settings.ubi):
        option = "--proxy" if settings.proxy else "--ubi"
        raise SettingsError(f"{option} needs --index", hint="--index NAME   is the index that is searched")
    if settings.shadow and not settings.proxy:
        raise SettingsError("--shadow needs --proxy", hint="--proxy lexical")
    if settings.tls_key and not settings.tls_cert:
        raise SettingsError("--tls-key needs --tls-cert")
    if settings.tls_cert:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
                settings.tls_cert, settings.tls_key, password=lambda: ""
            )
        except OSError as error:  # SSLError is a subclass
            raise SettingsError(
                f"the certificate {settings.tls_cert} cannot be used: {error.strerror or error}",
                hint="--tls-cert and --tls-key name PEM files; the key has no password",
            ) from None


def find_encoder(settings: ServeSettings, cluster: Cluster | None, progress: Progress) -> Encoder:
    """Return the encoder of the settings, else that of the index, else the packaged MiniLM."""
    from ..cluster.destinations import resolve
    from ..encoders.opening import load_encoder
    from ..search.checks import encoder_for, find_encoder_folder

    if cluster is not None and settings.index is not None:
        return encoder_for(resolve(cluster, settings.index), settings.encoder, progress=progress)
    return load_encoder(find_encoder_folder(settings.encoder, progress))


def create_app(
    encoder: Encoder,
    settings: ServeSettings | None = None,
    *,
    cluster: Cluster | None = None,
    search: SearchSettings | None = None,
    added: Addition | None = None,
) -> FastAPI:
    """Return the app with embeddings, models, health, metrics and docs, and searches of an index.

    With `settings.index` and `cluster` there are `/search` and `/v1/rank` too, which rank as
    `search` says. `added` is called with the app and its searches to add routes. With a token in the
    settings, everything but `/healthz` and the empty page requires `Authorization: Bearer <token>`.
    `app.state.embedder` is the queue and cache in use, `app.state.searches` the searches of the index or
    None. Raises what Search raises if index and encoder do not fit.
    """
    settings = settings or ServeSettings()
    metrics = Metrics()
    embedder = Embedder(encoder, settings, metrics)
    app = FastAPI(title="hybridr", lifespan=lifespan, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.router.route_class = QuickRoute
    app.state.embedder, app.state.searches, app.state.keeper = embedder, None, None
    add_error_handlers(app)
    add_embeddings(app, settings)
    if cluster is not None and settings.index is not None:
        limited_cluster = cluster.with_timeout(settings.search_timeout_s)
        limited_cluster.watch = metrics.calls
        from .searching import add_searching
        from .snapshots import Searches

        app.state.searches = searches = Searches(limited_cluster, app.state, settings, search)
        if settings.ubi:
            from ..relevance.clicks.ubi import UbiWriter
            from .searching import add_events

            app.state.keeper = UbiWriter(limited_cluster, searches.index, metrics.count_kept)
            add_events(app, app.state.keeper)
        add_searching(app, searches)
        if settings.proxy:
            from ..cluster.relay import Relay
            from .proxy import Proxy, add_proxy
            from .shadow_proxy import ShadowingProxy

            relay = Relay(limited_cluster.settings or ClusterSettings(url=limited_cluster.url), metrics.calls)
            shadow = settings.shadow
            add_proxy(app, ShadowingProxy(searches, relay, shadow) if shadow else Proxy(searches, relay))
    add_probes(app, settings.index, metrics)
    if added is not None:
        added(app, app.state.searches)
    app.add_api_route("/docs", lambda: HTMLResponse(api_page(app.openapi())), include_in_schema=False)
    routes = {getattr(route, "path", "") for route in app.routes}
    app.add_middleware(Doorway, settings=settings, metrics=metrics, routes=routes)
    return app


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Follow the index while the app runs, and stop all threads at the end. No request is answered before the
    rankings are warm.
    """
    if searches := app.state.searches:
        from .searching import warm_up

        searches.follow()
        await warm_up(searches)
    yield
    if searches:
        searches.end()
    if app.state.keeper:
        app.state.keeper.end()
    app.state.embedder.close()


def add_probes(app: FastAPI, index: str | None, metrics: Metrics) -> None:
    """Add `/healthz` and `/metrics`."""

    @app.get("/healthz", summary="Which encoder answers, and whether it follows its index")
    async def health(request: Request) -> Response:
        encoder, searches = request.app.state.embedder.encoder, request.app.state.searches
        return json_response(
            {
                "status": "behind" if searches and searches.problem else "ok",
                "encoder": encoder.fingerprint,
                "dim": encoder.dim,
                "similarity": encoder.similarity,
                "max_tokens": encoder.max_tokens,
                "index": index,
            }
        )

    @app.get("/metrics", summary="Counters in Prometheus' text format")
    async def measured() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)


def api_page(schema: Mapping[str, Any]) -> str:
    """Return an OpenAPI schema as plain HTML: each route, and name, default and description of each field of
    its body.
    """
    title = escape(schema["info"]["title"])
    routes = [(path, *entry) for path, methods in schema["paths"].items() for entry in methods.items()]
    sections = ""
    for path, method, route in routes:
        summary = escape(route.get("summary", ""))
        sections += f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{summary}</p>"
        if "requestBody" not in route:
            continue
        reference = route["requestBody"]["content"]["application/json"]["schema"]
        body = schema["components"]["schemas"][reference.get("items", reference)["$ref"].rpartition("/")[2]]
        rows = ""
        for name, field in body["properties"].items():
            default = "needed" if name in body.get("required", ()) else f"default {field.get('default')}"
            description = escape(field.get("description", ""))
            rows += f"<tr><td><code>{escape(name)}</code><td>{escape(default)}<td>{description}</tr>"
        sections += f"<table>{rows}</table>"
    openapi_link = '<p>The same for machines: <a href="openapi.json">openapi.json</a></p>'
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
    return f"{head}<h1>{title}</h1>{openapi_link}{sections}</html>"
