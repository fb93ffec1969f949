"""What a deployment would make of the requests in a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hybridr.cluster.connection import Cluster
from support.commands import Cli
from support.corpus import reindexed

WORDS = {"multi_match": {"query": "basket \x1b[31m", "fields": ["text^3"]}}


def test_a_file_of_requests_says_what_an_application_would_get(cluster, index_name, tmp_path, cli):
    reindexed(cluster, index_name, 12, settings={"number_of_shards": 2, "number_of_replicas": 0})
    requests = [{"query": WORDS}, {"query": {"match": {"text": "basket"}}, "sort": ["price"]}]
    file = tmp_path / "requests.jsonl"
    file.write_text("\n".join([*map(json.dumps, requests), "half a li"]))

    found = explained(cli, index_name, file, cluster)
    assert [(one["ranked"], one["reason"]) for one in found["requests"]] == [(True, None), (False, "sort")]
    assert found["unreadable"] == [3]
    assert found["by_field"]["text"] == {"asked": 2, "ranked": 1}
    told = cli(cluster, f"deploy {index_name} --explain {file}").out
    assert "1 line NOT READ, not a request: 3" in told
    assert "1 of 2 are ranked" in told
    assert "\x1b" not in told


def explained(cli: Cli, name: str, file: Path, cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cli(cluster, f"deploy {name} --explain {file} --json").json
    return found
