"""One JSON object per line: what was asked of the server, without the text of queries."""

from __future__ import annotations

import logging
import traceback
from datetime import datetime, timezone
from typing import Any

import orjson
from fastapi import Request

LOGGER = logging.getLogger("hybridr.serving")
FACTS = "hybridr.facts"
PROBES = {"/healthz", "/metrics"}  # asked every few seconds by machines


class JsonLines(logging.Formatter):
    """Write records as JSON; control characters in a text cannot break a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Give one line: time in UTC, level, event, and the record's facts."""
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1]:
            line |= described(record.exc_info[1])
        return orjson.dumps(line, default=str).decode()


def configuration(level: str) -> dict[str, Any]:
    """Give what `logging.config.dictConfig` needs to send the server's log to stderr from `level` on."""
    loggers = {LOGGER.name: level.upper(), "uvicorn": "WARNING"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"()": f"{__name__}.JsonLines"}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "loggers": {
            name: {"handlers": ["stderr"], "level": at, "propagate": False} for name, at in loggers.items()
        },
    }


def note(request: Request, **facts: Any) -> None:
    """Add facts to the line that the request ends with."""
    request.scope.setdefault(FACTS, {}).update(facts)


def described(error: BaseException) -> dict[str, Any]:
    """Name an error and where it came from; its message may repeat what a client sent."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": type(error).__name__, "raised_at": places}


def log_request(facts: dict[str, Any]) -> None:
    """Write the line of one request: probes only for those who want everything."""
    level = logging.ERROR if facts["status"] >= 500 else logging.INFO
    level = logging.DEBUG if facts["route"] in PROBES and level == logging.INFO else level
    LOGGER.log(level, "request", extra={"facts": facts})
