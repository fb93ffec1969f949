"""Bodies of requests, their checks, and the form of answers and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException

from ..cluster.settings import Side
from ..errors import ClusterError, DataError, HybridrError, NotFound, SettingsError, Unreachable
from ..families import member_names
from ..languages import has_visible_text
from ..search.checks import Mode
from ..search.clauses import NotRanked
from ..search.rules.rule import CLAUSES, check_rule_filter
from .settings import ServeSettings
from .telemetry import error_facts, note

SIDES: tuple[Side, ...] = ("query", "passage")
MAX_HITS = 1000
MAX_INPUTS = 2048  # texts in one request, OpenAI's own limit
MAX_INPUT_CHARACTERS = 1_000_000  # characters of one text, of which the encoder reads only the start
SHOWN_PROBLEMS = 5
OTHER_NAMES = dict.fromkeys(("size", "top_k", "topk", "limit", "n", "num_results"), "k") | dict.fromkeys(
    ("from", "start", "skip"), "offset"
)
"""Other names of a page's parameters. Bodies of `/v1/rank` and of `_search` are OpenSearch's: `size`,
`from`."""
MAX_BOOST_CHARACTERS, MAX_UBI_ID = 1000, 100  # characters
BAD_REQUEST = 400
UNAVAILABLE = 503
RETRY_AFTER_S = 1
CLIENT_GONE = 499  # nginx's status for a client that has left; only logs and metrics show it
STATUS: tuple[tuple[type[HybridrError], int], ...] = (
    (DataError, 400),
    (SettingsError, 400),
    (NotFound, 404),
    (Unreachable, 503),
    (ClusterError, 502),
)
TOO_MANY_CLAUSES = re.compile("max_?clause_?count|too_many_(nested_)?clauses", re.IGNORECASE)


class EmbeddingRequest(BaseModel):
    """The body of `/v1/embeddings`."""

    # fail_fast, since a report on each of a million items takes seconds
    input: str | Annotated[list[str], Field(min_length=1, fail_fast=True)] = Field(
        description="a text, or a list of them"
    )
    model: str = Field(description="a name that ends in -query or -passage: hybridr-query, hybridr-passage")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="float, or base64 of little-endian float32"
    )
    dimensions: int | None = Field(None, description="the encoder's own number, or nothing")

    @property
    def texts(self) -> list[str]:
        """Return the input as a list of texts."""
        return [self.input] if isinstance(self.input, str) else self.input


UbiId = Annotated[str, Field(min_length=1, max_length=MAX_UBI_ID)]
"""An id that UBI's indices can look up, which limits its length."""


class UbiSearch(BaseModel):
    """Description of a search, in the form of OpenSearch's `ext.ubi`."""

    query_id: UbiId | None = Field(None, description="joins clicks to the search; None: one is made")
    client_id: UbiId | None = Field(None, description="who asks; each has one vote on a query")
    user_query: str | None = Field(None, max_length=1_000, description="what was typed; None: the query")
    application: UbiId | None = None
    object_id_field: UbiId | None = Field(None, description="field that names documents; None: their id")
    query_attributes: dict[UbiId, Annotated[str, Field(max_length=256)]] = Field({}, max_length=20)


class SearchExtension(BaseModel):
    """The `ext` of `/search`."""

    ubi: UbiSearch | None = None


