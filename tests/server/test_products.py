"""What a run does that is killed or has company, stages, rules, tuning and the server: the same on
OpenSearch and on Elasticsearch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient

from hybridr import ReindexSettings, Rule, Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.errors import NotFound, SettingsError
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.rollback import rollback
from hybridr.indexing.stages.transfer import export_text, import_vectors
from hybridr.indexing.stages.vectors import encode_texts
from hybridr.indexing.verification import verify
from hybridr.records import Qrels, Query
from hybridr.relevance import learning
from hybridr.relevance.learning import learn, unlearn
from hybridr.relevance.settings import TuneSettings
from hybridr.relevance.tuning import tune
from hybridr.search.rules.rules import add_rules, fetch_rules, remove_rules
from hybridr.serving.application import create_app
from hybridr.serving.rewriting.rewriting import BodyRanking, ReadBody
from hybridr.serving.settings import ServeSettings
from hybridr.status import leftovers
from hybridr.status.standing import remove, status
from support.corpus import (
    delete,
    drop_indices,
    fill_index,
    put_documents,
    reindexed,
    sources,
    text_number,
    update,
)
from support.hashing import HashingEncoder
from support.rights import differences
from support.waiting import wait_until
from support.workers import Telling, settled_count, told_in

pytestmark = [pytest.mark.node, pytest.mark.elastic]
ON_ELASTICSEARCH = pytest.mark.parametrize("product", ["elastic"], indirect=True)
"""OpenSearch has others: kills are in `test_chaos.py`, stages in `test_transfer_importing.py`, drops and
removals in `test_roles.py`, generations in `test_switching_carrying.py`.
"""
COUNT = 160
ENCODER = HashingEncoder()
Judged = tuple[list[Query], Qrels]


def written(cluster: Cluster, index: str) -> int:
    if not cluster.exists(index):
        return 0
    cluster.refresh(index)
    return cluster.count(index)


@ON_ELASTICSEARCH
def test_kill_9_then_the_same_command(product, name, tiny, cli):
    """Nothing is lost and nothing encoded twice; then verified and rolled back."""
    fill_index(product, name, COUNT)
    destination, command = f"{name}-hybridr-1", f"reindex {name} --encoder {tiny}"
    slowly = {"HYBRIDR_REINDEX_MAX_DOCS_PER_SECOND": "40", "HYBRIDR_REINDEX_READ_DOCUMENTS": "20"}
    words = [sys.executable, "-m", "hybridr_cli", *command.split(), "--url", product.url]
    running = subprocess.Popen(words, env=os.environ | slowly)
    wait_until(lambda: written(product, destination) >= 40)
    running.kill()
    assert running.wait() == -signal.SIGKILL
    there = settled_count(lambda: written(product, destination))
    assert 40 <= there < COUNT
    assert not product.exists(f"{name}-hybridr")
    done = cli(product, f"{command} --json").json
    assert (done["skipped"], done["encoded"], done["switched"]) == (there, COUNT - there, True)
    assert sources(product, destination) == sources(product, name)
    cli(product, f"verify {name} --json")
    assert rollback(product, name)["to"] == name


@ON_ELASTICSEARCH
def test_a_drop_and_a_removal_leave_nothing_but_rules_then_nothing(product, name):
    reindexed(product, name, 30, HashingEncoder())
    judged = [Query("q", text_number(3))], {"q": {"d3": 1}}
    memory = learn(product, name, judged, encoder=HashingEncoder()).memory
    add_rules(product, name, [Rule(name="r", text="x", ban=("d1",))])
    assert leftovers.rollback(product, name, drop=True)["memories"] == [memory]
    reindex(product, name, HashingEncoder())
    assert [rule.name for rule in fetch_rules(product, name).rules] == ["r"]
    leftovers.rollback(product, name, drop=True)
    assert remove(product, name)["rules"] == [f"{name}-hybridr-rules"]
    with pytest.raises(NotFound, match="hybridr made nothing"):
        remove(product, name)


@ON_ELASTICSEARCH
def test_two_processes_at_once_make_one_index(product, name, tmp_path):
    """Each helps the other: what one wrote before, the other finds there."""
    fill_index(product, name, COUNT)
    code = "import sys; from support.workers import beside; beside(*sys.argv[1:])"
    command = [sys.executable, "-c", code, product.url, name, str(tmp_path)]
    path = os.pathsep.join(sys.path)
    two = [subprocess.Popen(command, env=os.environ | {"PYTHONPATH": path}) for _ in range(2)]
    assert [one.wait(60) for one in two] == [0, 0]
    assert [info.name for info in product.indices(f"{name}-hybridr")] == [f"{name}-hybridr-1"]
    assert len(product.indices(f"{name}-hybridr-*")) == 1
    assert len(list(tmp_path.glob("*.txt"))) == 2
    assert set(told_in(tmp_path)) == {text_number(number) for number in range(COUNT)}
    assert sources(product, f"{name}-hybridr-1") == sources(product, name)
    assert verify(product, name, Telling(tmp_path), sample=COUNT).ok


@ON_ELASTICSEARCH
def test_three_stages_and_what_changed_since(product, name, tmp_path):
    fill_index(product, name, 60, settings={"number_of_shards": 2, "number_of_replicas": 0})
    assert export_text(product, name, tmp_path).documents == 60
    encode_texts(tmp_path, ENCODER)
    put_documents(product, name, range(3, 6), suffix=" changed")
    put_documents(product, name, range(60, 62))
    update(product, name, "d9", price=99.0)  # another `_seq_no`, the same text
    delete(product, name, "d7")
    encoder = HashingEncoder()
    done = import_vectors(product, name, tmp_path, encoder, ReindexSettings(term_table=False))
    assert (done.taken, done.encoded, done.documents, done.switched) == (55, 61, 61, True)
    assert sum("changed" in text for text in encoder.encoded) >= 3
    assert sources(product, done.destination) == sources(product, name)
    assert verify(product, name, ENCODER, sample=100).ok
    assert set(resolve(product, name).record.synced or {}) == {0, 1}
    again = import_vectors(product, name, tmp_path, encoder, ReindexSettings(term_table=False))
    assert (again.encoded, again.skipped) == (0, 61), "those of no part count too"
    assert reindex(product, name, ENCODER, ReindexSettings(term_table=False)).skipped == 61


@ON_ELASTICSEARCH
def test_three_generations(product, name):
    """Writers of each side between each; `status` is right to the document after every step."""
    fill_index(product, name, 20, settings={"number_of_shards": 2, "number_of_replicas": 0})
    settings = ReindexSettings(term_table=False)
    alias = reindex(product, name, ENCODER, settings).alias or ""
    for number in range(1, 3):
        put_documents(product, alias, [100 + number, number], suffix=f" by a client {number}")
        delete(product, alias, f"d{9 + number}")
        put_documents(product, name, [200 + number], suffix=" by the source")
        before, source = sources(product, alias), sources(product, name)
        expected = before | {f"d{200 + number}": source[f"d{200 + number}"]}
        encoder = HashingEncoder(salt=str(number))
        assert reindex(product, name, encoder, settings).destination == f"{name}-hybridr-{number + 1}"
        product.refresh(alias)
        assert sources(product, alias) == expected
        *older, held = status(product, name).holdings
        none = {"conflicts": 0, "deletes_known": True}
        assert held.writes == {"changed": 2 * number, "deleted": number, **none}
        assert held.current == held.documents == len(expected)
        assert not any(one.writes and (one.writes["changed"] or one.writes["deleted"]) for one in older)
        assert verify(product, name, encoder).problems() == []
    remove(product, name, copy_back=True)
    product.refresh(name)
    assert sources(product, name) == expected


@pytest.fixture(scope="module")
def pair(cluster: Cluster, elastic: Cluster) -> Iterator[tuple[str, list[Cluster]]]:
    """The same documents with the same vectors on both."""
    name, both = f"hybridr-try-{uuid.uuid4().hex[:8]}", [cluster, elastic]
    for one in both:
        reindexed(one, name, COUNT, ENCODER)
    yield name, both
    for one in both:
        drop_indices(one, f"{name}*,.hybridr-*-{name}*")


@pytest.fixture(scope="module")
def judged() -> Judged:
    """Queries whose number alone says which document is meant, two of each document."""
    numbers = range(0, COUNT, 8)
    asked = [(f"q{n}-{word}", f"n{n} {word} anchor") for n in numbers for word in ("candle", "basket")]
    qrels = {query: {f"d{query[1:].partition('-')[0]}": 1} for query, _ in asked}
    return [Query(*one) for one in asked], qrels


def test_rules_pin_ban_and_filter_alike(pair):
    name, both = pair
    few, found = {"range": {"price": {"lt": 2}}}, []
    rules = [
        Rule(name="pins", text=text_number(7), pin=("d50", "d51"), ban=("d7",)),
        Rule(name="few", words="saddle", filter=few),
    ]
    for cluster in both:
        add_rules(cluster, name, rules)
        search = Search(cluster, name, ENCODER)
        hits = [[(hit.doc_id, hit.rule) for hit in search(text, 12)] for text in (text_number(7), "a saddle")]
        assert hits[0][:2] == [("d50", "pins"), ("d51", "pins")]
        assert "d7" not in dict(hits[0])
        assert {int(doc[1:]) for doc, _ in hits[1]} <= set(range(20))
        found.append(hits)
        assert len(fetch_rules(cluster, name).rules) == 2
        remove_rules(cluster, name, ["pins", "few"])
        assert resolve(cluster, name).record.rules is None
    assert not differences(*found, near=1e-4)


def test_judged_queries_tune_alike(pair, judged):
    name, both = pair
    found = []
    for cluster in both:
        choice = tune(cluster, name, judged, encoder=ENCODER, settings=TuneSettings(dry_run=True)).choice
        curve = {str(point.variant): point.mean for point in choice.curve}
        found.append({"chosen": choice.chosen.settings, "gain": choice.gain, "curve": curve})
    assert len(found[0]["curve"]) > 5
    assert not differences(*found, near=1e-4)


def test_judged_queries_are_learnt_alike(pair, judged, monkeypatch):
    name, both = pair
    # Each job has a random name, and these are compared too.
    monkeypatch.setattr(learning, "secrets", SimpleNamespace(token_hex=lambda size: "0a1b2c3d"))
    found = []
    for cluster in both:
        dry = learn(cluster, name, judged, encoder=ENCODER, dry_run=True)
        learnt = learn(cluster, name, judged, encoder=ENCODER)
        try:
            hits = Search(cluster, name, ENCODER)("n16 candle anchor", 10, explain=True)
        finally:
            unlearn(cluster, name)
        assert any((hit.parts or {}).get("memory", 0) > 0.1 for hit in hits if hit.doc_id == "d16")
        found.append([dry.to_json(), learnt.to_json(), {hit.doc_id: hit.parts for hit in hits}])
        assert resolve(cluster, name).record.memory is None
    assert not differences(*found, near=1e-4)


def test_a_server_answers_alike(pair):
    name, both = pair
    apps = [create_app(ENCODER, ServeSettings(index=name), cluster=cluster) for cluster in both]
    for mode in ("dense", "hybrid"):
        asked = {"query": text_number(7), "k": 5, "mode": mode}
        answers = [TestClient(app).post("/search", json=asked) for app in apps]
        assert [one.status_code for one in answers] == [200, 200]
        ours, theirs = ([(hit["doc_id"], hit["score"]) for hit in one.json()["hits"]] for one in answers)
        assert ours[0][0] == "d7"
        assert not differences(ours, theirs, near=1e-4)


def test_a_template_ranks_as_a_clients_own_search_after_a_second_reindex_too(product, name, tmp_path):
    fill_index(product, name, COUNT)
    own = {"multi_match": {"query": "{{query}}", "fields": ["text^3", "tags"]}}
    factor = {"field_value_factor": {"field": "price", "missing": 0}, "boost_mode": "sum"}
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"query": {"function_score": {"query": own, **factor}}}))
    for settings in (ReindexSettings(), ReindexSettings(vectors="byte")):
        reindex(product, name, ENCODER, settings)
        search = Search(product, name, ENCODER, settings=SearchSettings(query_template=file))
        if not search.context.fusion.asks_once:
            with pytest.raises(SettingsError, match="runs no scripts"):
                search(text_number(7), 40)
            continue
        hits = search(text_number(7), 40, explain=True)
        ranking = BodyRanking(Search(product, name, ENCODER))
        query = json.loads(file.read_text().replace("{{query}}", text_number(7)))
        parsed = ranking.read({**query, "size": 40, "_source": ["price"]})
        assert isinstance(parsed, ReadBody)
        ranked = ranking.rank(parsed)
        found = product.search(ranking.search.info, ranked.body)["hits"]["hits"]
        expected = {hit["_id"]: hit["_score"] for hit in found}
        assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(expected)
        prices = {hit["_id"]: hit["_source"].get("price", 0) for hit in found}
        told = {hit.doc_id: (hit.parts or {})["functions"] for hit in hits}
        assert told == pytest.approx({doc: prices[doc] for doc in told}, abs=1e-3)
