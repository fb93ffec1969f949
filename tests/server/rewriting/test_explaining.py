"""What a deployment would make of the slow log that the node itself wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hybridr_cli
from hybridr import ReindexSettings, reindex
from hybridr.cluster.connection import Cluster, path_of
from hybridr.node.state import require_node
from support.corpus import fill_index
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node
SLOW = {f"index.search.slowlog.threshold.{phase}.warn": "0ms" for phase in ("query", "fetch")}
WORDS = {"multi_match": {"query": "basket \x1b[31m", "fields": ["text^3"]}}


def test_the_log_of_a_node_says_what_an_application_would_get(
    cluster: Cluster, index_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {"number_of_shards": 2, "number_of_replicas": 0, **SLOW}
    fill_index(cluster, index_name, 12, settings=settings)
    shop = f"{index_name}-shop"
    cluster.request("POST", "/_aliases", {"actions": [{"add": {"index": index_name, "alias": shop}}]})
    for body in (
        {"query": WORDS},
        {"query": WORDS},
        {"query": {"match": {"text": "basket"}}, "sort": ["price"]},
    ):
        cluster.request("POST", path_of(shop, "_search"), body)
    lines = Path(require_node("default").log).read_text().splitlines()
    said = [line for line in lines if index_name in line and "took[" in line]
    reindex(cluster, index_name, HashingEncoder(), ReindexSettings(alias=shop))
    file = tmp_path / "slow.log"
    file.write_text("\n".join([*said, "half a li"]))

    found = explained(capsys, shop, file, cluster)
    assert found["form"] == "slow log"
    assert [(one["ranked"], one["reason"]) for one in found["requests"]] == [(True, None), (False, "sort")]
    assert found["repeated"] == len(said) - 2
    assert found["unreadable"] == [len(said) + 1]
    assert found["by_field"]["text"] == {"asked": 2, "ranked": 1}
    hybridr_cli.main(["deploy", shop, "--explain", str(file), "--url", cluster.url])
    told = capsys.readouterr().out
    assert f"1 NOT READ, no request: {len(said) + 1}" in told
    assert "1 of 2 are ranked" in told
    assert "\x1b" not in told


def explained(capsys: pytest.CaptureFixture[str], name: str, file: Path, cluster: Cluster) -> dict[str, Any]:
    assert hybridr_cli.main(["deploy", name, "--explain", str(file), "--json", "--url", cluster.url]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found
