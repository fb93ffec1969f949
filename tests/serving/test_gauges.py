"""What a sync that goes on tells Prometheus, and the dashboard that shows it with what the server tells."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client import generate_latest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.failures import api_of
from hybridr.errors import AccessDenied, ClusterError, NotFound, SettingsError, Unreachable
from hybridr.indexing.reindexing import SyncResult
from hybridr.serving.gauges import SyncGauges
from hybridr.serving.telemetry import Metrics

DASHBOARD = Path(__file__).parents[2] / "opensearch" / "dashboards" / "grafana.json"


def test_rounds_are_told_where_prometheus_asks() -> None:
    gauges = SyncGauges("docs")
    gauges.count(SyncResult("docs", "docs-hybridr-1", 3, 1, 2, 4, 5, "2026-01-01T00:00:00", 0.3))
    port = gauges.serve("0")
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    for line in (
        'hybridr_sync_documents_total{index="docs",what="copied"} 3.0',
        'hybridr_sync_documents_total{index="docs",what="renewed"} 2.0',
        'hybridr_sync_refused{index="docs"} 5.0',
        'hybridr_sync_waiting{index="docs"} 4.0',
        'hybridr_sync_round_seconds_count{index="docs"} 1.0',
    ):
        assert line in text.splitlines()
    assert re.search(r'hybridr_sync_worked_timestamp_seconds\{index="docs"\} [\d.]+e\+09', text)
    with pytest.raises(SettingsError, match="no metrics at"):
        SyncGauges("docs").serve(str(port))
    for wrong in ("", "port", "1:2:3:", "99999"):
        with pytest.raises(SettingsError, match="is not an address for metrics"):
            SyncGauges("docs").serve(wrong)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (None, ""),
        (Unreachable("nothing answers"), "unreachable"),
        (Unreachable("did not answer in time", kind="late"), "late"),
        (Unreachable("not ready", status=503), "unreachable"),
        (ClusterError("too many", status=429), "busy"),
        (ClusterError("full", status=429, kind="cluster_block_exception"), "refused"),
        (AccessDenied("forbidden", status=403), "denied"),
        (NotFound("no such index", status=404), "missing"),
        (ClusterError("parse error", status=400), "refused"),
    ],
)
def test_requests_are_counted_by_api_and_kind_of_failure(failure: ClusterError | None, kind: str) -> None:
    class Client:
        def send(self, *_: object) -> dict[str, int]:
            if failure is not None:
                raise failure
            return {}

    gauges = SyncGauges("docs")
    cluster = Cluster(Client(), "http://there")  # type: ignore[arg-type]
    cluster.watch = gauges.calls
    with pytest.raises(type(failure)) if failure else nullcontext():
        cluster.request("POST", "/docs/_bulk", {})
    text = generate_latest(gauges.registry).decode()
    assert 'hybridr_cluster_seconds_count{api="_bulk"} 1.0' in text
    found = re.findall(r'hybridr_cluster_failures_total\{api="_bulk",kind="(\w+)"\} 1.0', text)
    assert found == ([kind] if kind else [])


@pytest.mark.parametrize(
    ("path", "api"),
    [
        ("/docs/_search?x=1", "_search"),
        ("/docs/_doc/_secret", "_doc"),
        ("/", "root"),
        ("/docs", "index"),
        ("/_cluster/health/docs", "_cluster"),
    ],
)
def test_the_name_of_an_api_is_nobodys_to_choose(path: str, api: str) -> None:
    assert api_of(path) == api


def test_the_dashboard_shows_what_is_exported_all_of_it() -> None:
    shown = set(re.findall(r"hybridr_\w+", json.dumps(json.loads(DASHBOARD.read_text())["panels"])))
    exported = set()
    for registry in (SyncGauges("docs").registry, Metrics().registry):
        exported |= {family.name for family in registry.collect()}
    endings = r"_(total|bucket|sum|count)$"
    assert {re.sub(endings, "", name) for name in shown} == exported
