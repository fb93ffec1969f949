"""The race of reindexing on real nodes; the figures themselves belong to benchmarks/."""

from __future__ import annotations

import json

import pytest

import run
from hybridr.cluster.remote_models import TRUSTED, missing_settings, trusted_pattern
from hybridr.encoders.opening import load_encoder
from hybridr.errors import NotFound
from hybridr_bench.corpora import spread_records
from hybridr_bench.reindexing import Lane, ReindexRace, over, race_reindex

pytestmark = [pytest.mark.node, pytest.mark.ml]


def test_all_ways_are_measured_and_nothing_stays(ml_cluster, minilm):
    before = ml_cluster.request("GET", "/_cluster/settings")
    indices = [info.name for info in ml_cluster.indices("*-hybridr-*")]
    race = race_reindex(
        ml_cluster,
        load_encoder(minilm),
        spread_records(None, 50),
        server_batches=(1, 16),
        server_documents=20,
    )
    record = race.record()
    assert [lane["name"] for lane in record["lanes"]] == [
        "encoding alone",
        "hybridr reindex",
        "_reindex, default settings",
        "_reindex, 1000 connections, batch_size 1",
        "_reindex, 1000 connections, batch_size 16",
    ]
    assert [lane.documents for lane in (race.alone, race.ours, *race.server)] == [50, 50, 20, 20, 20]
    assert not any(lane.failure for lane in race.server)
    assert 0 < race.ours.busy <= 1
    assert record["times_server_best"] <= record["times_server_default"]
    assert not ml_cluster.indices("hybridr-bench-*")
    assert [info.name for info in ml_cluster.indices("*-hybridr-*")] == indices
    assert ml_cluster.request("GET", "/_cluster/settings") == before
    with pytest.raises(NotFound):
        ml_cluster.request("GET", "/_ingest/pipeline/hybridr-bench-*")
    models = ml_cluster.request("POST", "/_plugins/_ml/models/_search", {"query": {"match_all": {}}})
    assert models["hits"]["total"]["value"] == 0


def test_a_way_that_does_not_arrive_is_told_and_not_counted():
    ours, slow = Lane("hybridr reindex", 100, 1.0), Lane("_reindex", 50, 1.0)
    dead = Lane("_reindex, default settings", 50, 0.0, failure="no connection")
    assert over(ours, [dead, slow]) == 2.0
    assert over(ours, [dead]) is None
    assert ReindexRace(ours, ours, (dead, slow)).record()["times_server_default"] is None


@pytest.mark.usefixtures("fresh_vectors")
def test_without_ml_commons_the_servers_way_is_not_run(cluster, tmp_path, minilm, capsys):
    file = tmp_path / "figures.json"
    command = ["speed", "reindex", "--url", cluster.url, "--json", str(file)]
    command += ["--documents", "40", "--server-batches", "1", "--encoder", str(minilm)]
    assert run.main(command) == 0
    assert "The server's own way was not run: " in capsys.readouterr().out
    found = json.loads(file.read_text())
    assert "opensearch-ml" in found["not_run"]
    assert found["times_server_best"] is None
    assert found["share_of_encoding"] > 0
    assert not cluster.indices("hybridr-bench-*")


def test_only_the_server_itself_becomes_trusted(ml_cluster):
    assert trusted_pattern("http://127.0.0.1:8080/") == r"^http://127\.0\.0\.1:8080/.*$"
    missing = missing_settings(ml_cluster, "https://encoder.example")
    assert missing[TRUSTED][-1] == r"^https://encoder\.example/.*$"
    stored = ml_cluster.request("GET", "/_cluster/settings?flat_settings=true")["persistent"]
    assert missing[TRUSTED][:-1] == stored.get(TRUSTED, []), "what was trusted stays so"
