"""What a deployment would make of the requests in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hybridr_cli
from hybridr.cluster.connection import Cluster
from hybridr.indexing.reindexing import reindex
from support.corpus import fill_index
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node
WORDS = {"multi_match": {"query": "basket \x1b[31m", "fields": ["text^3"]}}


def test_a_file_of_requests_says_what_an_application_would_get(
    cluster: Cluster, index_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_index(cluster, index_name, 12, settings={"number_of_shards": 2, "number_of_replicas": 0})
    reindex(cluster, index_name, HashingEncoder())
    requests = [{"query": WORDS}, {"query": {"match": {"text": "basket"}}, "sort": ["price"]}]
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join([*map(json.dumps, requests), "half a li"]))

    found = explained(capsys, index_name, file, cluster)
    assert [(one["ranked"], one["reason"]) for one in found["requests"]] == [(True, None), (False, "sort")]
    assert found["unreadable"] == [3]
    assert found["by_field"]["text"] == {"asked": 2, "ranked": 1}
    hybridr_cli.main(["deploy", index_name, "--explain", str(file), "--url", cluster.url])
    told = capsys.readouterr().out
    assert "1 lines NOT READ, no request: 3" in told
    assert "1 of 2 are ranked" in told
    assert "\x1b" not in told


def explained(capsys: pytest.CaptureFixture[str], name: str, file: Path, cluster: Cluster) -> dict[str, Any]:
    assert hybridr_cli.main(["deploy", name, "--explain", str(file), "--json", "--url", cluster.url]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found
