"""Requests by stdin, one a line: a line that is no request is answered too, so that nobody waits for it."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from ...errors import extra

with extra("mcp", "hybridr mcp"):
    from mcp.shared.message import SessionMessage
    from mcp.types import INVALID_REQUEST, PARSE_ERROR, ErrorData, JSONRPCError

from pydantic import ValidationError

NO_JSON = "this line is no JSON; send one request of JSON-RPC 2.0 a line, without halves of surrogate pairs"
NO_REQUEST = "this is no request of JSON-RPC 2.0; send jsonrpc, id, method and params, one request a line"


class AnsweredLines:
    """The messages of a stream. The SDK drops what it cannot read; here it is answered by an error.

    All else is the stream's own.
    """

    def __init__(self, messages: Any, answers: Any) -> None:
        self._messages, self._answers = messages, answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._messages, name)

    async def receive(self) -> Any:
        """Return the next message. Raises what the stream raises at its end."""
        while True:
            message = await self._messages.receive()
            if not isinstance(message, Exception):
                return message
            if (answer := answer_to(message)) is not None:
                await self._answers.send(SessionMessage(answer))

    def __aiter__(self) -> AnsweredLines:
        return self

    async def __anext__(self) -> Any:
        import anyio

        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> AnsweredLines:
        await self._messages.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Any:
        return await self._messages.__aexit__(kind, error, trace)


def answer_to(failure: Exception) -> JSONRPCError | None:
    """Return the error that answers an unreadable line; None for a blank one.

    A line that cannot be parsed has no id: JSON-RPC wants null.
    """
    problems = failure.errors(include_url=False) if isinstance(failure, ValidationError) else []
    if not problems or problems[0]["type"] == "json_invalid":
        line = problems[0]["input"] if problems else None
        if isinstance(line, str) and not line.strip():
            return None
        return JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=PARSE_ERROR, message=NO_JSON))
    objects = (problem["input"] for problem in problems if isinstance(problem["input"], dict))
    name = next((request["id"] for request in objects if "jsonrpc" in request and "id" in request), None)
    request_id = name if isinstance(name, int | str) and not isinstance(name, bool) else None
    return JSONRPCError(
        jsonrpc="2.0", id=request_id, error=ErrorData(code=INVALID_REQUEST, message=NO_REQUEST)
    )