class SearchRequest(BaseModel):
    """The body of `/search`."""

    model_config = ConfigDict(extra="forbid")

    query: str = Field(min_length=1, description="what a user types")
    k: int = Field(10, ge=1, le=MAX_HITS, description=f"how many hits, 1 to {MAX_HITS}")
    mode: Mode = Field(
        "hybrid", description="hybrid, or one retriever: " + ", ".join(member_names("cluster.retrievers"))
    )
    offset: int = Field(0, ge=0, le=MAX_HITS, description="how many of the best to skip: pages")
    filter: dict[str, Any] | None = Field(
        None, description="what every hit has to match: term, terms, range, exists, ids, match, bool of these"
    )
    explain: bool = Field(False, description="tell what each part adds to a hit's score")
    boost: str | None = Field(
        None, max_length=MAX_BOOST_CHARACTERS, description="what fields add, as --boost of hybridr search"
    )
    at_least: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="find nothing where the best hit has less confidence, such as 0.95; 0: anything",
    )
    ext: SearchExtension | None = Field(
        None, description='{"ubi": {"query_id": …, "client_id": …}}, kept where the server has --ubi'
    )

    @model_validator(mode="before")
    @classmethod
    def refuse_other_names(cls, values: Any) -> Any:
        """Raise ValueError for a field named as in another API, with its name in this one."""
        wrong = next((name for name in OTHER_NAMES if isinstance(values, dict) and name in values), None)
        if wrong:
            raise ValueError(f"'{wrong}' is called '{OTHER_NAMES[wrong]}' here")
        return values

    @property
    def ubi(self) -> UbiSearch | None:
        """Return the UBI part of the request; None without one."""
        return self.ext.ubi if self.ext else None


class QuickRequest(Request):
    """A request whose body is parsed by orjson, five times as fast as by `json`, so that a large body blocks
    other requests for less time.
    """

    async def json(self) -> Any:
        """Return the parsed body. Raises json.JSONDecodeError, also for a lone surrogate."""
        return orjson.loads(await self.body())


class QuickRoute(APIRoute):
    """A FastAPI route whose handler gets a QuickRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's own handler, called with a QuickRequest."""
        handle = super().get_route_handler()

        async def handle_quickly(request: Request) -> Response:
            """Handle a request as a QuickRequest."""
            return await handle(QuickRequest(request.scope, request.receive))

        return handle_quickly


class UnreadRoute(APIRoute):
    """A FastAPI route whose function gets the request as it is; FastAPI reads nothing of it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the route's function."""
        endpoint: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return endpoint


def side_of(model: str) -> Side:
    """Return the side, query or passage, at the end of a model's name. Raises Refused."""
    name = model.rpartition("-")[2].lower()
    for side in SIDES:
        if name == side:
            return side
    hint = "use hybridr-query for queries, hybridr-passage for documents"
    raise Refused(404, f"the model name '{model[:100]}' does not end in -query or -passage", hint)


def check_embedding(request: EmbeddingRequest, dim: int) -> None:
    """Raise DataError for an input without text or another dimension, Refused for one over the limits."""
    if len(request.texts) > MAX_INPUTS:
        message = f"{len(request.texts)} inputs were sent, a request takes at most {MAX_INPUTS}"
        raise Refused(422, message, "send them in several requests")
    check_lengths("input {}", request.texts, MAX_INPUT_CHARACTERS, "the encoder reads only its start")
    for position, text in enumerate(request.texts):
        if not is_readable(text):
            raise DataError(f"input {position} is empty", hint="send only texts with words")
    if request.dimensions not in (None, dim):
        raise DataError(f"this encoder gives {dim} dimensions, {request.dimensions} were asked for")


def check_query(text: str, settings: ServeSettings) -> None:
    """Raise DataError for a query without visible characters, Refused for one that is too long."""
    hint = "[serve] max_query_characters sets the limit"
    check_lengths("the query", [text], settings.max_query_characters, hint)
    if not is_readable(text):
        raise DataError("the query is empty", hint="a query needs at least one visible character")


def check_lengths(name: str, texts: Sequence[str], limit: int, hint: str) -> None:
    """Raise Refused for the first text with more than `limit` characters."""
    for position, text in enumerate(texts):
        if len(text) > limit:
            problem = f"{name.format(position)} has {len(text)} characters"
            raise Refused(422, f"{problem}, the limit is {limit}", hint)


def check_filter(filter: Any, settings: ServeSettings) -> None:
    """Raise Refused (422) for a filter that does more than compare fields with values, unless `filters` is
    "any".

    The server searches with its own rights: a look-up could read other indices, a script could run code, and
    a pattern could take minutes.
    """
    if filter is None or settings.filters == "any":
        return
    try:
        check_rule_filter(filter)
    except ValueError as error:
        raise Refused(422, f"filter: {error}", f"use {', '.join(CLAUSES)}; see docs/serve.md") from None


