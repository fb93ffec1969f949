"""The app: its routes, and what stands before them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from fastapi import FastAPI, Response
from fastapi.responses import HTMLResponse

from ..encoder import Encoder
from ..settings import ServeSettings
from .answers import add_error_answers, answer
from .doorway import Doorway
from .embedder import Embedder
from .embeddings import add_embeddings
from .metrics import CONTENT_TYPE, Metrics
from .page import api_page

if TYPE_CHECKING:
    from ..cluster import Cluster


def create_app(
    encoder: Encoder, settings: ServeSettings | None = None, *, cluster: Cluster | None = None
) -> FastAPI:
    """Build the app: `/v1/embeddings`, `/v1/models`, `/healthz`, `/metrics`, `/docs`, and `/search`
    and `/v1/rewrite` when the settings name an index, which needs `cluster`.

    With a token in the settings, everything but `/healthz` asks for `Authorization: Bearer <token>`.
    `app.state.embedder` is the queue and the cache. Raises what Search raises when the index and the
    encoder do not fit.
    """
    settings = settings or ServeSettings()
    metrics = Metrics()
    embedder = Embedder(encoder, settings, metrics)
    app = FastAPI(title="hybridr", lifespan=closing(embedder), docs_url=None, redoc_url=None)
    app.state.embedder = embedder
    add_error_answers(app)
    add_embeddings(app, embedder, settings)
    if cluster is not None and settings.index is not None:
        from .rewriting import add_rewriting
        from .searching import add_search

        searches = add_search(app, cluster, settings.index, embedder, settings)
        add_rewriting(app, searches.modes["hybrid"], embedder, settings)
    add_probes(app, encoder, settings.index, metrics)
    app.add_api_route("/docs", lambda: HTMLResponse(api_page(app.openapi())), include_in_schema=False)
    routes = {getattr(route, "path", "") for route in app.routes}
    app.add_middleware(Doorway, settings=settings, metrics=metrics, routes=routes)
    return app


def closing(embedder: Embedder) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """Make the lifespan of an app that ends its embedder after the last answer."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        embedder.close()

    return lifespan


def add_probes(app: FastAPI, encoder: Encoder, index: str | None, metrics: Metrics) -> None:
    """Add `/healthz` and `/metrics`."""

    @app.get("/healthz", summary="Which encoder answers; never asks for a token")
    async def health() -> Response:
        return answer({
            "status": "ok", "encoder": encoder.fingerprint, "dim": encoder.dim,
            "similarity": encoder.similarity, "max_tokens": encoder.max_tokens, "index": index,
        })  # fmt: skip

    @app.get("/metrics", summary="Counters in Prometheus' text format")
    async def measured() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)
