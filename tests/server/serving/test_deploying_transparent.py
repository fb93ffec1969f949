"""`hybridr deploy --way transparent` on a real node of two shards: clients that change nothing are ranked as
`hybridr search` ranks, and whatever cannot be goes on as it was."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hybridr import Index, Search
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import write_record
from hybridr.cluster.record_parts import Tuned
from hybridr.errors import ClusterError, SettingsError
from hybridr.indexing.reindexing import reindex
from hybridr.records import Query
from hybridr.relevance.learning import learn
from hybridr.search.settings import SearchSettings
from hybridr.serving.application import create_app
from hybridr.serving.deploy.deploying import deploy, deployment_of, plan_deployment, undeploy
from hybridr.serving.doorway import listen
from hybridr.serving.requests import EncodingFailed
from hybridr.serving.settings import DeploySettings, ServeSettings
from support.corpus import bulk, drop_indices, fill_index, having
from support.deployed import Server, ask, assert_plain, ids, scores, serving_index
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX, COUNT = "rack", 300
TEXT, REMEMBERED = "anchor needle velvet", "d77"
MATCH = {"match": {"text": TEXT}}
CHEAP = {"range": {"price": {"lt": 20}}}
SETTINGS = ServeSettings(index=INDEX, rank_timeout_s=5)  # a busy machine is slow


@pytest.fixture(scope="module")
def rack(ml_cluster: Cluster) -> Iterator[Cluster]:
    fill_index(ml_cluster, INDEX, COUNT, settings={"number_of_replicas": 0, "number_of_shards": 2})
    bulk(ml_cluster, INDEX, [{"index": {"_id": "none"}}, {"price": 1.0}])
    reindex(ml_cluster, INDEX, HashingEncoder())
    judged = ([Query("past", TEXT)], {"past": {REMEMBERED: 1}})
    learn(ml_cluster, INDEX, judged, encoder=HashingEncoder())
    yield ml_cluster
    drop_indices(ml_cluster, f"{INDEX}*")


@pytest.fixture(scope="module")
def server(rack: Cluster) -> Iterator[Server]:
    with serving_index(rack, INDEX) as running:
        yield running


@pytest.fixture(scope="module")
def index(rack: Cluster, server: Server) -> Iterator[str]:
    settings = DeploySettings(way="transparent", server=server.url, set_cluster_settings=True, recall="all")
    yield deploy(rack, INDEX, settings, SearchSettings()).index
    undeploy(rack, INDEX)


@pytest.fixture(scope="module")
def search(rack: Cluster) -> Search:
    made = Search(rack, INDEX, HashingEncoder())
    assert made.fusion == "absolute"
    assert made.signals.members.keys() >= {"phrases", "memory"}, "a ranking without any would show less"
    return made


def assert_same(answer: dict[str, Any], hits: list[Any]) -> None:
    assert ids(answer) == [hit.doc_id for hit in hits] != []
    assert scores(answer) == pytest.approx([hit.score for hit in hits], abs=1e-6)


@pytest.mark.parametrize(
    "query",
    [
        MATCH,
        {"match": {"text": {"query": TEXT, "boost": 3}}},
        {"multi_match": {"query": TEXT, "fields": ["text^2"]}},
        {"bool": {"should": [MATCH]}},
    ],
)
@pytest.mark.parametrize("size", [10, 250])
def test_ranked_as_by_search(rack, index, search, query, size):
    assert_same(ask(rack, index, {"query": query, "size": size}), search(TEXT, size))


def test_ranked_as_by_search_under_settings_of_its_own(rack, index, server, search, monkeypatch):
    ranking = SearchSettings(dense_weight=0.9, signals=("phrases",), depth=40)
    app = create_app(HashingEncoder(), SETTINGS, cluster=rack, search=ranking)
    monkeypatch.setattr(server, "app", app)
    answer = ask(rack, index, {"query": MATCH})
    assert_same(answer, Search(rack, INDEX, HashingEncoder(), settings=ranking)(TEXT, 10))
    assert scores(answer) != pytest.approx([hit.score for hit in search(TEXT, 10)], rel=1e-3)


@pytest.mark.parametrize(
    "text",
    [
        "anchor $x ${y} needle",
        'needle "quoted" {brace} \\ back \n line',
        '"}}, "query": {"match_all": {}}, "x": {"y": "velvet',
        "$ {parameters} $$ {x} \\ %s $1 \\$ anchor",
        "anchor 日本語 \u0000 \t emoji 🎉 \u2028",
        "${credential.token} anchor",
        "${x} anchor",
    ],
)
@pytest.mark.attack(24)
def test_no_text_breaks_out_of_its_query_or_is_filled_in(rack, index, server, search, text):
    assert_same(ask(rack, index, {"query": {"match": {"text": text}}}), search(text, 10))
    assert json.loads(server.received[-1])["query"]["match"]["text"]["query"] == text


def test_a_text_that_names_a_parameter_of_the_connector_gets_plain_bm25(rack, index, server):
    asked = len(server.received)
    assert_plain(rack, index, {"query": {"match": {"text": "${parameters.input} anchor"}}})
    assert len(server.received) == asked


@pytest.mark.parametrize(
    "query",
    [
        {"bool": {"must": [MATCH], "filter": [CHEAP]}},
        {"bool": {"must": [MATCH, CHEAP]}},
        {"bool": {"must": [{"bool": {"must": [MATCH]}}], "filter": CHEAP}},
    ],
)
def test_filters_hold_in_both_legs(rack, index, search, query):
    answer = ask(rack, index, {"query": query, "size": 50})
    assert_same(answer, search(TEXT, 50, filter=CHEAP))
    assert all(hit["_source"]["price"] < 20 for hit in answer["hits"]["hits"])


def test_a_page_beyond_the_window_is_plain(rack, index, server, monkeypatch):
    body = {"query": MATCH, "from": 0, "size": 401, "_source": False}
    within = body | {"size": 201}
    with having(rack, {"index.max_rescore_window": 400}, index):
        monkeypatch.setattr(server, "app", create_app(HashingEncoder(), SETTINGS, cluster=rack))
        deep = Search(rack, index, HashingEncoder(), settings=SearchSettings(depth=200))
        assert_same(ask(rack, index, within), deep(TEXT, 201))
        assert_plain(rack, index, body)
    with pytest.raises(ClusterError, match="Result window is too large"):
        ask(rack, index, {"query": MATCH, "from": 10_000, "size": 2})


@pytest.mark.parametrize(
    ("source", "there"),
    [
        (None, False),
        (True, False),
        (["*"], False),
        (["hybridr_vector"], True),
        ({"excludes": ["price"]}, False),
    ],
)
def test_the_vector_is_in_answers_that_name_it(rack, index, source, there):
    body = {"query": MATCH} | ({} if source is None else {"_source": source})
    hits = ask(rack, index, body)["hits"]["hits"]
    assert all(("hybridr_vector" in hit["_source"]) is there for hit in hits)
    assert all("price" in hit["_source"] for hit in hits) is (source in (None, True, ["*"]))


def test_a_point_in_time_is_ranked(rack, index, search):
    with rack.point_in_time(index) as pit:
        answer = rack.request("POST", "/_search", {"query": MATCH, "pit": {"id": pit}})
    assert_same(answer, search(TEXT, 10))


@pytest.mark.attack(20)
def test_a_dead_server_means_plain_bm25(rack, index, server):
    body = {"query": MATCH}
    assert scores(ask(rack, index, body)) != scores(rack.search(index, body))
    with server.away():
        assert_plain(rack, index, body)


@pytest.mark.attack(19)
def test_a_server_that_hangs_costs_a_second_and_all_clients_wait_at_once(rack, index, server):
    body = {"query": MATCH}
    expected = rack.search(index, body)
    server.stop()
    silent = listen("127.0.0.1", server.port)  # connections wait in its queue: nobody takes them
    try:
        with ThreadPoolExecutor(40) as clients:
            began = time.monotonic()
            answers = list(clients.map(lambda _: ask(rack, index, body), range(40)))
            took = time.monotonic() - began
    finally:
        silent.close()
        server.start()
    for answer in answers:
        assert (ids(answer), scores(answer)) == (ids(expected), scores(expected))
    assert took < 8, "one after the other, or by fives, they would take 8 seconds and more"


@pytest.mark.parametrize("slow", [True, False])
def test_an_encoder_that_fails_or_is_slow_means_plain_bm25(rack, index, server, monkeypatch, slow):
    async def read(text: str, within_s: float | None = None) -> None:
        await asyncio.sleep(30 if slow else 0)
        raise EncodingFailed

    app = create_app(HashingEncoder(), SETTINGS.model_copy(update={"rank_timeout_s": 0.3}), cluster=rack)
    monkeypatch.setattr(app.state.embedder, "read", read)
    monkeypatch.setattr(server, "app", app)
    asked = len(server.received)
    assert_plain(rack, index, {"query": MATCH})
    assert len(server.received) > asked
    hits = ask(rack, index, {"query": MATCH})["hits"]["hits"]
    assert not any("hybridr_vector" in hit["_source"] for hit in hits)


def test_our_own_lexical_search_is_not_ranked_again(rack, index, server):
    asked = len(server.received)
    hits = Search(rack, INDEX, mode="lexical")(TEXT)
    assert len(server.received) == asked
    assert [hit.score for hit in hits] == [hit.scores["lexical"] for hit in hits]


def test_tuning_for_another_fusion_is_said(rack, index):
    known = rack.index_info(index).record.tuning
    assert deployment_of(rack, rack.index_info(index)).missing == []
    write_record(rack, index, tuning=Tuned(search={"fusion": "pipeline"}))
    try:
        [problem] = deployment_of(rack, rack.index_info(index)).missing
        assert "tuned for another fusion" in problem
        [told] = Index(rack, INDEX).deployment_problems()
        server = rack.index_info(index).record.deployment.server
        assert told == (
            f"{problem}: hybridr deploy {INDEX} --way transparent --server {server} --recall all"
        ), "without its options it would deploy the default server and ranking"
    finally:
        write_record(rack, index, tuning=known)


def test_what_will_not_be_ranked_is_said(rack, index, server):
    settings = DeploySettings(way="transparent", server=server.url)
    before = plan_deployment(rack, INDEX, settings, SearchSettings()).limits
    assert not any("window" in one or "rack" in one for one in before)
    vector = {"type": "knn_vector", "dimension": 3}
    rack.request("PUT", "/a-rack-of-others", {"mappings": {"properties": {"hybridr_vector": vector}}})
    with having(rack, {"index.max_rescore_window": 150}, index):
        window, other = plan_deployment(rack, INDEX, settings, SearchSettings()).limits
    rack.request("DELETE", "/a-rack-of-others")
    assert "max_rescore_window is 150: searches score no more than 150 hits" in window
    assert re.search("together with .*a-rack-of-others.* does not have 16 dimensions", other)


def test_an_index_of_another_fusion_is_refused(rack, index, server):
    settings = DeploySettings(way="transparent", server=server.url)
    with pytest.raises(SettingsError, match="true scores, this index is ranked by the fusion 'pipeline'"):
        plan_deployment(rack, INDEX, settings, SearchSettings(fusion="pipeline"))
