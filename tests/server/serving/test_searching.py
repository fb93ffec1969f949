"""`/search` of the server on a real node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from fastapi.testclient import TestClient

from hybridr import Search, load_encoder
from hybridr.cluster.connection import Cluster
from hybridr.encoders.export.exporting import export
from hybridr.errors import DataError, FingerprintMismatch, NotFound
from hybridr.indexing.reindexing import reindex
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.corpus import drop_indices, fill_index, filled_and_reindexed, reindexed, text_number
from support.hashing import HashingEncoder
from support.tiny import tiny_retriever


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[tuple[TestClient, str]]:
    with filled_and_reindexed(cluster, "t-served", 60) as name:
        yield TestClient(create_app(HashingEncoder(), ServeSettings(index=name), cluster=cluster)), name


@pytest.mark.parametrize("mode", ["lexical", "dense", "hybrid"])
def test_search_answers_as_the_library_does(served, cluster, mode):
    client, index = served
    answer = client.post("/search", json={"query": text_number(7), "k": 5, "mode": mode})
    expected = Search(cluster, index, HashingEncoder(), mode)(text_number(7), 5)
    assert answer.status_code == 200
    assert answer.json()["mode"] == mode
    assert [hit["doc_id"] for hit in answer.json()["hits"]] == [hit.doc_id for hit in expected]
    assert [hit["score"] for hit in answer.json()["hits"]] == pytest.approx([hit.score for hit in expected])
    assert answer.json()["hits"][0]["doc_id"] == "d7"


def test_a_query_of_100_000_characters(served):
    answer = served[0].post("/search", json={"query": "word " * 20_000})
    assert answer.status_code == 422
    assert "more words than the cluster allows" in answer.json()["error"]["message"]
    one_word = served[0].post("/search", json={"query": "x" * 100_000})
    assert one_word.status_code == 200


def test_an_index_that_goes_away_is_not_found(cluster, index_name):
    reindexed(cluster, index_name, 5)
    client = TestClient(create_app(HashingEncoder(), ServeSettings(index=index_name), cluster=cluster))
    drop_indices(cluster, f"{index_name}*")
    assert client.post("/search", json={"query": "x"}).status_code == 404


def test_the_app_is_refused_where_it_could_not_search(cluster, index_name):
    with pytest.raises(NotFound, match=f"no index or alias '{index_name}'"):
        create_app(HashingEncoder(), ServeSettings(index=index_name), cluster=cluster)
    fill_index(cluster, index_name, 5)
    with pytest.raises(DataError, match="has no vectors"):
        create_app(HashingEncoder(), ServeSettings(index=index_name), cluster=cluster)
    reindex(cluster, index_name, HashingEncoder())
    with pytest.raises(FingerprintMismatch, match="were written by encoder"):
        create_app(HashingEncoder(salt="other"), ServeSettings(index=index_name), cluster=cluster)


def test_the_command_refuses_another_encoder(cluster, index_name, tiny, cli):
    reindexed(cluster, index_name, 5)
    said = cli(cluster, f"serve --index {index_name} --encoder {tiny} --port 0", code=1)
    assert "were written by encoder" in said.err


def test_one_ranking_whoever_asks(cluster, index_name, tmp_path, monkeypatch, cli):
    """What `[search]` says holds for `hybridr search`, for /search and for /v1/rank."""
    ranking = '[search]\nrecall = "lexical"\ndense_weight = 0.9\nsignals = ["phrases"]\ndepth = 20\n'
    (tmp_path / "hybridr.toml").write_text(ranking)
    monkeypatch.chdir(tmp_path)
    fill_index(cluster, index_name, 60, settings={"number_of_shards": 3})
    folder = str(export(tiny_retriever(), tmp_path / "encoder"))
    reindex(cluster, index_name, load_encoder(folder))
    asked = [index_name, text_number(7), "-k", "10", "--encoder", folder, "--url", cluster.url, "--json"]
    expected = {hit["doc_id"]: hit["score"] for hit in cli.typed(["search", *asked]).json["hits"]}
    environment = os.environ | {"HYBRIDR_SERVE_RANK_TIMEOUT_S": "5"}
    command = ["serve", "--url", cluster.url, "--index", index_name, "--encoder", folder, "--port", "0"]
    server = subprocess.Popen(
        [sys.executable, "-m", "hybridr_cli", *command, "--json"], stdout=subprocess.PIPE, env=environment
    )
    try:
        url = json.loads(server.stdout.readline())["url"]
        found = httpx.post(f"{url}/search", json={"query": text_number(7), "k": 10}, timeout=30).json()
        assert {hit["doc_id"]: hit["score"] for hit in found["hits"]} == pytest.approx(expected, rel=1e-6)
        own = {"query": {"match": {"text": {"query": text_number(7)}}}, "size": 10}
        asked = httpx.post(f"{url}/v1/rank", json=own, params={"recall": "lexical"}, timeout=30)
        body = json.loads(asked.json()["body"])
        hits = cluster.search(f"{index_name}-hybridr", body)["hits"]["hits"]
        assert {hit["_id"]: hit["_score"] for hit in hits} == pytest.approx(expected, rel=1e-6)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)
