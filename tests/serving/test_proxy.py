"""The proxy by itself: whose rights a search has, what is sent byte by byte, what follows a refusal."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from fastapi.testclient import TestClient

from hybridr.cluster.connection import Cluster
from hybridr.serving import snapshots
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from serving.test_searching import KnowingSearch
from support.hashing import HashingEncoder
from support.recorder import Recorder, recording

BODY = {"query": {"match": {"text": "two words"}}, "size": 3}
BASIC = {"authorization": "Basic dTpw"}
NDJSON = {"content-type": "application/x-ndjson"}
OTHER = b'{"index": "other"}\n{"query":  {"match_all": {}}}\n'
SEARCHES = b"{}\n" + json.dumps(BODY).encode() + b"\n" + OTHER


@pytest.fixture
def cluster() -> Iterator[Recorder]:
    with recording() as running:
        yield running


def client_of(cluster: Recorder, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> TestClient:
    monkeypatch.setattr(snapshots, "Search", KnowingSearch)
    given = ServeSettings(index="docs", proxy="lexical", rank_timeout_s=30, **settings)
    return TestClient(create_app(HashingEncoder(), given, cluster=Cluster(None, cluster.url)))


@pytest.fixture
def client(cluster: Recorder, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    return client_of(cluster, monkeypatch)


def test_a_ranked_search_has_its_clients_rights(client: TestClient, cluster: Recorder) -> None:
    address = "/docs/_search?typed_keys&from=2&filter_path=hits"
    assert client.post(address, json=BODY, headers=BASIC).status_code == 200
    [heard] = cluster.heard
    whole = "allow_partial_search_results=false"
    assert heard.line == f"POST /docs/_search?typed_keys=&filter_path=hits&{whole}"
    assert heard.headers["authorization"] == BASIC["authorization"]
    sent = json.loads(heard.body)
    assert (sent["from"], sent["size"]) == (2, 3)
    assert sent["rescore"]
    assert sent["_source"] == {"excludes": ["v"]}


@pytest.mark.parametrize("token", [None, "secret"])
@pytest.mark.parametrize(
    "path", ["/docs/_search/", "/docs/_search//", "/docs,/_search", "/docs/_search/?pretty"]
)
def test_every_form_of_an_address_that_a_cluster_takes_is_ranked(cluster, monkeypatch, path, token):
    client = client_of(cluster, monkeypatch, **({"token": token} if token else {}))
    answer = client.post(path, json=BODY, headers={"x-hybridr-token": token or ""}, follow_redirects=False)
    assert answer.status_code == 200
    [heard] = cluster.heard
    assert heard.line.partition("?")[0] == "POST /docs/_search"
    assert json.loads(heard.body)["rescore"]


def test_no_address_is_answered_by_another_one(client: TestClient) -> None:
    for path in ("/search/", "/v1/rank/", "/healthz/", "/docs/_search/template"):
        assert client.post(path, json=BODY, follow_redirects=False).status_code == 404


def test_a_browser_may_ask_the_cluster_beforehand(client: TestClient, cluster: Recorder) -> None:
    origin = {"origin": "https://shop.example", "access-control-request-method": "POST"}
    assert client.options("/docs/_search", headers=origin).status_code == 200
    [heard] = cluster.heard
    assert (heard.line, heard.body) == ("OPTIONS /docs/_search", b"")
    assert heard.headers["origin"] == origin["origin"]
    refused = client.delete("/docs/_search")
    assert (refused.status_code, set(refused.headers["allow"].split(", "))) == (405, {"GET", "POST"})


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/other,docs/_search", {}),
        ("/doc*/_search?preference=a", {}),
        ("/_all/_search", {}),
        ("/_search", {}),
        ("/%3Clogs-%7Bnow%2Fd%7D%3E/_search", {}),
        ("/docs/_search?scroll=1m", {}),
        ("/docs/_search", {"authorization": "AWS4-HMAC-SHA256 Credential=x"}),
        ("/docs/_search", {"content-type": "application/yaml"}),
    ],
)
def test_what_cannot_be_ranked_goes_through_byte_by_byte(client, cluster, path, headers):
    raw = b'{"query" :  {"match": {"text": "two words"}}}'
    client.post(path, content=raw, headers={"content-type": "application/json", **headers})
    [heard] = cluster.heard
    assert (heard.line, heard.body) == (f"POST {path}", raw)


def test_a_body_that_is_refused_goes_again_as_it_was(client: TestClient, cluster: Recorder) -> None:
    cluster.answers = [(400, b'{"error":"no such field"}'), (200, b'{"took":1}')]
    answer = client.post("/docs/_search", json=BODY, headers=BASIC)
    assert (answer.status_code, answer.json()) == (200, {"took": 1})
    assert json.loads(cluster.heard[1].body) == BODY
    for status in (401, 403, 429):
        cluster.answers, cluster.heard = [(status, b"{}")], []
        assert client.post("/docs/_search", json=BODY).status_code == status
        assert len(cluster.heard) == 1


def test_what_was_ranked_for_the_index_that_an_alias_left_goes_again_as_it_was(client, cluster):
    """A vector of the old encoder scores the new index's documents without an error, where widths agree."""

    def answer(index: str, text: str = "", indent: int | None = None) -> bytes:
        hit = {"_index": index, "_id": "a", "_source": {"log": {"_index": text}}}
        return json.dumps({"hits": {"hits": [hit]}}, indent=indent).encode()

    name = "docs"
    for indent in (None, 2):
        cluster.answers, cluster.heard = [(200, answer("moved-2", "", indent)), (200, answer("moved-2"))], []
        assert client.post("/docs/_search", json=BODY).content == answer("moved-2")
        assert json.loads(cluster.heard[0].body)["rescore"]
        assert json.loads(cluster.heard[1].body) == BODY
    cluster.answers, cluster.heard = [(200, answer(name, "of a log"))], []
    assert client.post("/docs/_search", json=BODY).content == answer(name, "of a log")
    assert len(cluster.heard) == 1
    both = b'{"responses":[%b,%b]}' % (answer("moved-2"), b'{"hits":{"hits":[]}}')
    cluster.answers, cluster.heard = [(200, both)], []
    raw = (b"{}\n" + json.dumps(BODY).encode() + b"\n") * 2
    client.post("/docs/_msearch", content=raw, headers=NDJSON)
    assert cluster.heard[1].body == raw
    assert 'reason="another_index"} 4.0' in client.get("/metrics").text


