"""A proxy that answers as the cluster does, and asks the other ranking behind it."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hybridr.cluster.connection import Cluster
from hybridr.errors import ClusterError, DataError, SettingsError
from hybridr.relevance.shadows import ShadowedRequest, ShadowFile
from hybridr.serving import shadow_proxy, snapshots
from hybridr.serving.application import create_app, open_server
from hybridr.serving.settings import ServeSettings
from serving.test_searching import KnowingSearch
from support.hashing import HashingEncoder
from support.recorder import Recorder, recording
from support.waiting import wait_until

BODY = {"query": {"match": {"text": "two words"}}, "size": 3}
BASIC = {"authorization": "Basic dTpw"}
HITS = b'{"took": 3,  "hits":{"hits":[{"_id":"a"},{"_id":"b"}]}}'


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Recorder]:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    monkeypatch.setattr(snapshots, "Search", KnowingSearch)
    monkeypatch.setattr(shadow_proxy.ShadowingProxy, "is_followed_name", lambda *of: of[1] == of[2].name)
    with recording() as running:
        running.answers = [(200, HITS)]
        yield running


def client_of(cluster: Recorder, share: float = 1.0) -> TestClient:
    given = ServeSettings(index="docs", proxy="lexical", shadow=share, rank_timeout_s=30)
    return TestClient(create_app(HashingEncoder(), given, cluster=Cluster(None, cluster.url)))


def kept() -> list[dict[str, Any]]:
    file = ShadowFile(KnowingSearch.info).path
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines if line]


def test_the_client_gets_the_clusters_answer_and_the_other_one_is_asked_with_its_rights(cluster):
    raw = b'{"query" :  {"match": {"text": "two words"}}}'
    sent = {"content-type": "application/json", **BASIC}
    answer = client_of(cluster).post("/docs/_search?size=2", content=raw, headers=sent)
    assert answer.content == HITS
    wait_until(lambda: len(kept()) == 1)
    own, other = cluster.heard
    assert (own.line, own.body) == ("POST /docs/_search?size=2", raw)
    assert (other.line, other.headers["authorization"]) == ("POST /docs/_search", BASIC["authorization"])
    assert json.loads(other.body)["rescore"]
    [entry] = kept()
    assert (entry["text"], entry["old"], entry["new"]) == ("two words", ["a", "b"], ["a", "b"])


def test_what_is_not_ranked_is_counted_by_its_reason(cluster: Recorder) -> None:
    client = client_of(cluster)
    client.post("/docs/_search", json=BODY | {"sort": ["price"]})
    client.post("/docs/_search?scroll=1m", json=BODY)
    client.post("/other/_search", json=BODY)
    lines = b"{}\n" + json.dumps(BODY).encode() + b'\n{"index": "other"}\n{"query": {"match_all": {}}}\n'
    cluster.answers = [(200, b'{"responses":[%b,%b]}' % (HITS, HITS)), (200, HITS)]
    client.post("/docs/_msearch", content=lines, headers={"content-type": "application/x-ndjson"})
    wait_until(lambda: len(kept()) == 3)
    assert [one["reason"] or one["text"] for one in kept()] == ["sort", "scroll", "two words"]


def test_zipped_requests_and_odd_answers_disturb_nobody(cluster: Recorder) -> None:
    client = client_of(cluster)
    packed = {"content-type": "application/json", "content-encoding": "gzip"}
    cluster.answers = [(200, b"no json"), (200, b'{"took":1}'), (200, HITS)]
    assert client.post("/docs/_search", json=BODY).content == b"no json"
    assert client.post("/docs/_search?filter_path=took", json=BODY).content == b'{"took":1}'
    client.post("/docs/_search", content=gzip.compress(json.dumps(BODY).encode()), headers=packed)
    wait_until(lambda: len(kept()) == 1)
    assert kept()[0]["text"] == "two words"


def test_after_ten_failures_the_other_ranking_is_left_alone(cluster: Recorder, monkeypatch) -> None:
    def fails(entry: ShadowedRequest, *_: Any) -> ShadowedRequest:
        return ShadowedRequest("u", error="gone")

    monkeypatch.setattr(shadow_proxy, "compared_request", fails)
    client = client_of(cluster)
    for count in range(1, 11):
        assert client.post("/docs/_search", json=BODY).content == HITS
        wait_until(lambda count=count: len(kept()) >= count)
    wait_until(lambda: "stopped" in kept()[-1])
    for _ in range(5):
        assert client.post("/docs/_search", json=BODY).content == HITS
    assert len(kept()) == 11
    _, stopped = ShadowFile(KnowingSearch.info).read(KnowingSearch.info)
    assert stopped == "10 requests in a row failed, the last one: gone"


def test_ten_requests_that_could_not_be_compared_at_all_stop_it_too(cluster: Recorder, monkeypatch) -> None:
    def refused(*_: Any) -> bool:
        raise ClusterError("the server's user may not read 'docs'", status=403)

    monkeypatch.setattr(shadow_proxy.ShadowingProxy, "is_followed_name", refused)
    client = client_of(cluster)
    for _ in range(10):
        assert client.post("/docs/_search", json=BODY).content == HITS
    wait_until(lambda: bool(kept()))
    with pytest.raises(DataError, match="stopped: 10 requests in a row failed, the last one: ClusterError"):
        ShadowFile(KnowingSearch.info).read(KnowingSearch.info)


def test_while_the_shadow_is_busy_requests_are_skipped_and_counted(cluster: Recorder, monkeypatch) -> None:
    def waits(entry: ShadowedRequest, *_: Any) -> ShadowedRequest:
        time.sleep(0.3)
        return ShadowedRequest("u", "two words", old=("a",), new=("a",))

    monkeypatch.setattr(shadow_proxy, "compared_request", waits)
    monkeypatch.setattr(shadow_proxy, "MAX_WAITING", 1)
    client = client_of(cluster)
    for _ in range(8):
        assert client.post("/docs/_search", json=BODY).content == HITS
    wait_until(lambda: len(kept()) >= 2)
    assert sum(entry["skipped"] for entry in kept()) >= 5


def test_a_share_of_none_and_a_shadow_without_a_proxy(cluster: Recorder) -> None:
    client_of(cluster, share=1e-12).post("/docs/_search", json=BODY)
    time.sleep(0.1)
    assert len(cluster.heard) == 1
    with pytest.raises(SettingsError, match="--shadow needs --proxy"):
        open_server(ServeSettings(shadow=0.5))
