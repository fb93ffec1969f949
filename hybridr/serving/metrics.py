"""What the server counts, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOKENS = (16, 64, 256, 1024, 2048, 4096, 8192)


class Metrics:
    """The counters of one app; several apps in a process do not mix."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "hybridr_requests", "Requests answered", ["route", "status"], registry=registry
        )
        self.seconds = Histogram(
            "hybridr_request_seconds", "Time to the answer", ["route"], buckets=SECONDS, registry=registry
        )
        self.batch_texts = Histogram(
            "hybridr_batch_texts", "Texts encoded together", buckets=TEXTS, registry=registry
        )
        self.batch_tokens = Histogram(
            "hybridr_batch_tokens", "Tokens encoded together", buckets=TOKENS, registry=registry
        )
        self.cache_hits = Counter("hybridr_cache_hits", "Queries found in the cache", registry=registry)
        self.cache_misses = Counter("hybridr_cache_misses", "Queries not in the cache", registry=registry)
        self.queue = Gauge("hybridr_queue_texts", "Texts that wait for the encoder", registry=registry)

    def watch_queue(self, length: Callable[[], int]) -> None:
        """Ask `length` for the texts that wait, whenever the metrics are read."""
        self.queue.set_function(length)

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def count_batch(self, texts: int, tokens: int) -> None:
        """Count one call of the encoder."""
        self.batch_texts.observe(texts)
        self.batch_tokens.observe(tokens)

    def count_lookups(self, hits: int, misses: int) -> None:
        """Count the queries that were looked up in the cache."""
        self.cache_hits.inc(hits)
        self.cache_misses.inc(misses)

    def text(self) -> bytes:
        """Give the metrics as Prometheus reads them."""
        return generate_latest(self.registry)