def test_the_servers_own_token_comes_in_another_header(cluster: Recorder, monkeypatch) -> None:
    client = client_of(cluster, monkeypatch, token="secret")
    for wrong in ({}, {"authorization": "Bearer secret"}, {"x-hybridr-token": "other"}):
        answer = client.post("/docs/_search", json=BODY, headers=wrong)
        assert answer.status_code == 401
        assert "X-Hybridr-Token" in answer.text
    assert not cluster.heard
    both = {"x-hybridr-token": "secret", "authorization": "Bearer theirs"}
    assert client.post("/docs/_search", json=BODY, headers=both).status_code == 200
    [heard] = cluster.heard
    assert heard.headers["authorization"] == "Bearer theirs"
    assert "x-hybridr-token" not in heard.headers
    assert client.get("/v1/index", headers={"x-hybridr-token": "secret"}).status_code == 401


def test_lines_of_several_searches(client: TestClient, cluster: Recorder) -> None:
    client.post("/docs/_msearch", content=SEARCHES, headers=NDJSON)
    [heard] = cluster.heard
    lines = heard.body.split(b"\n")
    assert json.loads(lines[1])["rescore"]
    assert b"\n".join(lines[2:]) == OTHER
    for odd in (b"{}\n", b"[]\n[]\n", b"", b"{\n{}\n"):
        client.post("/_msearch", content=odd, headers=NDJSON)
        assert cluster.heard[-1].body == odd


def test_several_searches_go_again_only_where_a_ranked_one_is_refused(client, cluster):
    fine = {"hits": {"hits": [{"_source": {"error": "of a log"}}]}}
    refused = {"error": {"type": "x"}, "status": 400}
    for answers, requests in (([fine, fine], 1), ([fine, refused], 1), ([refused, fine], 2)):
        for indent in (None, 2):  # as with ?pretty
            body = json.dumps({"responses": answers}, indent=indent).encode()
            cluster.answers, cluster.heard = [(200, body)], []
            assert client.post("/docs/_msearch", content=SEARCHES, headers=NDJSON).content == body
            assert len(cluster.heard) == requests
    assert 'reason="failed"} 2.0' in client.get("/metrics").text


def test_where_the_cluster_runs_no_scripts_a_first_search_finds_what_the_second_scores(
    client: TestClient, cluster: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnowingSearch.once, "asks_once", False)
    cluster.answers = [(200, b'{"hits": {"hits": [{"_id": "a"}]}}'), (200, b"{}")]
    assert client.post("/docs/_search?routing=7", json=BODY).status_code == 200
    first, second = cluster.heard
    assert (first.line, second.line) == ("POST /docs/_search?routing=7", "POST /docs/_search?routing=7")
    assert json.loads(first.body)["_source"] is False
    assert "rescore" not in json.loads(first.body)
    assert json.loads(second.body)["rescore"]


def missing(kind: str) -> dict[str, Any]:
    """An answer that lacks the hits of one shard of two."""
    failures = [{"shard": 1, "reason": {"type": kind, "reason": "x"}}]
    return {"_shards": {"total": 2, "successful": 1, "failed": 1, "failures": failures}, "hits": {"hits": []}}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["script_exception", "query_shard_exception", "too_many_clauses"])
def test_hits_that_ranking_loses_on_a_shard_are_asked_for_again(client, cluster, kind, packed):
    whole = b'{"hits":{"hits":[]}}'
    lost = json.dumps(missing(kind)).encode()
    if packed:
        cluster.headers["content-encoding"] = "gzip"
        whole, lost = gzip.compress(whole), gzip.compress(lost)
    cluster.answers = [(200, lost), (200, whole)]
    assert client.post("/docs/_search", json=BODY).json() == {"hits": {"hits": []}}
    ranked, own = cluster.heard
    assert json.loads(ranked.body)["rescore"]
    assert json.loads(own.body) == BODY


