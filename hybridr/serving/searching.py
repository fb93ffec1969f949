"""The route that searches an index."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import cast

from fastapi import FastAPI, Request, Response
from starlette.concurrency import run_in_threadpool

from ..cluster import Cluster
from ..encoder import Encoder, Vectors
from ..retrieval import Search
from ..settings import ServeSettings
from .answers import EncodingFailed, answer
from .embedder import Embedder
from .logs import described, note
from .presence import unless_gone
from .requests import Mode, SearchRequest, check_query

WARNING = "the encoder failed, these are lexical results"


class EncodedQuery:
    """Stands for the encoder in one search whose query is encoded already; `vector` is `(dim,)`."""

    def __init__(self, vector: Vectors) -> None:
        self.vector = vector

    def encode_queries(self, texts: Sequence[str]) -> Vectors:
        """Give the vector that is there, as `(1, dim)`."""
        return self.vector[None]


class Searches:
    """Searches of one index in every mode; the encoder is checked against the index once, here."""

    def __init__(self, cluster: Cluster, index: str, embedder: Embedder) -> None:
        hybrid = Search(cluster, index, embedder.encoder)
        self.embedder = embedder
        self.modes: dict[Mode, Search] = {
            "hybrid": hybrid, "lexical": hybrid.using("lexical"), "dense": hybrid.using("dense"),
        }  # fmt: skip

    async def prepare(self, mode: Mode, query: str) -> Search:
        """Give the search to run for a query; lexical search needs no vector. Raises EncodingFailed."""
        search = copy(self.modes[mode])
        if mode != "lexical":
            [embedding] = await self.embedder.embed("query", [query])
            search.encoder = cast(Encoder, EncodedQuery(embedding.vector))
        return search


def add_search(
    app: FastAPI, cluster: Cluster, index: str, embedder: Embedder, settings: ServeSettings
) -> Searches:
    """Add `/search`, and give what it searches with.

    Where the encoder fails it answers with lexical hits and a `Warning` header.
    Raises what Search raises when the index and the encoder do not fit.
    """
    searches = Searches(cluster.hurried(settings.search_timeout_s), index, embedder)

    @app.post("/search", summary="The best documents of the index for a query")
    async def search(body: SearchRequest, request: Request) -> Response:
        note(request, mode=body.mode, k=body.k, **({"input": body.query} if settings.log_queries else {}))
        check_query(body.query, settings)
        mode, warning = body.mode, None
        try:
            prepared = await unless_gone(request, searches.prepare(mode, body.query))
        except EncodingFailed as error:
            note(request, warning=WARNING, **described(error))
            mode, warning, prepared = "lexical", WARNING, searches.modes["lexical"]
        hits = await unless_gone(
            request,
            run_in_threadpool(prepared, body.query, body.k, offset=body.offset, filter=body.filter),
        )
        return found_answer(mode, [hit._asdict() for hit in hits], warning)

    return searches


def found_answer(mode: Mode, hits: list[dict[str, object]], warning: str | None) -> Response:
    """Answer with hits and the mode that found them."""
    if warning is None:
        return answer({"mode": mode, "hits": hits})
    shown = {"mode": mode, "hits": hits, "warning": warning}
    return answer(shown, headers={"Warning": f'199 hybridr "{warning}"'})
