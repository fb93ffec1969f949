"""Prometheus metrics of `hybridr sync --every`: its rounds, the documents that wait, and the cluster's
answers.
"""

from __future__ import annotations

import re
import time
from functools import partial

from ..errors import SettingsError, extra
from ..indexing.reindexing import SyncResult

with extra("serve", "sync --metrics"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

    from .telemetry import SECONDS, ClusterCalls

LOCALHOST = "127.0.0.1"
COUNTERS = ("copied", "deleted", "renewed")


class SyncGauges:
    """The metrics of one process that syncs one index."""

    def __init__(self, index: str) -> None:
        self.index, self.registry = index, CollectorRegistry()
        self.calls = ClusterCalls(self.registry)
        registry, of_index = self.registry, ["index"]
        gauge = partial(Gauge, labelnames=of_index, registry=registry)
        self.documents = Counter(
            "hybridr_sync_documents", "Documents brought in", ["index", "what"], registry=registry
        )
        self.refused = gauge("hybridr_sync_refused", "Documents that the engine refuses")
        self.waiting = gauge("hybridr_sync_waiting", "Documents left to the next round")
        self.last_success = gauge(
            "hybridr_sync_worked_timestamp_seconds",
            "Start of the last round that succeeded: what was written before it is in",
        )
        self.seconds = Histogram(
            "hybridr_sync_round_seconds",
            "Time of a round",
            ["index"],
            buckets=SECONDS,
            registry=self.registry,
        )

    def count(self, result: SyncResult) -> None:
        """Count a round that succeeded."""
        for counter in COUNTERS:
            self.documents.labels(self.index, counter).inc(getattr(result, counter))
        self.refused.labels(self.index).set(result.rejected)
        self.waiting.labels(self.index).set(result.waiting)
        self.last_success.labels(self.index).set(time.time() - result.seconds)
        self.seconds.labels(self.index).observe(result.seconds)

    def serve(self, address: str) -> int:
        """Serve the metrics at `[HOST:]PORT`, by default for this machine only; return the port. Raises
        SettingsError.
        """
        match = re.fullmatch(r"(?:(\[?[\w.:-]+\]?):)?(\d{1,5})", address)
        if match is None or int(match[2]) > 65_535:
            raise SettingsError(
                f"'{address}' is not an address for metrics", hint="PORT or HOST:PORT, such as 9109"
            )
        try:
            server, _ = start_http_server(
                int(match[2]), (match[1] or LOCALHOST).strip("[]"), registry=self.registry
            )
        except OSError as error:
            raise SettingsError(f"no metrics at {address}: {error.strerror or error}") from None
        return int(server.server_port)
