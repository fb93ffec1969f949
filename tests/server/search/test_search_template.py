"""A user's own lexical query on a real node: every verb, its filters, the scale of the plain one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import SettingsError
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.records import Query
from hybridr.relevance.settings import TuneSettings
from hybridr.relevance.tuning import tune
from hybridr.search.systems import Compared, evaluate_index
from hybridr.serving.application import create_app
from hybridr.serving.deploy.deploying import plan_deployment
from hybridr.serving.settings import DeploySettings, ServeSettings
from support.corpus import filled_and_reindexed, text_number
from support.hashing import HashingEncoder

ENCODER = HashingEncoder()
FILTER = {"range": {"price": {"gte": 1}}}


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    name = "t-template"
    with filled_and_reindexed(cluster, name, 60, ENCODER) as name:
        yield name


def settings(folder: Path, query: dict[str, Any]) -> SearchSettings:
    file = folder / "own.json"
    file.write_text(json.dumps({"query": query}))
    return SearchSettings(query_template=file)


def boosted(boost: float, *filters: dict[str, Any]) -> dict[str, Any]:
    match = {"match": {"text": {"query": "{{query}}", "boost": boost}}}
    return {"bool": {"must": [match], "filter": list(filters)}}


@pytest.mark.parametrize("fusion", ["absolute", "pipeline"])
def test_a_boost_alone_changes_no_hybrid_score(cluster, index, tmp_path, fusion):
    own = settings(tmp_path, boosted(7.0)).model_copy(update={"fusion": fusion})
    plain = SearchSettings(fusion=fusion)
    found, expected = (
        Search(cluster, index, ENCODER, settings=one)(text_number(7), 20) for one in (own, plain)
    )
    assert [hit.score for hit in found] == pytest.approx([hit.score for hit in expected], rel=1e-4)

    # Its filter holds for neighbours too.
    own = settings(tmp_path, boosted(3.0, FILTER))
    for mode in ("lexical", "hybrid", "dense"):
        search = Search(cluster, index, ENCODER, mode, settings=own)
        kept = [{"ids": {"values": [hit.doc_id for hit in search(text_number(7), 50)]}}, FILTER]
        found = len(search(text_number(7), 50))
        answer = cluster.request(
            "POST", path_of(search.info.name, "_count"), {"query": {"bool": {"filter": kept}}}
        )
        assert answer["count"] == found > 10


def test_every_verb_takes_it(cluster, index, tmp_path, cli):
    own = settings(tmp_path, boosted(3.0, FILTER))
    text = text_number(20)
    [body] = [Search(cluster, index, ENCODER, settings=own).request(text, 5)]
    assert '"boost": 3.0' in json.dumps(body)
    served = create_app(ENCODER, ServeSettings(index=index), cluster=cluster, search=own)
    hits = TestClient(served).post("/search", json={"query": text}).json()["hits"]
    expected = Search(cluster, index, ENCODER, settings=own)(text)
    assert [hit["doc_id"] for hit in hits] == [hit.doc_id for hit in expected]
    queries = [Query(f"q{number}", text_number(number)) for number in range(12, 60, 4)]
    qrels = {query.query_id: {f"d{query.query_id[1:]}": 1} for query in queries}
    wanted = TuneSettings(dry_run=True)
    found = tune(cluster, index, (queries, qrels), encoder=ENCODER, settings=wanted, search=own)
    assert found.choice.queries == len(queries)
    example = plan_deployment(cluster, index, DeploySettings(), own).example
    [lexical, _] = json.loads(example)["query"]["hybrid"]["queries"]
    assert lexical == json.loads(json.dumps(boosted(3.0, FILTER)).replace("{{query}}", "…"))
    command = ["search", index, text, "--mode", "lexical", "--query-template", str(own.query_template)]
    assert cli.typed([*command, "--json", "--url", cluster.url]).json["hits"][0]["doc_id"] == "d20"


def test_evaluate_measures_it_alone_and_below_the_hybrid(cluster, index, tmp_path, cli):
    own = settings(tmp_path, {"match": {"text": {"query": "{{query}}", "operator": "and"}}})
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("q\td\ts\nq1\td7\t1\n")
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "no such words n7"}))
    judged, compared = JudgedQueries(tmp_path), Compared(("bm25", "template"), measures=("nDCG@10",))
    found = evaluate_index(cluster, index, judged, compared, settings=own)
    assert found.systems["bm25"]["nDCG@10"] > found.systems["template"]["nDCG@10"] == 0
    loose = tmp_path / "loose.json"
    loose.write_text(json.dumps({"match": {"text": "{{query}}"}}))
    command = ["evaluate", index, "--beir", str(tmp_path), "--systems", "bm25,lexical", "--url", cluster.url]
    given = ["--query-template", str(own.query_template), "--query-template", f"theirs={loose}"]
    measured = {
        name: one["nDCG@10"] for name, one in cli.typed([*command, *given, "--json"]).json["systems"].items()
    }
    assert list(measured) == ["bm25", Path(str(own.query_template)).stem, "theirs", "lexical"]
    assert list(measured.values()) == [1, 0, 1, 0], "the first is the lexical leg too"
    twice = Compared(("bm25",), templates={"bm25": loose})
    with pytest.raises(SettingsError, match="two systems are called 'bm25'"):
        evaluate_index(cluster, index, judged, twice)
    with pytest.raises(SettingsError, match="your own query"):
        evaluate_index(cluster, index, judged, compared)
    with pytest.raises(SettingsError, match="rm3"):
        Search(cluster, index, ENCODER, "lexical", "rm3", settings=own)
