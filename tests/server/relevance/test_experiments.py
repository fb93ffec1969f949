"""From clicks to a promoted ranking and back: docs/experiment.md on a small shop, command by command."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hybridr import Query, Rule, Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.relevance import experiments, learning
from hybridr.relevance.clicks.ubi import EVENTS, NEITHER, QUERIES
from hybridr.relevance.experiments import report_experiment, start_experiment
from hybridr.relevance.learning import learn
from hybridr.search.rules.rules import add_rules
from hybridr.serving import snapshots
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.corpus import WORDS, create, put, text_number
from support.diary import Diary
from support.hashing import HashingEncoder
from support.places import ROOT
from support.waiting import wait_until

INDEX, ENCODER = "t-experiment", HashingEncoder()
PAGE = (ROOT / "docs" / "experiment.md").read_text(encoding="utf-8")
TEXTS = [" ".join(WORDS[number : number + 2]) for number in range(0, 18, 3)]
RANK = 3  # of the documents that people want


@pytest.fixture
def client(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A shop whose documents have a number of their own, and its server."""
    monkeypatch.setattr(snapshots, "EVERY_S", 0.6)
    for module in (experiments, learning):
        monkeypatch.setattr(module, "encoder_for", lambda *_, **__: ENCODER)
    monkeypatch.setenv("HYBRIDR_URL", cluster.url)
    create(cluster, INDEX, {"sku": {"type": "keyword"}, "text": {"type": "text"}})
    put(cluster, INDEX, {f"d{n}": {"sku": f"sku-{n}", "text": text_number(n)} for n in range(40)})
    reindex(cluster, INDEX, ENCODER, settings=ReindexSettings(fields=("text",)))
    with TestClient(create_app(ENCODER, ServeSettings(index=INDEX, ubi=True), cluster=cluster)) as running:
        running.sent = []  # type: ignore[attr-defined]
        yield running
    for name in (*(info.name for info in cluster.indices(f"{INDEX}*")), QUERIES, EVENTS):
        cluster.request("DELETE", path_of(name))


def found_by(search: Search) -> dict[str, list[str]]:
    return {text: [hit.doc_id for hit in search(text, 10)] for text in TEXTS}


def visits(client: TestClient) -> Callable[..., None]:
    """Give the page's own `visit`, that asks this server."""
    [block] = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    page: dict[str, Any] = {}
    exec(block, page)  # noqa: S102 - our own page

    def post(path: str, body: Any) -> Any:
        answer = client.post(path, json=body)
        assert answer.is_success, answer.text
        client.sent.append(path)  # type: ignore[attr-defined]
        return answer.json()

    page |= {"post": post, "random": random.Random(1)}
    return page["visit"]  # type: ignore[no-any-return]


def settled(cluster: Cluster, client: TestClient) -> None:
    """Wait until all that was sent is written."""
    for index, route in ((QUERIES, "/search"), (EVENTS, "/events")):
        sent = client.sent.count(route)  # type: ignore[attr-defined]
        wait_until(lambda index=index, sent=sent: written(cluster, index) >= sent)


def written(cluster: Cluster, index: str) -> int:
    if not cluster.exists(index):
        return 0
    cluster.wait_until_usable(index)  # it exists a moment before its shards can be searched
    cluster.refresh(index)
    return cluster.count(index)


def await_contest(client: TestClient, on: bool) -> None:
    searches = client.app.state.searches  # type: ignore[attr-defined]
    wait_until(lambda: (searches.now.contest is not None) == on, 10)


def test_from_clicks_to_a_promoted_ranking_and_back(client, cluster, tmp_path):
    typed = re.findall(r"^    hybridr (.*?)(?: {3,}.*)?$", PAGE, re.M)
    assert [one.split()[0] for one in typed] == ["serve", "clicks", "learn", *["experiment"] * 5]
    diary = Diary()
    diary.name("docs", INDEX)
    diary.name("judged", str(tmp_path / "judged"))
    run = {" ".join(one.split()[:2]) + (" --undo" if "--undo" in one else ""): one for one in typed}
    visit, before = visits(client), found_by(Search(cluster, INDEX, ENCODER))
    wanted = {text: {before[text][RANK - 1]} for text in TEXTS}
    for number in range(180):
        visit(f"early {number}", text := TEXTS[number % len(TEXTS)], wanted[text])
    settled(cluster, client)
    diary.run(run["clicks docs"])
    diary.run(run["learn docs"])
    since = json.loads(diary.run(f"{run['clicks docs']} --json").splitlines()[-1])["changes"]
    assert since["same"] == since["compared"] == since["learnt"]
    learnt = found_by(Search(cluster, INDEX, ENCODER))
    assert sum(learnt[text] != before[text] for text in TEXTS) >= 3

    assert "today" in diary.run(run["experiment start"] + " --dry-run")
    assert found_by(Search(cluster, INDEX, ENCODER)) == learnt
    diary.run(run["experiment start"])
    assert found_by(Search(cluster, INDEX, ENCODER)) == before
    await_contest(client, True)
    plain = client.post("/search", json={"query": TEXTS[0]}).json()
    assert ([hit["doc_id"] for hit in plain["hits"]], "ext" in plain) == (before[TEXTS[0]], False)
    for number in range(110):
        visit(f"late {number}", text := TEXTS[number % len(TEXTS)], wanted[text])
    settled(cluster, client)
    told = json.loads(diary.run(run["experiment report"] + " --json").splitlines()[-1])
    assert (told["better"], told["changed"], told["searches"]) == ("b", False, 110)
    assert told["b"] > 2 * told["a"]

    diary.run(run["experiment promote"])
    assert found_by(Search(cluster, INDEX, ENCODER)) == learnt
    await_contest(client, False)
    diary.run(run["experiment promote --undo"])
    assert found_by(Search(cluster, INDEX, ENCODER)) == learnt  # it had learnt before the experiment
    diary.run("experiment promote docs --winner a")
    assert found_by(Search(cluster, INDEX, ENCODER)) == before
    diary.run("experiment promote docs --undo")
    diary.run(run["experiment start"])
    diary.run(run["experiment stop"])
    assert found_by(Search(cluster, INDEX, ENCODER)) == learnt
    events = [one["event"] for one in resolve(cluster, INDEX).record.history]
    assert events[-2:] == ["experiment began", "experiment ended"]


