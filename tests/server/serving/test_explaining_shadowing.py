"""What the other ranking would change, told before users see it: by a file of requests and behind a proxy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import hybridr
import hybridr_cli
from hybridr.cluster.connection import Cluster, path_of
from hybridr.files.local import state_folder
from support.corpus import drop_indices, reindexed
from support.deployed import serving_index, settle
from support.hashing import HashingEncoder
from support.waiting import wait_until

pytestmark = [pytest.mark.node, pytest.mark.elastic, pytest.mark.usefixtures("few_probes")]
MATCH = {"query": {"match": {"text": "basket"}}}


@pytest.fixture(params=["cluster", "elastic"])
def shop(
    request: pytest.FixtureRequest, index_name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Cluster]:
    cluster: Cluster = request.getfixturevalue(request.param)
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path / "home"))
    reindexed(cluster, index_name, 60, settings={"number_of_shards": 2, "number_of_replicas": 0})
    monkeypatch.setattr("hybridr.search.checks.encoder_for", lambda *_, **__: HashingEncoder())
    yield cluster
    drop_indices(cluster, f"{index_name}*")


def test_a_closed_source_is_named(shop, index_name, tmp_path, capsys):
    """Every request was counted as failed, with exit code 0."""
    file = tmp_path / "requests.jsonl"
    file.write_text(json.dumps(MATCH))
    shop.request("POST", path_of(index_name, "_close"))
    words = ["shadow", f"{index_name}-hybridr", "--queries", str(file), "--url", shop.url]
    assert hybridr_cli.main(words) == 1
    said = capsys.readouterr().err
    assert f"error: index '{index_name}' is closed" in said
    assert f"hint: open it: POST /{index_name}/_open" in said


def test_requests_of_a_file_are_answered_by_both_and_nothing_changes(shop, index_name, tmp_path, capsys):
    before = {name: shop.count(name) for name in (index_name, f"{index_name}-hybridr-1")}
    requests = [
        MATCH,
        MATCH,
        {"query": "cheese basket"},
        {"path": f"/{index_name}/_search?from=2&size=3", "body": MATCH},
        {"path": f"/{index_name}/_count", "body": MATCH},
        MATCH | {"sort": ["price"]},
        {"query": {"no such query": {}}},
        {"query": 7},
    ]
    file, page = tmp_path / "requests.jsonl", tmp_path / "report.html"
    file.write_text("\n".join([*map(json.dumps, requests), "half a li"]))
    said = shadow(capsys, shop, index_name, "--queries", str(file), "--report", str(page))
    assert said["requests"] == 9
    assert said["difference"]["requests"] == 3
    assert said["reasons"] == {"sort": 1, "counting": 1, "unreadable": 1, "later_page": 1}
    assert said["errors"] == {"today's answer: 400": 2}
    assert set(said["by_frequency"]) == {"once", "2 to 9 times"}
    assert said["texts"].keys() == {
        doc_id for change in said["largest"] for doc_id in (*change["old"], *change["new"])
    }
    assert "<h1>" in page.read_text()
    assert before == {name: shop.count(name) for name in before}

    index = hybridr.connect(shop.url).index(index_name)
    own = shop.request("POST", path_of(index_name, "_search"), MATCH)
    report = index.shadow(file)
    [largest] = [request for request in report.largest if request.text == "basket"][:1]
    assert list(largest.old) == [hit["_id"] for hit in own["hits"]["hits"]]


def test_a_proxy_answers_as_the_cluster_and_the_other_side_may_die(shop, index_name, capsys):
    bodies = [
        {"query": {"match": {"text": text}}, "size": 5} for text in ("basket", "cheese", "basket cheese")
    ]
    with serving_index(shop, index_name, proxy="lexical", shadow=1.0) as server:
        for name in (index_name, f"{index_name}-hybridr"):
            for body in bodies:
                assert answer_of(server.url, name, body) == answer_of(shop.url, name, body)
        settle(server)
        wait_until(lambda: shadow(capsys, shop, index_name)["requests"] == 6)
        lines = "".join(f"{{}}\n{json.dumps(body)}\n" for body in bodies)
        kind = {"content-type": "application/x-ndjson"}
        own, clusters = (
            httpx.post(f"{url}/{index_name}/_msearch", content=lines, headers=kind, timeout=30).json()
            for url in (server.url, shop.url)
        )
        assert [part["hits"] for part in own["responses"]] == [part["hits"] for part in clusters["responses"]]
        wait_until(lambda: shadow(capsys, shop, index_name)["requests"] == 9)
        said = shadow(capsys, shop, index_name)
        assert said["difference"]["requests"] >= 3  # the first requests of a shape have no scale yet
        assert said["stopped"] == ""
        shop.request("DELETE", path_of(f"{index_name}-hybridr-1"))
        file = next((state_folder() / "shadows").glob("*.jsonl"))

        def has_stopped() -> bool:
            for body in bodies:
                assert answer_of(server.url, index_name, body) == answer_of(shop.url, index_name, body)
            return '"stopped"' in file.read_text()

        wait_until(has_stopped)


def answer_of(url: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask, and give all of the answer but the time that it took."""
    answer = httpx.post(f"{url}/{name}/_search", json=body, timeout=30)
    assert answer.status_code == 200
    said: dict[str, Any] = answer.json()
    return said | {"took": 0}


def shadow(capsys: pytest.CaptureFixture[str], cluster: Cluster, name: str, *options: str) -> dict[str, Any]:
    code = hybridr_cli.main(["shadow", name, *options, "--json", "--url", cluster.url])
    said = capsys.readouterr().out
    if code and not options:
        return {"requests": 0}
    assert code == 0
    parsed: dict[str, Any] = json.loads(said)
    return parsed
