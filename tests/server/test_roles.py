"""On OpenSearch 3 each verb works for a user who has its role of `opensearch/roles` and nothing else."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hybridr import Rule, Search, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import write_record
from hybridr.cluster.embedded.state import NodeState
from hybridr.cluster.loading import load
from hybridr.cluster.record_parts import Tuned
from hybridr.cluster.settings import LoadSettings
from hybridr.cluster.writing import MemoryRejects, bulk_action, write
from hybridr.doctor.forecasting import estimated_plan
from hybridr.doctor.inspection import inspect_index
from hybridr.doctor.recall import measure_recall
from hybridr.errors import AccessDenied, ClusterError, NotFound
from hybridr.indexing.planning import Plan
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.settings import ReindexSettings
from hybridr.indexing.stages.transfer import export_text, import_vectors
from hybridr.indexing.stages.vectors import encode_texts
from hybridr.indexing.terms import storage
from hybridr.indexing.verification import verify
from hybridr.records import Query, silent
from hybridr.relevance.clicks.clicks import read_clicks
from hybridr.relevance.clicks.ubi import EVENTS, QUERIES, UbiWriter
from hybridr.relevance.corpus import estimate_bytes, read_index
from hybridr.relevance.experiments import promote_ranking, report_experiment, start_experiment
from hybridr.relevance.learning import learn, unlearn
from hybridr.relevance.tuning import reset_tuning, tune
from hybridr.search.calibration import PROBED
from hybridr.search.rules.rules import add_rules, fetch_rules
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.rewriting.explaining import verdicts_on
from hybridr.serving.settings import DeploySettings
from hybridr.status import leftovers
from hybridr.status.standing import remove, status
from support import click_logs
from support.corpus import bulk, drop_indices, fill_index, put_documents, text_number, touching_pipeline
from support.hashing import HashingEncoder
from support.places import ROOT
from support.rights import OWN, Connecting, fresh_machine, role_of, user_of

pytestmark = pytest.mark.secured
INDEX, OTHER = "t-roles", "t-private"
ENCODER, USER = HashingEncoder(), f"{INDEX}-{OWN}"
TEXTS = [Query(str(number), text_number(number)) for number in range(12)]
SAME = {"serve": "search", "evaluate": "search", "inspect": "adapt"}
QRELS = {str(number): {f"d{number}": 1} for number in range(12)}


@pytest.fixture(scope="module")
def admin(secured_node: NodeState) -> Iterator[Cluster]:
    cluster = connect(secured_node.url)
    fill_index(cluster, OTHER, 3)
    yield cluster
    drop_indices(cluster, f"{INDEX}*,{OTHER}*,.hybridr-*-{INDEX}*")


@pytest.fixture(scope="module")
def bob(admin: Cluster, secured_node: NodeState) -> Connecting:
    """Connect as a user who has one role, which is that of a verb."""
    connect_as = user_of(secured_node, admin, INDEX)

    def connected(role: str | dict[str, Any]) -> Cluster:
        cluster = connect_as(role)
        for denied in (partial(cluster.count, OTHER), partial(cluster.indices, "*")):
            with pytest.raises(AccessDenied):
                denied()
        return cluster

    return connected


def asked(cluster: Cluster) -> list[dict[str, float]]:
    """What every kind of search finds."""
    ways = [SearchSettings(fusion=fusion) for fusion in ("absolute", "pipeline")]
    searches = [Search(cluster, INDEX, ENCODER, settings=way) for way in ways]
    searches.append(Search(cluster, INDEX, ENCODER, "lexical", "rm3"))
    assert {"phrases", "soft_terms"} <= searches[0].signals.members.keys()
    return [found for search in searches for found in search.run(TEXTS, 10).values()]


@contextmanager
def clicks_kept(admin: Cluster) -> Iterator[dict[str, Any]]:
    """Have the cluster keep clicks as UBI does; give the role of who learns from them, as docs tell it."""
    shown, role = [f"d{number}" for number in range(12)], role_of("learn", INDEX)
    people = [(f"{query.query_id}-{number}", query) for query in TEXTS for number in range(4)]
    searches = [click_logs.asked(name, name, query.text, shown) for name, query in people]
    clicks = [click_logs.clicked(name, name, f"d{query.query_id}") for name, query in people]
    for index, records in ((QUERIES, searches), (EVENTS, clicks)):
        bulk(admin, index, [line for record in records for line in ({"index": {}}, record)])
        role = {part: [*rights, *role_of("inspect", index)[part]] for part, rights in role.items()}
    yield role
    for index in (QUERIES, EVENTS):
        admin.request("DELETE", path_of(index))


@pytest.fixture(autouse=True)
def few_words_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "MIN_TERMS", 1)


@pytest.mark.attack(8)
def test_the_verbs_of_a_life_each_with_its_role(admin, bob, tmp_path, monkeypatch):
    monkeypatch.setattr("hybridr.relevance.tuning.encoder_for", lambda *_, **__: ENCODER)
    reads_english = "hybridr.serving.deploy.preconditions.languages_by_fingerprint"
    monkeypatch.setattr(reads_english, lambda *_: ("en",))  # as of the packaged encoder: texts are looked at
    file = tmp_path / "corpus.jsonl"
    lines = (json.dumps({"_id": f"d{number}", "text": text_number(number)}) for number in range(40))
    file.write_text("\n".join(lines))
    assert load(bob("load"), file, LoadSettings(index=INDEX)).documents == 40
    cluster = bob("adapt")
    assert len(list(read_index(cluster, INDEX, (), silent))) == 40
    assert estimate_bytes((cluster, INDEX)) > 0
    assert inspect_index(cluster, INDEX).documents == 40
    assert estimated_plan(bob("reindex"), INDEX, ENCODER, ReindexSettings()).proposal.documents == 40
    done = reindex(bob("reindex"), INDEX, ENCODER)
    assert (done.encoded, done.rejected, done.switched) == (40, 0, True)
    info = admin.index_info(done.destination)
    assert admin.index_info(INDEX).record.destinations == (info.uuid,)
    assert info.record.synced is not None
    with fresh_machine(tmp_path):
        assert asked(bob("search")) == asked(admin)
    found = status(bob("status"), INDEX)
    assert found.to_json() == status(admin, INDEX).to_json()
    assert verify(bob("verify"), INDEX, ENCODER).ok
    assert measure_recall(bob("verify"), INDEX, ENCODER, sample=10).shares
    put_documents(admin, INDEX, range(39, 42), suffix=" later")
    assert sync(bob("sync"), INDEX, ENCODER).copied == 3
    tuned = tune(bob("tune"), INDEX, (TEXTS, QRELS))
    assert tuned.index == done.destination
    assert admin.index_info(done.destination).record.history[-1]["event"] == "tuned"
    plain = asked(bob("search"))
    for dry in (True, False):
        assert learn(bob("learn"), INDEX, (TEXTS, QRELS), encoder=ENCODER, dry_run=dry).queries == 12
    assert asked(bob("search")) == asked(admin) != plain
    with clicks_kept(admin) as role:
        assert read_clicks(bob(role), INDEX).report.searches == 4 * len(TEXTS)
    assert unlearn(bob("learn"), INDEX).memory
    assert asked(bob("search")) == plain
    memory = learn(bob("learn"), INDEX, (TEXTS, QRELS), encoder=ENCODER).memory
    assert status(bob("status"), INDEX).to_json() == status(admin, INDEX).to_json()
    rule = Rule(name="pin", text=TEXTS[0].text, pin=("d9",))
    assert add_rules(bob("rules"), INDEX, [rule], by="bob").now.version == 1
    assert Search(bob("search"), INDEX, ENCODER)(TEXTS[0].text, 1)[0].rule == "pin"
    assert status(bob("status"), INDEX).to_json() == status(admin, INDEX).to_json()
    assert fetch_rules(bob("rules"), INDEX).rules[0].by == "bob"
    try_experiment(admin, bob, done.destination)
    write_record(admin, done.destination, tuning=Tuned(search={"weight": 0.4}))
    assert reset_tuning(bob("tune"), INDEX).tuned is not None
    assert admin.index_info(done.destination).record.tuning is None
    cluster = bob("deploy")
    deploy(cluster, INDEX, DeploySettings(), SearchSettings())
    undeploy(cluster, INDEX)
    put_documents(admin, f"{INDEX}-hybridr", [7], suffix=" by a client")
    assert rollback(bob("rollback"), INDEX, copy_back=True)["returned"]["changed"] == 1
    done_with = remove(bob("remove"), INDEX)
    assert done_with["memories"] == [memory]
    assert done_with["rules"] == [f"{INDEX}-hybridr-rules"]
    assert not admin.exists(done.destination)
    assert not admin.index_info(INDEX).record.destinations
    reindex(admin, INDEX, ENCODER)
    memory = learn(admin, INDEX, (TEXTS, QRELS), encoder=ENCODER).memory
    dropped = leftovers.rollback(bob("rollback"), INDEX, drop=True)
    assert (dropped["dropped"], dropped["memories"]) == (True, [memory])
    assert not admin.exists(memory)
    assert remove(bob("remove"), INDEX)["removed"]
    assert not admin.index_info(INDEX).aliases


def try_experiment(admin: Cluster, bob: Connecting, destination: str) -> None:
    """Keep a search and a click as `serve --ubi` does, and take an experiment through its life."""
    counts = Counter[str]()
    keeper = UbiWriter(bob("ubi"), INDEX, lambda index, outcome, records: counts.update({outcome: records}))
    assert keeper.keep(QUERIES, [click_logs.asked("s", "anna", "lamp", ["d1"])])
    assert keeper.keep(EVENTS, [click_logs.clicked("s", "anna", "d1")])
    keeper.end()
    assert (counts["written"], counts["failed"]) == (2, 0)
    cluster = bob("experiment")
    assert start_experiment(cluster, INDEX, "today", "learnt", encoder=ENCODER).ranks == "today"
    assert report_experiment(cluster, INDEX).searches == 0
    assert promote_ranking(cluster, INDEX, "b").ranks == "learnt"
    assert promote_ranking(cluster, INDEX, undo=True).ranks == "before"
    assert admin.index_info(destination).record.remembers
    for index in (QUERIES, EVENTS):
        admin.request("DELETE", path_of(index))


def test_all_roles_are_of_verbs_that_are_tried():
    there = {path.stem for path in (ROOT / "opensearch" / "roles").glob("*.json")}
    tried = set(re.findall(r'bob\("(\w+)"\)', Path(__file__).read_text(encoding="utf-8")))
    assert there == tried | SAME.keys()
    for verb, other in SAME.items():
        assert role_of(verb, INDEX) == role_of(other, INDEX)


def test_a_missing_right_is_no_bad_document(admin, bob):
    role = role_of("load", f"{INDEX}-right")
    role["index_permissions"][0]["allowed_actions"].remove("indices:data/write/bulk*")
    fill_index(admin, f"{INDEX}-right", 2)
    cluster, rejects = bob(role), MemoryRejects()
    with pytest.raises(AccessDenied, match="no permissions for"):
        write(cluster, f"{INDEX}-right", [bulk_action("index", "1", {"text": "x"})], rejects=rejects)
    assert rejects.ids() == []


def test_the_scale_of_an_own_query_is_measured_with_the_role_of_a_search(admin, bob, tmp_path):
    """And a missing right is no fault of the request."""
    name, right = f"{INDEX}-scale", "indices:data/read/point_in_time/create"
    fill_index(admin, name, PROBED + 1)  # all of a smaller index are read without a point in time
    reindex(admin, name, ENCODER)
    own = {"query": {"multi_match": {"query": text_number(7), "fields": ["text^2", "tags"]}}}
    whole = role_of("search", name)
    with fresh_machine(tmp_path):
        less = json.loads(json.dumps(whole).replace(right, "indices:data/read/get"))
        with pytest.raises(AccessDenied, match=right):
            verdicts_on(bob(less), name, [own], SearchSettings())
        assert verdicts_on(bob(whole), name, [own], SearchSettings())[0].ranked


def test_three_stages_need_the_rights_of_a_reindex(admin, bob, tmp_path):
    name = f"{INDEX}-stages"
    fill_index(admin, name, 30)
    assert export_text(bob(role_of("inspect", name)), name, tmp_path).documents == 30
    cluster = bob(role_of("reindex", name))
    encode_texts(tmp_path, ENCODER)
    put_documents(admin, name, range(29, 31), suffix=" later")
    done = import_vectors(cluster, name, tmp_path, ENCODER)
    assert (done.taken, done.encoded, done.documents, done.switched) == (29, 31, 31, True)
    assert admin.index_info(done.destination).record.synced is not None


def test_a_template_of_data_streams_is_seen_with_the_role_of_a_reindex(admin, bob):
    """Before, it might not be read: the dry run was content, and the cluster refused the new index."""
    name = f"{INDEX}-stream"
    fill_index(admin, name, 3)
    path = path_of("_index_template", name)
    admin.request("PUT", path, {"index_patterns": [f"{name}-*"], "priority": 7, "data_stream": {}})
    try:
        with pytest.raises(ClusterError, match="a data stream, which only takes new documents") as refused:
            plan(bob(role_of("reindex", name)), name, ENCODER, ReindexSettings())
        assert re.search(r'"priority": ?8\b', str(refused.value.hint))
    finally:
        admin.request("DELETE", path)


def test_a_final_pipeline_needs_more_rights_and_nothing_is_done_without_them(admin, bob):
    name, rights = f"{INDEX}-final", "cluster:admin/ingest/pipeline/"
    touched, wrapper = touching_pipeline(admin, name), f"hybridr-{name}-hybridr-1-final"
    fill_index(admin, name, 5, settings={"number_of_replicas": 0, "index.final_pipeline": touched})

    def role(verb: str, *more: str) -> dict[str, Any]:
        given = role_of(verb, name)
        given["cluster_permissions"] += [f"{rights}{right}" for right in more]
        return given

    for more in ((), ("get",)):
        encoder = HashingEncoder()
        with pytest.raises(AccessDenied) as denied:
            reindex(bob(role("reindex", *more)), name, encoder)
        assert f"needs the rights {rights}get, put and delete" in str(denied.value.hint)
        assert not encoder.encoded
        assert not admin.indices(f"{name}-hybridr-*")
    done = reindex(bob(role("reindex", "get", "put")), name, HashingEncoder())
    put_documents(admin, name, [3], suffix=" later")
    assert sync(bob(role("sync")), name, HashingEncoder()).copied == 1
    put_documents(admin, str(done.alias), [7])
    assert admin.request("GET", path_of(done.destination, "_source", "d7"))["touched"]

    for take_away in (partial(remove, discard=True), partial(leftovers.rollback, discard=True, drop=True)):
        verb = "remove" if take_away.func is remove else "rollback"
        with pytest.raises(AccessDenied, match="pipeline/get"):
            take_away(bob(role(verb)), name)
        assert admin.index_info(str(done.alias)).name == done.destination
    assert leftovers.rollback(bob(role("rollback", "get", "delete")), name, discard=True, drop=True)[
        "dropped"
    ]
    with pytest.raises(NotFound):
        admin.request("GET", path_of("_ingest", "pipeline", wrapper))
    reindex(admin, name, HashingEncoder())
    assert remove(bob(role("remove", "get", "delete")), name)["removed"]
    with pytest.raises(NotFound):
        admin.request("GET", path_of("_ingest", "pipeline", wrapper))
    admin.request("PUT", path_of(name, "_settings"), {"index": {"final_pipeline": None}})
    admin.request("DELETE", path_of("_ingest", "pipeline", touched))


@pytest.mark.attack(7)
def test_rights_to_a_part_of_the_source_are_warned_about(admin, bob):
    name = f"{INDEX}-part"
    fill_index(admin, name, 3)
    part = {"index_patterns": [name], "allowed_actions": ["read"], "dls": '{"term": {"tags": "t1"}}'}
    main = {"cluster_permissions": ["cluster:monitor/main"]}
    role = main | {
        "index_permissions": [part, {"index_patterns": [f"{name}-hybridr*"], "allowed_actions": ["read"]}]
    }
    bob(role)
    todo: Plan = plan(admin, name, ENCODER, ReindexSettings())
    [caution] = [one for one in todo.remarks if f"'{USER}'" in one]
    assert f"role '{USER}' sees a part of '{name}'" in caution
    assert caution in todo.to_json()["cautions"]
    assert caution in reindex(admin, name, ENCODER).cautions
    part["index_patterns"] = [f"{name}*"]
    bob(main | {"index_permissions": [part]})
    assert not [one for one in plan(admin, name, ENCODER, ReindexSettings()).remarks if f"'{USER}'" in one]
