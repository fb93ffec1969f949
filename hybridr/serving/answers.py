"""What clients get: JSON, and errors in the form that OpenAI's clients read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from ..errors import ClusterError, DataError, HybridrError, NotFound, SettingsError, Unreachable
from .logs import described, note

GONE = 499  # what nginx calls a client that did not wait; nobody reads it but logs and metrics
STATUS: tuple[tuple[type[HybridrError], int], ...] = (
    (DataError, 400), (SettingsError, 400), (NotFound, 404), (Unreachable, 503), (ClusterError, 502),
)  # fmt: skip
TOO_MANY_WORDS = re.compile("max_?clause_?count|too_many_(nested_)?clauses", re.IGNORECASE)


class Refused(HTTPException):
    """A request that HTTP has its own status for: an unknown model, a missing token, a body too large."""

    def __init__(
        self, status: int, message: str, hint: str | None = None, *, retry_after_s: int | None = None
    ) -> None:
        super().__init__(status, message, {"Retry-After": str(retry_after_s)} if retry_after_s else None)
        self.hint = hint


class EncodingFailed(Refused):
    """The encoder raised something of its own; it is the cause, and stays out of the answer."""

    def __init__(self) -> None:
        super().__init__(500, "the encoder failed", "the server's log names the error")


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with JSON; FastAPI's own way walks through every number in Python."""
    body = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def refusal(
    status: int, message: str, hint: str | None, kind: str, headers: Mapping[str, str] | None = None
) -> Response:
    """Answer with an error object."""
    shown = {"error": {"message": message, "hint": hint, "type": kind, "code": status}}
    return answer(shown, status, headers)


def add_error_answers(app: FastAPI) -> None:
    """Give every error of the app OpenAI's form."""
    app.add_exception_handler(HTTPException, refused)  # type: ignore[arg-type]
    app.add_exception_handler(HybridrError, failed)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, invalid)  # type: ignore[arg-type]


async def refused(request: Request, error: HTTPException) -> Response:
    """Answer what was refused before the library was asked: unknown routes too."""
    if error.status_code >= 500:
        note(request, **described(error))
    kind = "server_error" if error.status_code >= 500 else "invalid_request_error"
    hint = getattr(error, "hint", None)
    return refusal(error.status_code, str(error.detail), hint, kind, error.headers)


async def failed(request: Request, error: HybridrError) -> Response:
    """Answer an error of the library."""
    if isinstance(error, ClusterError) and TOO_MANY_WORDS.search(f"{error.kind} {error.message}"):
        found = "the query has more words than the cluster takes"
        return refusal(422, found, "indices.query.bool.max_clause_count is its limit", type(error).__name__)
    status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    if status >= 500:
        note(request, **described(error))
    return refusal(status, error.message, error.hint, type(error).__name__)


async def invalid(_: Request, error: RequestValidationError) -> Response:
    """Name the field of a request that cannot be used, without repeating what was in it."""
    problems = [f"{'.'.join(map(str, item['loc'][1:]))}: {item['msg']}" for item in error.errors()]
    return refusal(400, "; ".join(problems), None, "invalid_request_error")
