"""Inside: the server's own app, asked within this process, so that agents get what `/search` gives."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
from starlette.types import ASGIApp, Message

UNREADABLE = "the query is no text that can be written as UTF-8"


class ToolFailure(Exception):
    """What a tool cannot do, for a model to read: the hint says what to do next."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


async def ask_inside(app: ASGIApp, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Post a body to a route of an app. Raises ToolFailure with the message and hint of its error."""
    try:
        content = orjson.dumps(body)
    except TypeError:  # half a surrogate pair
        raise ToolFailure(UNREADABLE, hint="send plain text") from None
    status, answered = 0, bytearray()
    messages = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # who asks stays
        raise AssertionError

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        answered.extend(message.get("body", b""))

    await app(request_scope(path, len(content)), receive, send)
    answer: dict[str, Any] = json.loads(answered)
    if status >= 400:
        error = answer.get("error", {})
        raise ToolFailure(str(error.get("message", "the search failed")), hint=error.get("hint"))
    return answer


def request_scope(path: str, length: int) -> dict[str, Any]:
    """Describe a request of this process to itself."""
    headers = {"host": "localhost", "content-type": "application/json", "content-length": str(length)}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
    }
