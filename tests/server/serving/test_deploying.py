"""`hybridr deploy` in all ways on a real node with ml-commons, asked by plain REST."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridr_cli
from hybridr import Search, load_encoder
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.remote_models import TRUSTED
from hybridr.errors import ClusterError, DataError, FingerprintMismatch, NotFound, SettingsError, Unreachable
from hybridr.indexing.reindexing import reindex
from hybridr.search.settings import SearchSettings
from hybridr.serving.application import create_app
from hybridr.serving.deploy import preconditions
from hybridr.serving.deploy.deploying import deploy, plan_deployment, undeploy
from hybridr.serving.settings import DeploySettings
from hybridr.status.standing import remove
from support.corpus import bulk, drop_indices, fill_index, text_number
from support.deployed import Server, ask, assert_plain, ids, scores, serving_index, with_vectors

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX = "shelf"
TEXT = text_number(7)
DEFAULTS = SearchSettings()
PIPELINE = SearchSettings(fusion="pipeline")


@pytest.fixture
def index_name_ml(ml_cluster: Cluster) -> Iterator[str]:
    yield "crate"
    drop_indices(ml_cluster, "crate*")


@pytest.fixture(scope="module")
def shelf(ml_cluster: Cluster, minilm_encoder_folder: Path) -> Iterator[Cluster]:
    fill_index(ml_cluster, INDEX, 60)
    bulk(
        ml_cluster, INDEX, [{"index": {"_id": "odd"}}, {"text": 'a "quoted" {brace} \n line', "price": 99.0}]
    )
    yield from with_vectors(ml_cluster, INDEX, minilm_encoder_folder)


@pytest.fixture(scope="module")
def server(shelf: Cluster, minilm_encoder_folder: Path) -> Iterator[Server]:
    with serving_index(shelf, INDEX, minilm_encoder_folder) as running:
        yield running


@pytest.fixture
def transparent(shelf: Cluster, server: Server) -> Iterator[str]:
    settings = DeploySettings(way="transparent", server=server.url, set_cluster_settings=True, recall="all")
    yield deploy(shelf, INDEX, settings, PIPELINE).index
    undeploy(shelf, INDEX)


def hybrid(cluster: Cluster, folder: Path, text: str, k: int = 10) -> tuple[list[str], list[float]]:
    hits = Search(cluster, INDEX, load_encoder(folder), settings=PIPELINE)(text, k)
    return [hit.doc_id for hit in hits], [hit.score for hit in hits]


@pytest.mark.parametrize(
    "query",
    [
        {"match": {"text": TEXT}},
        {"match": {"text": {"query": TEXT}}},
        {"multi_match": {"query": TEXT, "fields": ["text"]}},
    ],
)
def test_an_ordinary_query_gets_hybrid_results(
    shelf: Cluster, transparent: str, minilm_encoder_folder: Path, query: dict[str, Any]
) -> None:
    answer = ask(shelf, transparent, {"query": query})
    expected_ids, expected_scores = hybrid(shelf, minilm_encoder_folder, TEXT)
    assert ids(answer) == expected_ids
    assert scores(answer) == pytest.approx(expected_scores, abs=1e-5)


def test_everything_else_of_the_request_is_honoured(shelf: Cluster, transparent: str) -> None:
    body = {
        "query": {"bool": {"must": [{"match": {"text": TEXT}}], "filter": [{"range": {"price": {"lt": 3}}}]}},
        "size": 4,
        "from": 2,
        "_source": ["price"],
        "aggs": {"kinds": {"terms": {"field": "tags"}}},
        "highlight": {"fields": {"text": {}}},
    }
    answer = ask(shelf, transparent, body)
    whole = ask(shelf, transparent, {"query": body["query"], "size": 20})
    assert ids(answer) == ids(whole)[2:6]
    assert scores(answer) == pytest.approx(scores(whole)[2:6])
    assert all(
        hit["_source"].keys() == {"price"} and hit["_source"]["price"] < 3 for hit in answer["hits"]["hits"]
    )
    assert {bucket["key"] for bucket in answer["aggregations"]["kinds"]["buckets"]} == {"a", "t0", "t1", "t2"}
    assert answer["aggregations"]["kinds"]["buckets"][0]["doc_count"] == 30, "both legs, and only what fits"
    assert any("<em>" in str(hit.get("highlight")) for hit in answer["hits"]["hits"])


@pytest.mark.parametrize(
    "query",
    [
        {"match_all": {}},
        {"term": {"tags": "t1"}},
        {"match": {"tags": "t1"}},
        {"match_phrase": {"text": TEXT}},
        {"ids": {"values": ["d3", "d4"]}},
        {"bool": {"filter": [{"match": {"text": TEXT}}]}},
    ],
)
def test_every_other_query_passes_unchanged(shelf: Cluster, transparent: str, query: dict[str, Any]) -> None:
    answer = ask(shelf, transparent, {"query": query})
    plain = shelf.search(transparent, {"query": query}, {"search_pipeline": "_none"})
    assert ids(answer) == ids(plain)
    assert scores(answer) == scores(plain)


@pytest.mark.parametrize(
    "text",
    [
        'a "quoted" {brace} \n line',
        '"}}, "query": {"match_all": {}}, "x": {"y": "',
        "$ {parameters} $$ {x} \\ %s $1",
        "日本語 \u0000 \t emoji 🎉 \u2028",
    ],
)
def test_no_text_breaks_out_of_its_query(
    shelf: Cluster, transparent: str, minilm_encoder_folder: Path, text: str
) -> None:
    answer = ask(shelf, transparent, {"query": {"match": {"text": text}}})
    assert ids(answer) == hybrid(shelf, minilm_encoder_folder, text)[0]


def test_our_own_lexical_search_is_not_rewritten(shelf: Cluster, transparent: str, server: Server) -> None:
    asked = len(server.received)
    hits = Search(shelf, INDEX, mode="lexical")(TEXT)
    assert len(server.received) == asked
    assert [hit.score for hit in hits] == [hit.scores["lexical"] for hit in hits]


@pytest.mark.parametrize("text", ["${credential.token} basket", "${x} basket"])
def test_placeholders_of_connectors_are_not_filled_in(
    shelf: Cluster, transparent: str, server: Server, text: str
) -> None:
    ask(shelf, transparent, {"query": {"match": {"text": text}}})
    assert json.loads(server.received[-1])["input"]["match"]["text"]["query"] == text


def test_a_dead_server_means_plain_bm25(shelf: Cluster, transparent: str, server: Server) -> None:
    body = {"query": {"match": {"text": TEXT}}}
    assert scores(ask(shelf, transparent, body)) != scores(shelf.search(transparent, body))
    with server.away():
        assert_plain(shelf, transparent, body)


def test_neural_queries_hold_text(shelf: Cluster, server: Server, minilm_encoder_folder: Path) -> None:
    settings = DeploySettings(way="neural", server=server.url, set_cluster_settings=True)
    done = deploy(shelf, INDEX, settings, DEFAULTS)
    body = json.loads(done.example)
    [match, neural] = body["query"]["hybrid"]["queries"]
    match["match"]["text"] = neural["neural"]["hybridr_vector"]["query_text"] = TEXT
    try:
        answer = ask(shelf, done.index, body)
    finally:
        undeploy(shelf, INDEX)
    expected_ids, expected_scores = hybrid(shelf, minilm_encoder_folder, TEXT)
    assert ids(answer) == expected_ids
    assert scores(answer) == pytest.approx(expected_scores, abs=1e-5)


def test_clients_send_vectors_and_no_word_about_fusion(shelf: Cluster, minilm_encoder_folder: Path) -> None:
    done = deploy(shelf, INDEX, DeploySettings(), DEFAULTS)
    body = json.loads(done.example)
    [match, knn] = body["query"]["hybrid"]["queries"]
    match["match"]["text"] = TEXT
    encoder = load_encoder(minilm_encoder_folder)
    knn["knn"]["hybridr_vector"]["vector"] = encoder.encode_queries([TEXT])[0].tolist()
    try:
        assert ids(ask(shelf, done.index, body)) == hybrid(shelf, minilm_encoder_folder, TEXT)[0]
    finally:
        undeploy(shelf, INDEX)


def test_again_changes_nothing_and_another_way_leaves_nothing_behind(shelf: Cluster, server: Server) -> None:
    def models() -> set[str]:
        found = shelf.request("POST", "/_plugins/_ml/models/_search", {"query": {"match_all": {}}})
        return {hit["_id"] for hit in found["hits"]["hits"]}

    before = models()
    neural = DeploySettings(way="neural", server=server.url, set_cluster_settings=True)
    assert deploy(shelf, INDEX, neural, DEFAULTS).changed
    first = models()
    assert not deploy(shelf, INDEX, neural, DEFAULTS).changed
    assert models() == first
    assert deploy(shelf, INDEX, DeploySettings(way="transparent", server=server.url), DEFAULTS).changed
    assert len(models()) == len(first)
    assert models() != first
    assert deploy(shelf, INDEX, DeploySettings(), DEFAULTS).changed
    undeploy(shelf, INDEX)
    assert models() == before
    info = resolve(shelf, INDEX)
    assert "index.search.default_pipeline" not in info.settings
    assert not info.record.deployment
    with pytest.raises(DataError, match="nothing is deployed"):
        undeploy(shelf, INDEX)


def test_an_index_is_looked_at_once(shelf: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(name: str) -> Any:
        work = getattr(preconditions, name)

        def call(*given: Any, **options: Any) -> Any:
            asked.append(name)
            return work(*given, **options)

        return call

    probes = ("stored_fusion", "sample_documents", "check_language")
    monkeypatch.setattr(preconditions, "languages_by_fingerprint", lambda *_: ("en",))
    for name in probes:
        monkeypatch.setattr(preconditions, name, noted(name))
    deploy(shelf, INDEX, DeploySettings(force=True), DEFAULTS)
    undeploy(shelf, INDEX)
    assert sorted(asked) == sorted(probes)


def test_remove_takes_the_deployment_along(
    ml_cluster: Cluster, server: Server, index_name_ml: str, minilm_encoder_folder: Path
) -> None:
    fill_index(ml_cluster, index_name_ml, 20)
    reindex(ml_cluster, index_name_ml, minilm_encoder_folder)
    neural = DeploySettings(way="neural", server=server.url, set_cluster_settings=True)
    done = deploy(ml_cluster, index_name_ml, neural, DEFAULTS)
    known = resolve(ml_cluster, index_name_ml).record.deployment
    planned = remove(ml_cluster, index_name_ml, dry_run=True)
    assert ml_cluster.request("GET", path_of("_search", "pipeline", done.pipeline))
    assert remove(ml_cluster, index_name_ml)["requests"] == planned["requests"] != []
    for path in (f"/_search/pipeline/{done.pipeline}", f"/_plugins/_ml/models/{known.model_id}"):
        with pytest.raises(NotFound):
            ml_cluster.request("GET", path)


def test_a_deleted_pipeline_is_made_again(shelf: Cluster) -> None:
    done = deploy(shelf, INDEX, DeploySettings(), DEFAULTS)
    shelf.request("DELETE", path_of("_search", "pipeline", done.pipeline))
    assert deploy(shelf, INDEX, DeploySettings(), DEFAULTS).changed
    undeploy(shelf, INDEX)


def test_dry_run_shows_the_requests_and_sends_none(
    shelf: Cluster, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    before = shelf.index_info(resolve(shelf, INDEX).name)
    command = ["deploy", INDEX, "--way", "transparent", "--server", server.url, "--url", shelf.url]
    assert hybridr_cli.main([*command, "--dry-run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [request["path"].rsplit("/", 1)[-1] for request in shown["requests"]][-5:] == [
        "_create",
        "_register",
        "_deploy",
        shown["pipeline"],
        "_settings",
    ]
    assert shelf.index_info(before.name) == before
    assert hybridr_cli.main([*command, "--set-cluster-settings"]) == 0
    assert "--way transparent" in capsys.readouterr().out
    assert hybridr_cli.main(["undeploy", INDEX, "--url", shelf.url, "--dry-run"]) == 0
    assert "nothing was sent" in capsys.readouterr().out
    assert resolve(shelf, INDEX).record.deployment
    assert hybridr_cli.main(["undeploy", INDEX, "--url", shelf.url]) == 0
    assert resolve(shelf, INDEX).settings == before.settings


def test_a_token_is_never_shown(shelf: Cluster, server: Server) -> None:
    settings = DeploySettings(way="neural", server=server.url, token="sesame-42")
    assert "sesame" not in json.dumps(plan_deployment(shelf, INDEX, settings, DEFAULTS).requests)


def test_refusals(shelf: Cluster, server: Server, cluster: Cluster, index_name: str) -> None:
    neural = DeploySettings(way="neural", server=server.url)
    with pytest.raises(Unreachable, match="no embedding server answers"):
        plan_deployment(shelf, INDEX, DeploySettings(way="neural", server="http://127.0.0.1:1"), DEFAULTS)
    with pytest.raises(SettingsError, match="no address"):
        plan_deployment(shelf, INDEX, DeploySettings(way="neural", server="nowhere"), DEFAULTS)
    shelf.request("PUT", "/_cluster/settings", {"persistent": {TRUSTED: None}})
    with pytest.raises(ClusterError, match="does not let a model ask") as refused:
        deploy(shelf, INDEX, neural, DEFAULTS)
    assert "PUT /_cluster/settings" in (refused.value.hint or "")
    info = resolve(shelf, INDEX)
    shelf.request("PUT", path_of(info.name, "_settings"), {"index.search.default_pipeline": "mine"})
    with pytest.raises(ClusterError, match="default search pipeline of its own"):
        plan_deployment(shelf, INDEX, DeploySettings(), DEFAULTS)
    shelf.request("PUT", path_of(info.name, "_settings"), {"index.search.default_pipeline": None})
    fill_index(cluster, index_name, 5)
    with pytest.raises(DataError, match="no complete vectors"):
        plan_deployment(cluster, index_name, DeploySettings(), DEFAULTS)


def test_a_server_with_another_encoder_is_refused(shelf: Cluster) -> None:
    from support.hashing import HashingEncoder

    other = Server(create_app(HashingEncoder()))
    try:
        settings = DeploySettings(way="neural", server=other.url)
        with pytest.raises(FingerprintMismatch, match="the vectors of"):
            plan_deployment(shelf, INDEX, settings, DEFAULTS)
    finally:
        other.stop()


def test_without_ml_commons_only_clients_can(cluster: Cluster, index_name: str) -> None:
    from support.hashing import HashingEncoder

    fill_index(cluster, index_name, 20)
    reindex(cluster, index_name, HashingEncoder())
    with pytest.raises(ClusterError, match="needs the plugin opensearch-ml"):
        plan_deployment(cluster, index_name, DeploySettings(way="neural"), DEFAULTS)
    assert deploy(cluster, index_name, DeploySettings(), DEFAULTS).changed
    undeploy(cluster, index_name)
