"""doctor on a real node, embedded and so without native vectors."""

import json

import pytest
from hybridr_cli import main

from hybridr.cluster import Cluster, path_of
from hybridr.diagnosis import diagnose, probe_body
from hybridr.settings import ClusterSettings

pytestmark = pytest.mark.node


def test_a_complete_node_passes(cluster: Cluster) -> None:
    checks = {check.name: check for check in diagnose(ClusterSettings(url=cluster.url))}
    assert [check for check in checks.values() if check.ok is False] == []
    assert checks["cluster"].found == f"OpenSearch 3.6.0 at {cluster.url}"
    assert cluster.url in checks["node"].found
    assert checks["hybrid search"].found.endswith("fused score 1.00")
    assert checks["engines"].found == "lucene only: a faiss field would kill this embedded node"
    assert all(not check.fix for check in checks.values() if check.ok)


def test_nothing_is_left_behind(cluster: Cluster) -> None:
    before = cluster.request("GET", "/_cat/indices", params={"format": "json", "h": "index"})
    (rights,) = [check for check in diagnose(ClusterSettings(url=cluster.url)) if check.name == "rights"]
    assert "which was removed" in rights.found
    assert cluster.indices("hybridr-doctor-*") == []
    assert cluster.request("GET", "/_cat/indices", params={"format": "json", "h": "index"}) == before
    assert cluster.request("GET", "/_search/point_in_time/_all")["pits"] == []


def test_the_probe_never_asks_for_an_engine_that_kills(cluster: Cluster, index_name: str) -> None:
    cluster.request("PUT", path_of(index_name), probe_body(vectors=True))
    mapping = cluster.index_info(index_name).mappings["properties"]["vector"]
    assert mapping["method"]["engine"] == "lucene"


def test_a_block_of_the_cluster_is_told(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    block = "cluster.blocks.create_index"
    cluster.request("PUT", "/_cluster/settings", {"persistent": {block: True}})
    try:
        assert main(["doctor", "--url", cluster.url, "--quiet"]) == 1
    finally:
        cluster.request("PUT", "/_cluster/settings", {"persistent": {block: None}})
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert "rights" in line
    assert "create" in line
    assert "block" in line


def test_the_command_prints_one_line_per_check(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", cluster.url, "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["doctor", "--url", cluster.url, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert len(report["checks"]) == len(lines)
    assert all(line.split()[0] in ("ok", "note") for line in lines)
