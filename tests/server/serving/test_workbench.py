"""What the page asks, on a real node: from two rankings and judgements to a tuned default."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hybridr import Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.errors import DataError
from hybridr.files.local import data_folder
from hybridr.indexing.reindexing import reindex
from hybridr.relevance.answering import calibrate
from hybridr.search.rules.rules import change_stamp, fetch_version
from hybridr.serving.application import create_app
from hybridr.serving.page.workbench import add_workbench
from hybridr.serving.settings import ServeSettings
from support.corpus import drop_indices, fill_index, reindexed, text_number
from support.hashing import HashingEncoder

QUERIES = [f"n{number} candle anchor" for number in range(0, 48, 4)]


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    name = "t-workbench"
    calibrate(cluster, reindexed(cluster, name, 60).destination, HashingEncoder())
    yield name
    drop_indices(cluster, f"{name}*")


@pytest.fixture(scope="module")
def client(cluster: Cluster, index: str) -> TestClient:
    settings = ServeSettings(index=index)
    added = partial(add_workbench, settings=settings, cluster=cluster)
    return TestClient(create_app(HashingEncoder(), settings, cluster=cluster, added=added))


def post(client: TestClient, path: str, **body: Any) -> Any:
    found = client.post(path, json=body)
    assert found.status_code < 300, found.text
    return found.json()


def done(client: TestClient, task: str) -> dict[str, Any]:
    post(client, "/tasks", task=task)
    for thread in threading.enumerate():
        if thread.name == f"hybridr-{task}":
            thread.join(60)
    found: dict[str, Any] = client.get("/tasks").json()
    return found


def test_rankings_are_those_of_the_library(client, cluster, index):
    assert client.get("/compare").json()["systems"][:2] == ["bm25", "hybrid-stock"]
    found = post(client, "/compare", query=text_number(7), systems=["bm25", "hybrid"], k=5)["lists"]
    for name, mode in (("bm25", "lexical"), ("hybrid", "hybrid")):
        expected = Search(cluster, index, HashingEncoder(), mode)(text_number(7), 5, explain=True)
        assert found[name] == [
            json.loads(json.dumps(hit.to_json())) | {"score": pytest.approx(hit.score)} for hit in expected
        ]
    assert set(found["hybrid"][0]["parts"]) >= {"words", "cosine"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/compare", {"query": "cat", "systems": ["no such"]}, 400),
        ("/compare", {"query": "cat", "systems": ["hybrid@.kibana"]}, 404),
        ("/compare", {"query": "", "systems": ["bm25"]}, 400),
        ("/judging/next", {"judge": "../../etc"}, 400),
        ("/judging/grades", {"judge": "ada", "query_id": "gone", "grades": {"d1": 1}}, 400),
        ("/judging/grades", {"judge": "ada", "query_id": "gone", "grades": {"d1": 7}}, 400),
        ("/tasks", {"task": "reindex"}, 400),
    ],
)
def test_what_cannot_be_is_refused(client, path, body, status):
    found = client.post(path, json=body)
    assert found.status_code == status
    assert found.json()["error"]["message"]


def test_another_sites_page_is_refused(client):
    for site, status in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert client.get("/judging", headers={"Sec-Fetch-Site": site}).status_code == status
    text = {"Content-Type": "text/plain"}  # what a form of another site could send
    assert client.post("/tasks", content=b'{"task": "tune"}', headers=text).status_code >= 400


@pytest.mark.attack(135)
@pytest.mark.parametrize("name", ["root", "admin", "ops-team"])
def test_a_rule_bears_the_user_of_the_server_whatever_a_client_calls_himself(client, cluster, index, name):
    rule = {"name": f"of {name}", "text": "x", "ban": ["d1"], "by": "ceo", "at": "1999"}
    found = post(client, "/rules", rule=rule, by=name)["rules"][0]
    user = change_stamp(cluster, None)["by"]
    assert found["by"] == f"{user} ({name})"
    assert found["at"] != "1999"
    post(client, "/rules/remove", names=[f"of {name}"], by=name)
    newest = fetch_version(cluster, resolve(cluster, index))
    assert newest.by == f"{user} ({name})"


def test_from_judgements_to_a_tuned_default(client, cluster, index, cli):
    assert post(client, "/judging/queries", queries=[*QUERIES, QUERIES[0]])["added"] == len(QUERIES)
    seen = []
    while (found := post(client, "/judging/next", judge="ada"))["query"] is not None:
        seen.append(found["query"])
        documents = [one["doc_id"] for one in found["documents"]]
        assert len(documents) == 10
        assert set(found["documents"][0]) == {"doc_id", "fields"}, "nothing tells which system found it"
        wanted = f"d{found['query'].split()[0][1:]}"
        grades = {doc_id: int(doc_id == wanted) for doc_id in documents}
        assert sum(grades.values()) == 1
        standing = post(client, "/judging/grades", judge="ada", query_id=found["query_id"], grades=grades)
    assert seen == QUERIES
    assert standing["judged"] == len(QUERIES)

    measured = done(client, "evaluate")
    assert [row[0] for row in measured["result"]["rows"]] == ["bm25", "hybrid-stock", "hybrid"]
    untuned = client.post("/search", json={"query": QUERIES[1]}).json()["hits"]
    tuned = done(client, "tune")
    assert tuned["result"]["applied"], tuned
    assert "In use from now on: search: " in tuned["result"]["said"]
    assert resolve(cluster, index).record.tuning.search
    moved = client.post("/search", json={"query": QUERIES[1]}).json()["hits"]
    expected = Search(cluster, index, HashingEncoder())(QUERIES[1])
    assert [hit["doc_id"] for hit in moved] == [hit.doc_id for hit in expected]
    assert [hit["score"] for hit in moved] != [hit["score"] for hit in untuned]
    assert done(client, "reset")["result"]["said"] == "the defaults rank again"
    again = client.post("/search", json={"query": QUERIES[1]}).json()["hits"]
    assert [hit["score"] for hit in again] == pytest.approx([hit["score"] for hit in untuned])

    evaluate = ["evaluate", index, "--judgements", "--systems", "bm25", "--url", cluster.url]
    assert "12 queries" in cli.typed(evaluate).out


@pytest.mark.attack(2)
def test_the_page_of_a_filtered_alias_shows_and_writes_no_more_than_it(cluster, index_name, monkeypatch):
    fill_index(cluster, index_name, 24)
    old, new = HashingEncoder(), HashingEncoder(salt="other")
    for encoder in (old, new):
        reindex(cluster, index_name, encoder)
    part = {"index": f"{index_name}-hybridr-2", "alias": f"{index_name}-part"}
    part["filter"] = {"term": {"tags": "t0"}}
    cluster.request("POST", "/_aliases", {"actions": [{"add": part}]})
    monkeypatch.setattr("hybridr.serving.page.workbench.encoder_for", lambda *_: old)
    settings = ServeSettings(index=f"{index_name}-part")
    client = TestClient(
        create_app(
            new, settings, cluster=cluster, added=partial(add_workbench, settings=settings, cluster=cluster)
        )
    )
    systems = client.get("/compare").json()["systems"]
    beside = f"hybrid@{index_name}-hybridr-1"
    assert beside in systems
    for system in systems:
        found = post(client, "/compare", query=text_number(1), systems=[system], k=24)["lists"][system]
        assert {hit["doc_id"] for hit in found} <= {f"d{number}" for number in range(0, 24, 3)}
    post(client, "/judging/queries", queries=QUERIES)
    for _ in QUERIES:
        found = post(client, "/judging/next", judge="ada")
        grades = {found["documents"][0]["doc_id"]: 1}
        post(client, "/judging/grades", judge="ada", query_id=found["query_id"], grades=grades)
    unseen = {"judge": "ada", "query_id": found["query_id"], "grades": {"d1": 1}}
    assert client.post("/judging/grades", json=unseen).status_code == 404, "another tenant's"
    for task in ("tune", "reset"):
        assert "is an alias with a filter" in done(client, task)["error"]
    assert cluster.index_info(f"{index_name}-hybridr-2").record.tuning is None


@pytest.mark.attack(88)
def test_only_documents_of_the_index_are_graded(client):
    post(client, "/judging/queries", queries=QUERIES)
    asked = post(client, "/judging/next", judge="eve", skip=[])
    grades = {asked["documents"][0]["doc_id"]: 1, "made up": 1}
    body = {"judge": "eve", "query_id": asked["query_id"], "grades": grades}
    found = client.post("/judging/grades", json=body)
    assert (found.status_code, "made up" in found.text) == (404, True)
    assert "eve" not in client.get("/judging").json()["judges"]


@pytest.mark.attack(82)
def test_a_record_whose_source_is_a_path_opens_no_judgements(cluster, index_name):
    info = cluster.index_info(reindexed(cluster, index_name, 12).destination)
    record = {**info.mappings["_meta"]["hybridr"], "source": "../../../x", "source_uuid": "/../loot"}
    cluster.request("PUT", path_of(info.name, "_mapping"), {"_meta": {"hybridr": record}})
    settings = ServeSettings(index=info.name)
    with pytest.raises(DataError, match=f"hybridr's record in '{info.name}' holds a wrong 'source'"):
        create_app(
            HashingEncoder(),
            settings,
            cluster=cluster,
            added=partial(add_workbench, settings=settings, cluster=cluster),
        )
    assert not (data_folder().parent / "loot").exists()