@pytest.mark.parametrize("status", [400, 429, 503])
def test_hits_that_a_filtered_answer_would_lack_in_silence_are_asked_for_again(client, cluster, status):
    """Before, an answer of `filter_path` told nothing of the shards whose hits ranking had lost."""
    cluster.answers = [(status, b"{}"), (200, b'{"hits":{"hits":[]}}')]
    address = "/docs/_search?filter_path=hits.hits._id"
    assert client.post(address, json=BODY).json() == {"hits": {"hits": []}}
    ranked, own = cluster.heard
    assert ranked.line == f"POST {address}&allow_partial_search_results=false"
    assert (own.line, json.loads(own.body)) == (f"POST {address}", BODY)


@pytest.mark.parametrize("kind", ["no_shard_available_action_exception", "rejected_execution_exception"])
def test_shards_that_are_away_are_not_asked_twice(client: TestClient, cluster: Recorder, kind: str) -> None:
    cluster.answers = [(200, json.dumps(missing(kind)).encode())]
    assert client.post("/docs/_search", json=BODY).json() == missing(kind)
    assert len(cluster.heard) == 1


def test_of_several_searches_only_what_the_cluster_refuses_goes_as_it_came(client, cluster):
    fine, refused = {"hits": {"hits": []}, "status": 200}, {"error": {"type": "x"}, "status": 400}
    for second in (refused, missing("script_exception")):
        cluster.heard.clear()
        answers = [[fine, second, fine], [fine, fine, fine]]
        cluster.answers = [(200, json.dumps({"responses": parts}).encode()) for parts in answers]
        lines = b"".join(b"{}\n%b\n" % json.dumps(BODY).encode() for _ in range(3))
        answer = client.post("/docs/_msearch", content=lines, headers=NDJSON)
        assert answer.json()["responses"] == answers[1]
        first, again = (heard.body.splitlines()[1::2] for heard in cluster.heard)
        assert [b"rescore" in body for body in first] == [True, True, True]
        assert [b"rescore" in body for body in again] == [True, False, True]


def test_requests_are_counted_by_the_pattern_of_their_path(client: TestClient) -> None:
    client.post("/docs/_search", json=BODY)
    assert (
        'hybridr_requests_total{route="/{index:path}/_search",status="200"} 1.0'
        in client.get("/metrics").text
    )


def test_without_the_setting_there_is_no_such_path(cluster: Recorder, monkeypatch) -> None:
    monkeypatch.setattr(snapshots, "Search", KnowingSearch)
    app = create_app(HashingEncoder(), ServeSettings(index="docs"), cluster=Cluster(None, cluster.url))
    assert TestClient(app).post("/docs/_search", json=BODY).status_code == 404


def in_address(body: object, kind: str = "application/json", **params: str) -> str:
    return "/docs/_search?" + urlencode({"source": json.dumps(body), "source_content_type": kind, **params})


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("kind", ["application/json", "application/vnd.elasticsearch+json;compatible-with=8"])
def test_a_body_in_the_address_is_ranked_as_any_other(client, cluster, method, kind):
    address = in_address(BODY, kind, filter_path="hits")
    client.request(method, address, headers={"content-type": "text/plain"})
    client.post("/docs/_search?filter_path=hits", json=BODY)
    moved, plain = cluster.heard
    assert moved.line == f"{method} /docs/_search?filter_path=hits&allow_partial_search_results=false"
    assert moved.headers["content-type"] == "application/json"
    assert json.loads(moved.body) == json.loads(plain.body)
    assert json.loads(moved.body)["rescore"]


def test_a_body_in_the_address_that_is_not_ranked_shows_no_vectors(client, cluster):
    client.get(in_address({"query": {"match_all": {}}}))
    assert json.loads(cluster.heard[0].body) == {"query": {"match_all": {}}, "_source": {"excludes": ["v"]}}
    cluster.answers = [(400, b"{}"), (200, b"{}")]
    address = in_address(BODY)
    assert client.get(address).status_code == 200
    assert parse_qsl(cluster.heard[-1].line) == parse_qsl(f"GET {address}")
    assert cluster.heard[-1].body == b""


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("source=%7B%7D", b""),
        ("source=%7B%7D&source_content_type=application/yaml", b""),
        ("source=%7B%7D&source_content_type=application/json", b'{"query": {"match": {"text": "words"}}}'),
        ("source=%7B&source_content_type=application/json", b""),
        ("source=%5B%5D&source_content_type=application/json", b""),
    ],
)
def test_an_odd_body_in_the_address_goes_on_as_it_was(client, cluster, query, body):
    client.post(f"/docs/_search?{query}", content=body, headers={"content-type": "application/json"})
    [heard] = cluster.heard
    assert (heard.line, heard.body) == (f"POST /docs/_search?{query}", body)
