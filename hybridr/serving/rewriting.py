"""The route by which a cluster's search pipeline turns ordinary queries into hybrid ones."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, Field

from ..languages import says_something
from ..retrieval import Search
from ..rewriting import Wanted, filter_of, rewritten, wanted
from ..settings import ServeSettings
from .answers import EncodingFailed, answer
from .embedder import Embedder
from .logs import described, note
from .presence import unless_gone


class RewriteRequest(BaseModel):
    """The body of `/v1/rewrite`: the `query` of a search, as JSON."""

    input: dict[str, Any] = Field(description="the query clause of a search request")


def add_rewriting(app: FastAPI, search: Search, embedder: Embedder, settings: ServeSettings) -> None:
    """Add `/v1/rewrite`. What is not a query for one text, or cannot be encoded, comes back as it was."""
    fields = frozenset(search.lexical_fields) | frozenset(search.info.meta.get("fields", ()))

    async def vector_leg(one: Wanted) -> dict[str, Any]:
        [embedding] = await embedder.embed("query", [one.text])
        return search.dense_leg(embedding.vector, filter_of(one))

    @app.post("/v1/rewrite", summary="A query for one text, made hybrid; any other as it came")
    async def rewrite(body: RewriteRequest, request: Request) -> Response:
        query, one = body.input, wanted(body.input, fields)
        if one is not None and is_encodable(one.text, settings.max_characters):
            try:
                dense = await unless_gone(request, vector_leg(one))
                query = rewritten(query, dense, search.settings.depth)
            except EncodingFailed as error:
                note(request, **described(error))
        note(request, rewritten=query is not body.input)
        return answer({"data": [{"query": query}]})


def is_encodable(text: str, most: int) -> bool:
    """Tell whether a text has something to encode and fits; lone surrogates no tokenizer can read."""
    whole = text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
    return whole and says_something(text) and len(text) <= most
