"""On a secured OpenSearch 3 the shipped roles rank as an administrator does, or say which right they lack."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hybridr import Search, SearchSettings, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.embedded.state import NodeState
from hybridr.encoders.contract import Encoder
from hybridr.encoders.opening import load_encoder
from hybridr.errors import AccessDenied
from hybridr.files.formats import read_beir
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.indexing.terms.storage import HOME, open_term_table
from hybridr.records import Document, Qrels, Query
from hybridr.relevance import answering
from hybridr.relevance.learning import learn
from hybridr.search import calibration
from hybridr.search.past_queries import memory_name
from hybridr.status.standing import status
from support.corpus import drop_indices
from support.hashing import HashingEncoder
from support.rights import (
    Connecting,
    answers,
    differences,
    fill_unevenly,
    fresh_machine,
    printed,
    role_of,
    tried,
    user_of,
)

pytestmark = [pytest.mark.secured, pytest.mark.model]
INDEX, OTHER = "p-rights", "p-rights-of-others"
SHARES = (90, 30, 8)
"""Documents in each shard."""
TABLE_RIGHT = "indices:data/read/mget*"


class Judged(NamedTuple):
    documents: list[Document]
    queries: list[Query]
    qrels: Qrels
    encoder: Encoder


@pytest.fixture(scope="module", autouse=True)
def few_probes() -> Iterator[None]:
    """Measure the scale of a shape of queries with five texts, and calibrate with fewer queries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "PROBED", 5)
        patch.setattr(answering, "SEARCHED_QUERIES", 100)
        yield


@pytest.fixture(scope="module")
def held(collection: Callable[[str], Path], minilm_encoder_folder: Path) -> dict[str, Judged]:
    """Two collections, long texts by an encoder that takes no time and short ones by the packaged one."""
    encoders = {INDEX: HashingEncoder(32), OTHER: load_encoder(minilm_encoder_folder)}
    found = {}
    for index, name, count in ((INDEX, "cranfield", 15), (OTHER, "stackfaq", 6)):
        documents, queries, qrels = read_beir(collection(name))
        chosen = queries[:count]
        judged = {one.query_id: qrels[one.query_id] for one in chosen}
        found[index] = Judged(documents, chosen, judged, encoders[index])
    return found


@pytest.fixture(scope="module")
def judged(held: dict[str, Judged]) -> Judged:
    return held[INDEX]


@pytest.fixture(scope="module")
def admin(secured_node: NodeState, held: dict[str, Judged]) -> Iterator[Cluster]:
    cluster = connect(secured_node.url)
    for index, one in held.items():
        fill_unevenly(cluster, index, one.documents, SHARES)
        reindex(cluster, index, one.encoder, ReindexSettings(precision="fp32"))
        found = Search(cluster, index, one.encoder).run(one.queries)
        judged = {query: {list(ranked)[2]: 1} for query, ranked in found.items()}
        learn(cluster, index, (one.queries, judged), encoder=one.encoder)
    yield cluster
    drop_indices(cluster, f"{INDEX}*,.hybridr-*{INDEX}*")


@pytest.fixture(scope="module")
def user(secured_node: NodeState, admin: Cluster) -> Connecting:
    return user_of(secured_node, admin, INDEX)


def test_the_shards_are_uneven_and_the_words_enough(admin):
    shards = admin.request("GET", path_of(INDEX, "_stats", "docs"), params={"level": "shards"})["indices"]
    counts = [copies[0]["docs"]["count"] for copies in shards[INDEX]["shards"].values()]
    assert sorted(counts) == sorted(SHARES)
    table = admin.index_info(f"{INDEX}-hybridr-1").record.term_table
    assert table.terms > 1_000


@pytest.fixture(scope="module")
def users(secured_node: NodeState, admin: Cluster, user: Connecting) -> dict[str, Connecting]:
    return {INDEX: user, OTHER: user_of(secured_node, admin, OTHER)}


@pytest.fixture
def both(users: dict[str, Connecting], admin: Cluster, tmp_path: Path) -> Callable[..., Iterator[Cluster]]:
    """A user who may do what a verb does with an index, then the administrator, on a fresh machine each."""

    def each(index: str, verb: str) -> Iterator[Cluster]:
        for cluster in (users[index](verb), admin):
            with fresh_machine(tmp_path):
                yield cluster

    return each


@pytest.mark.parametrize(
    ("index", "verb", "ask", "most"),
    [(INDEX, "search", answers, 2), (OTHER, "search", answers, 2), (INDEX, "tune", tried, 15)],
    ids=["long texts", "short texts", "tune"],
)
def test_every_way_of_asking_equals_itself_asked_as_admin(both, held, index, verb, ask, most):
    """The transparent way too, and it equals a search of the same recall."""
    one = held[index]
    queries = one.queries[:most]
    qrels = {asked.query_id: one.qrels[asked.query_id] for asked in queries}
    told = [ask(cluster, index, one.encoder, queries, qrels) for cluster in both(index, verb)]
    assert not differences(*told)