class Refused(HTTPException):
    """A request refused with an HTTP status: an unknown model, a missing token, a body too large."""

    def __init__(
        self, status: int, message: str, hint: str | None = None, *, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, message, headers)
        self.hint = hint


class Busy(Refused):
    """A request refused because the server is busy; the client may try again soon."""

    def __init__(self, message: str, status: int = UNAVAILABLE) -> None:
        super().__init__(
            status, message, "ask again a little later", headers={"Retry-After": str(RETRY_AFTER_S)}
        )


class EncodingFailed(Refused):
    """The encoder raised an error, which is the cause and does not appear in the answer."""

    def __init__(self) -> None:
        super().__init__(500, "the encoder failed", "the server's log names the error")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON response, serialised by orjson, since FastAPI's own serialiser is slow for numbers."""
    return Response(json_bytes(value), status_code=status, media_type="application/json", headers=headers)


def json_bytes(value: Any) -> bytes:
    """Return a value as JSON bytes; NumPy arrays are allowed."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def error_response(
    status: int,
    message: str,
    hint: str | None = None,
    kind: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a response with an error object; its type follows from the status unless `kind` names it."""
    message = message.encode(errors="replace").decode()  # it may quote a client's lone surrogate
    kind = kind or ("server_error" if status >= 500 else "invalid_request_error")
    record = {"error": {"message": message, "hint": hint, "type": kind, "code": status}}
    return json_response(record, status, headers)


def add_error_handlers(app: FastAPI) -> None:
    """Register handlers that answer every error of the app in the form of OpenAI's API."""
    app.add_exception_handler(HTTPException, refusal_response)  # type: ignore[arg-type]
    app.add_exception_handler(HybridrError, hybridr_error_response)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, validation_response)  # type: ignore[arg-type]


async def refusal_response(request: Request, error: HTTPException) -> Response:
    """Return the response for an HTTPException, such as Refused or an unknown route."""
    if error.status_code >= 500 and not isinstance(error, Busy):
        note(request, **error_facts(error))
    hint = getattr(error, "hint", None)
    return error_response(error.status_code, str(error.detail), hint, headers=error.headers)


def has_too_many_clauses(error: ClusterError) -> bool:
    """Return whether the cluster refused a query because it has too many clauses."""
    return TOO_MANY_CLAUSES.search(f"{error.kind} {error.message}") is not None


async def hybridr_error_response(request: Request, error: HybridrError) -> Response:
    """Return the response for a HybridrError."""
    if isinstance(error, ClusterError) and has_too_many_clauses(error):
        problem = "the query has more words than the cluster allows"
        return error_response(
            422, problem, "indices.query.bool.max_clause_count is its limit", type(error).__name__
        )
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    if status >= 500:
        note(request, **error_facts(error))
    return error_response(status, error.message, error.hint, type(error).__name__)


async def validation_response(_: Request, error: RequestValidationError) -> Response:
    """Return the response for an invalid body; it names the wrong fields without repeating their values."""
    errors = error.errors()
    problems = [
        f"{'.'.join(map(str, item['loc'][1:]))[:100]}: {item.get('ctx', {}).get('error', item['msg'])}"
        for item in errors[:SHOWN_PROBLEMS]
    ]
    status = 422 if any(item["type"] == "extra_forbidden" for item in errors) else 400
    return error_response(status, "; ".join(problems))


def not_ranked_reason(error: Exception) -> NotRanked:
    """Return the NotRanked reason for an error during ranking."""
    if isinstance(error, Refused):
        return NotRanked("late" if error.status_code == UNAVAILABLE else "failed")
    return NotRanked("failed" if isinstance(error, HybridrError) else "unreadable")


def is_readable(text: str) -> bool:
    """Return whether a text has a visible character; fast for a megabyte of blanks."""
    return has_visible_text(text.strip())
