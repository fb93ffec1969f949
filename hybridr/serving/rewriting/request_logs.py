"""Requests of an application, read from a file that holds them as JSON, one a line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import DataError
from ...files.foreign import numbered_lines, parsed_json

MOST_REQUESTS = 20_000
FORM = 'one request a line: a search body, or {"path": "/docs/_search?from=10", "body": {…}}'


class LoggedRequest(NamedTuple):
    """A request and its line: a search body, or `{"path": …, "params": …, "body": …}`."""

    line: int
    request: Mapping[str, Any]


@dataclass(frozen=True)
class RequestLog:
    """The requests of a file in its order, and the lines that could not be read."""

    requests: tuple[LoggedRequest, ...]
    unreadable: tuple[int, ...]


def read_requests(file: Path) -> RequestLog:
    """Return the requests of a file, plain or gzip.

    Raise DataError for a file without any request, or with more than MOST_REQUESTS.
    """
    requests: list[LoggedRequest] = []
    unreadable: list[int] = []
    try:
        for number, line in numbered_lines(file, "utf-8-sig", errors="replace"):
            if not line.strip():
                continue
            try:
                request = parsed_json(line)
            except (ValueError, RecursionError):
                request = None
            if isinstance(request, Mapping):
                requests.append(LoggedRequest(number, request))
            else:
                unreadable.append(number)
            if len(requests) > MOST_REQUESTS:
                raise ValueError(f"it holds more than {MOST_REQUESTS:,} requests, take a part of it")
        if not requests:
            raise ValueError("no request is in it")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", hint=f"needed is {FORM}") from None
    return RequestLog(tuple(requests), tuple(unreadable))