def test_the_command_line_ranks_for_a_user_as_for_an_administrator(both, held, minilm_encoder_folder, capsys):
    queries = held[OTHER].queries[:3]
    told = [
        printed(cluster, OTHER, minilm_encoder_folder, queries, capsys) for cluster in both(OTHER, "search")
    ]
    assert all(len(hits) == 10 for hits in told[0])
    assert not differences(*told)


@pytest.mark.parametrize("verb", ["serve", "evaluate"])
def test_who_serves_or_evaluates_has_the_rights_of_who_searches(verb):
    assert role_of(verb, INDEX) == role_of("search", INDEX)


def test_a_version_that_may_not_be_read_is_not_guessed(user):
    """Scores of 3.0 are another scale than those of 2.19: a guess would rank otherwise."""
    role = role_of("search", INDEX)
    role["cluster_permissions"].remove("cluster:monitor/main")
    with pytest.raises(AccessDenied, match="does not tell this user its version") as caught:
        user(role)
    assert "cluster:monitor/main" in str(caught.value.hint)


def test_a_table_of_terms_that_may_not_be_read_is_named_and_nothing_ranks_without_it(
    user, admin, judged, tmp_path
):
    role = role_of("search", INDEX)
    for part in role["index_permissions"]:
        if part["index_patterns"] == [HOME + INDEX]:
            part["allowed_actions"].remove(TABLE_RIGHT)
    without = SearchSettings(signals=("phrases",))
    with fresh_machine(tmp_path):
        cluster = user(role)
        with pytest.raises(
            AccessDenied, match=f"table of terms of '{INDEX}-hybridr-1' may not be read"
        ) as it:
            Search(cluster, INDEX, HashingEncoder(32))
        assert f"{TABLE_RIGHT} on {HOME}{INDEX}" in str(it.value.hint)
        assert "--signals phrases" in str(it.value.hint)
        found = Search(cluster, INDEX, HashingEncoder(32), settings=without).run(judged.queries, 10)
    assert found == Search(admin, INDEX, HashingEncoder(32), settings=without).run(judged.queries, 10)


@pytest.mark.attack(91)
@pytest.mark.parametrize("verb", ["reindex", "tune", "learn", "remove", "status", "search"])
def test_a_role_for_one_index_reads_and_writes_the_words_of_one(user, admin, tmp_path, verb):
    others = HOME + OTHER
    part = admin.search(others, {"size": 1})["hits"]["hits"][0]["_id"]
    cluster = user(verb)
    for method, path, body in (
        ("POST", path_of(others, "_search"), {}),
        ("POST", path_of(others, "_mget"), {"ids": [part]}),
        ("PUT", path_of(others, "_doc", part), {"data": ""}),
        ("DELETE", path_of(others), None),
        ("POST", path_of(f"{OTHER}-hybridr-1", "_search"), {}),
        ("POST", path_of(memory_name(f"{OTHER}-hybridr-1", "1"), "_search"), {}),
        ("DELETE", path_of(memory_name(f"{OTHER}-hybridr-1", "1")), None),
    ):
        with pytest.raises(AccessDenied):
            cluster.request(method, path, body, every_shard=True)
    if verb != "remove":
        with fresh_machine(tmp_path):
            assert open_term_table(cluster, cluster.index_info(f"{INDEX}-hybridr-1")) is not None


def test_the_role_of_status_sees_where_the_words_lie(user, admin, tmp_path):
    with fresh_machine(tmp_path):
        [held] = status(user("status"), INDEX).holdings
    assert held.sidecar_states["term_table"].places == ("cluster",)


def test_who_sees_a_part_of_the_documents_gets_no_words_of_the_others(user, admin, judged, tmp_path):
    """Security of documents ends at the table: who may read it reads words of all, without it nobody does."""
    role = role_of("search", INDEX)
    seen = sorted(hit["_id"] for hit in admin.search(INDEX, {"size": 40, "_source": False})["hits"]["hits"])
    whole, table = role["index_permissions"]
    whole["dls"] = json.dumps({"ids": {"values": seen}})
    with fresh_machine(tmp_path):
        cluster = user(role)
        info = cluster.index_info(f"{INDEX}-hybridr-1")
        words = open_term_table(cluster, info)
        hidden = [one for one in words.terms[::40] if not cluster.count(info, {"term": {"text": one}})]
        assert len(hidden) > 10, "the table is of the whole index"
    role["index_permissions"].remove(table)
    with fresh_machine(tmp_path):
        cluster = user(role)
        with pytest.raises(AccessDenied, match="table of terms"):
            Search(cluster, INDEX, HashingEncoder(32))
        search = Search(cluster, INDEX, HashingEncoder(32), settings=SearchSettings(signals=("phrases",)))
        for one in judged.queries[:5]:
            assert {hit.doc_id for hit in search(one.text, 20)} <= set(seen)
