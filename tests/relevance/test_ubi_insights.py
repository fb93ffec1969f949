"""What is to be kept is written by a thread nobody waits for; what cannot be is counted and gone."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.record import IndexInfo
from hybridr.errors import ClusterError, NotFound, Unreachable
from hybridr.relevance.clicks import ubi
from hybridr.relevance.clicks.ubi import EVENTS, QUERIES, UbiWriter


class Written:
    """A cluster that notes what it is sent; `failure` is raised by bulk requests, which wait for `open`."""

    url = "http://somewhere"
    reading_answer = Cluster.reading_answer

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}
        self.records: dict[str, list[dict[str, Any]]] = {}
        self.failure: Exception | None = None
        self.open = threading.Event()
        self.open.set()

    def indices(self, name: str) -> list[IndexInfo]:
        return [IndexInfo(name, {}, self.made[name], {})] if name in self.made else []

    def patiently(self, work: Callable[[], Any], patience_s: float) -> Any:
        return work()

    def request(self, method: str, path: str, body: Any, *_: Any, **__: Any) -> dict[str, Any]:
        if method == "PUT":
            self.made[path.strip("/")] = body["mappings"]
            return {}
        assert self.open.wait(10)
        if self.failure:
            raise self.failure
        index = path.strip("/").split("/")[0]
        lines = [json.loads(line) for line in body.splitlines()]
        assert lines[::2] == [{"create": {}}] * (len(lines) // 2)
        self.records.setdefault(index, []).extend(lines[1::2])
        statuses = [400 if one.get("odd") else 201 for one in lines[1::2]]
        return {
            "items": [
                {"create": {"status": status, "error": {"type": "t", "reason": "r"}}} for status in statuses
            ]
        }


@pytest.fixture(autouse=True)
def no_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ubi, "GATHERING_S", 0.01)


def opened(cluster: Written, most: int = ubi.WAITING_BYTES) -> tuple[UbiWriter, Counter[tuple[str, str]]]:
    counts: Counter[tuple[str, str]] = Counter()
    return UbiWriter(cluster, "docs", lambda *of: counts.update({of[:2]: of[2]}), most), counts  # type: ignore[arg-type]


def test_records_go_into_indices_in_the_form_of_ubi() -> None:
    cluster = Written()
    keeper, counts = opened(cluster)
    assert keeper.keep(QUERIES, [{"query_id": "q"}])
    assert keeper.keep(EVENTS, [{"query_id": "q"}, {"odd": True}, {"timestamp": "2026-11-02T00:00:00Z"}])
    keeper.end()
    assert cluster.made[QUERIES]["properties"]["query_attributes"] == {"type": "flat_object"}
    assert cluster.records[QUERIES][0]["timestamp"].endswith("Z")
    assert cluster.records[EVENTS][2]["timestamp"] == "2026-11-02T00:00:00Z"
    assert counts == Counter({(QUERIES, "written"): 1, (EVENTS, "written"): 2, (EVENTS, "refused"): 1})


def test_a_cluster_that_hangs_holds_nobody_up_and_takes_so_much_memory() -> None:
    cluster = Written()
    cluster.open.clear()
    keeper, counts = opened(cluster, most=1_000)
    kept = [keeper.keep(EVENTS, [{"query_id": "q" * 50}]) for _ in range(100)]
    assert kept[0]
    assert not kept[-1]
    assert counts[EVENTS, "no_room"] == kept.count(False) > 50
    cluster.open.set()
    keeper.end()
    assert len(cluster.records[EVENTS]) == kept.count(True) == counts[EVENTS, "written"]


@pytest.mark.parametrize(
    "failure", [Unreachable("gone"), ClusterError("full"), NotFound("no index"), ValueError("odd")]
)
def test_what_cannot_be_written_is_counted_and_later_records_are_written(failure: Exception) -> None:
    cluster = Written()
    cluster.failure = failure
    keeper, counts = opened(cluster)
    done = threading.Event()
    keeper.counted = lambda *of: (counts.update({of[:2]: of[2]}), done.set())[0]
    assert keeper.keep(EVENTS, [{"query_id": "lost"}])
    assert done.wait(10)
    cluster.failure = None
    assert keeper.keep(EVENTS, [{"query_id": "kept"}])
    keeper.end()
    assert counts[EVENTS, "failed"] == counts[EVENTS, "written"] == 1
    assert not keeper.keep(EVENTS, [{"query_id": "after the end"}])