def test_what_a_rule_pins_leads_the_draft_and_is_of_neither(client, cluster):
    plain = found_by(Search(cluster, INDEX, ENCODER))
    judged = [Query(text, text) for text in TEXTS]
    learn(cluster, INDEX, (judged, {text: {plain[text][RANK - 1]: 1} for text in TEXTS}), encoder=ENCODER)
    text, learnt = next(
        one for one in found_by(Search(cluster, INDEX, ENCODER)).items() if one not in plain.items()
    )
    pinned, banned = learnt[-1], learnt[4]
    add_rules(cluster, INDEX, [Rule(name="sale", text=text, pin=(pinned,), ban=(banned,))])
    start_experiment(cluster, INDEX, "today", "learnt", encoder=ENCODER)
    await_contest(client, True)
    for number in range(4):  # coins of several searches
        ubi = {"ubi": {"query_id": f"q{number}", "client_id": "anna"}}
        hits = client.post("/search", json={"query": text, "k": 5, "ext": ubi}).json()["hits"]
        client.sent.append("/search")  # type: ignore[attr-defined]
        assert hits[0]["doc_id"] == pinned
        about = {"event_attributes": {"object": {"object_id": pinned}}}
        client.post("/events", json={"action_name": "click", **ubi["ubi"], **about})
        client.sent.append("/events")  # type: ignore[attr-defined]
        assert banned not in [hit["doc_id"] for hit in hits]
    settled(cluster, client)
    kept = [hit["_source"] for hit in cluster.search(QUERIES, {"query": {"match_all": {}}})["hits"]["hits"]]
    letters = [one["query_attributes"]["hybridr_teams"] for one in kept]
    assert {one[0] for one in letters} == {NEITHER}
    assert {"a", "b"} <= set("".join(letters))
    told = report_experiment(cluster, INDEX)
    assert (told.searches, told.clicks, told.a, told.b) == (4, 4, 0, 0)


def test_searches_and_events_are_kept_as_ubi_does(client, cluster):
    named = {"query_id": "q1", "client_id": "anna", "object_id_field": "sku", "application": "shop"}
    ubi = {**named, "query_attributes": {"hybridr_teams": "a"}, "of a plugin to come": 1}
    answer = client.post("/search", json={"query": TEXTS[0], "k": 3, "ext": {"ubi": ubi}}).json()
    assert answer["ext"]["ubi"]["query_id"] == "q1"
    about = {"event_attributes": {"object": {"object_id": "sku-0"}}}
    event = {"action_name": "click", "query_id": "q1", "client_id": "anna", **about}
    assert client.post("/events", json=[event, {**event, "own": {"a": 1}}]).json() == {"taken": 2}
    for odd in ([], [event] * 1_001, {**event, "client_id": "x" * 101}, {"query_id": "q1"}, "click"):
        assert client.post("/events", json=odd).status_code == 400
    client.sent += ["/search", "/events", "/events"]  # type: ignore[attr-defined]
    settled(cluster, client)
    found = cluster.search(QUERIES, {"query": {"term": {"query_id": "q1"}}})["hits"]["hits"]
    [kept] = [hit["_source"] for hit in found]
    assert kept["query_response_hit_ids"] == [f"sku-{hit['doc_id'][1:]}" for hit in answer["hits"]]
    assert (kept["user_query"], kept["application"], kept["query_attributes"]) == (TEXTS[0], "shop", {})
    assert cluster.count(EVENTS, {"term": {"client_id": "anna"}}) == 2
    assert 'hybridr_ubi_total{index="ubi_events",outcome="written"} 2.0' in client.get("/metrics").text


def test_before_anything_is_kept_each_command_says_what_to_type(cluster, client, tmp_path, cli):
    file = tmp_path / "b.toml"
    file.write_text("[search]\ndense_weight = 0.3\n")
    for name in (QUERIES, EVENTS):
        if cluster.exists(name):
            cluster.request("DELETE", path_of(name))
    assert f"hybridr serve --index {INDEX} --ubi" in "".join(
        cli.typed(["experiment", "start", INDEX, "--b", str(file)])
    )
    told = cli.typed(["experiment", "report", INDEX], 1).err
    assert "has no search yet" in told
    assert f"hybridr serve --index {INDEX} --ubi" in told
    assert "--ubi" in cli.typed(["experiment", "promote", INDEX], 1).err
    client.post("/search", json={"query": TEXTS[0], "ext": {"ubi": {"client_id": "anna"}}})
    wait_until(lambda: written(cluster, QUERIES))
    assert not cluster.exists(EVENTS)
    told = cli.typed(["experiment", "report", INDEX]).out
    assert "nothing to report yet: hybridr serve" in told, "it has searches, and no click yet"
    assert "the evidence is" in cli.typed(["experiment", "promote", INDEX], 1).err
    client.post("/events", json={"action_name": "click", "query_id": "q", "client_id": "anna"})
    wait_until(lambda: written(cluster, EVENTS))
    assert "nothing to report yet: hybridr serve" in cli.typed(["experiment", "report", INDEX]).out
