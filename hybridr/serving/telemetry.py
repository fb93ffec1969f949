"""Metrics and log of the server: Prometheus counters, and one JSON line per request."""

from __future__ import annotations

import logging
import traceback
from datetime import datetime, timezone
from functools import partial
from typing import Any

import orjson
from fastapi import Request
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from ..search.clauses import NotRanked

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192)
LOGGER = logging.getLogger("hybridr.serving")
FACTS = "hybridr.facts"
UNCOUNTED = "unknown_words"
PROBES = {"/healthz", "/metrics"}  # asked every few seconds by machines


class ClusterCalls:
    """Metrics of the cluster's answers: seconds by API, failures by kind. A `Cluster` calls it for every
    request.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.seconds = Histogram(
            "hybridr_cluster_seconds", "Time of a request", ["api"], buckets=SECONDS, registry=registry
        )
        self.failures = Counter(
            "hybridr_cluster_failures", "Requests that failed", ["api", "kind"], registry=registry
        )

    def __call__(self, api: str, seconds: float, kind: str) -> None:
        """Count one request; `kind` is "" unless it failed."""
        self.seconds.labels(api).observe(seconds)
        if kind:
            self.failures.labels(api, kind).inc()


class Metrics:
    """The metrics of one app; several apps in a process do not mix."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self.requests = counter("hybridr_requests", "Requests answered", ["route", "status"])
        self.seconds = histogram("hybridr_request_seconds", "Time to the answer", ["route"], buckets=SECONDS)
        self.left_alone = counter(
            "hybridr_left_alone", "Searches that went on as their client wrote them", ["reason"]
        )
        self.batch_texts = histogram("hybridr_batch_texts", "Texts encoded together", buckets=TEXTS)
        self.batch_tokens = histogram("hybridr_batch_tokens", "Tokens encoded together", buckets=TOKENS)
        self.cache_hits = counter("hybridr_cache_hits", "Queries found in the cache")
        self.cache_misses = counter("hybridr_cache_misses", "Queries not in the cache")
        self.ubi = counter("hybridr_ubi", "Searches and events to be kept", ["index", "outcome"])
        self.calls = ClusterCalls(registry)
        self.queue = Gauge("hybridr_queue_texts", "Texts that wait for the encoder", registry=registry)

    def count_ranking(self, reason: NotRanked | None) -> None:
        """Count one search that was not ranked, by its reason.

        Searches whose words no document has are not counted: otherwise the metrics would reveal which words
        hidden documents have.
        """
        if reason is not None and reason.reason != UNCOUNTED:
            self.left_alone.labels(reason.reason).inc()

    def count_kept(self, index: str, outcome: str, records: int) -> None:
        """Count UBI searches or events that were written into an index, or had another outcome."""
        if records:
            self.ubi.labels(index, outcome).inc(records)

    def count_batch(self, texts: int, tokens: int) -> None:
        """Count one call of the encoder."""
        self.batch_texts.observe(texts)
        self.batch_tokens.observe(tokens)

    def text(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class JsonLines(logging.Formatter):
    """Formats log records as JSON lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line: time in UTC, level, event, and the record's facts."""
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info and record.exc_info[1]:
            line |= error_facts(record.exc_info[1])
        return orjson.dumps(line, default=str).decode()


def log_configuration(level: str) -> dict[str, Any]:
    """Return the configuration for `logging.config.dictConfig` that sends the server's log to stderr."""
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
    """Add facts to the log line of the request."""
    request.scope.setdefault(FACTS, {}).update(facts)


def note_ranking(request: Request, reason: NotRanked | None) -> None:
    """Add to the log line of the request whether a search was ranked, or why not."""
    about = {"about": reason.detail} if reason and reason.detail else {}
    note(request, rewritten=reason is None, reason=reason.reason if reason else None, **about)


def error_facts(error: BaseException) -> dict[str, Any]:
    """Return class and place of an error's root cause as facts for the log, without its message, which may
    quote a request.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)[-5:]
    places = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
    return {"error": type(error).__name__, "raised_at": places}
