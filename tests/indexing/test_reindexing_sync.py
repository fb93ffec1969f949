"""How sync reads lengths of time and goes on while the cluster is away, without a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.errors import ClusterError, SettingsError, Unreachable
from hybridr.indexing import reindexing
from support.hashing import HashingEncoder


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    "failure", [Unreachable("nothing answers"), ClusterError("busy", status=429)], ids=["away", "busy"]
)
def test_rounds_wait_for_a_cluster_that_is_away_or_busy(monkeypatch, failure: ClusterError) -> None:
    clock, began, away = Clock(), [], {2, 3, 5, 6, 7, 8}

    def sync(*_: Any, **__: Any) -> str:
        began.append(clock.now)
        clock.sleep(4.0)
        if len(began) in away:
            raise failure
        return f"round {len(began)}"

    monkeypatch.setattr(reindexing, "sync", sync)
    monkeypatch.setattr(reindexing, "time", clock)
    endless = reindexing.sync_rounds(
        cast(Cluster, None), "x", HashingEncoder(), ReindexSettings(patience_s=60), every_s=30
    )
    assert [next(endless), next(endless)] == ["round 1", "round 4"]
    with pytest.raises(ClusterError, match=failure.message):
        next(endless)
    assert began == [0, 30, 60, 90, 120, 150, 180]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("1h", 3600), ("45", 45), ("1.5 m", 90)]
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert reindexing.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0s", "-5s", "5 days", "s", "1e3"])
def test_what_is_no_length_of_time(text: str) -> None:
    with pytest.raises(SettingsError, match="is not a length of time"):
        reindexing.parse_duration(text)
