"""Security of documents and fields on 2.19.1: what a user may not see is not found and adds nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hybridr import ReindexSettings, Search, SearchSettings, connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded.state import NodeState
from hybridr.errors import SettingsError
from hybridr.records import Query
from hybridr.relevance.learning import learn, unlearn
from support.corpus import drop_indices, reindexed, text_number
from support.hashing import HashingEncoder
from support.rights import PASSWORD, make_users

pytestmark = pytest.mark.secure
INDEX, TEXT = "t-rights", text_number(5)
BOOST = SearchSettings(boost="linear(price, 10):0.5", signals=("none",))


def encoder() -> HashingEncoder:
    return HashingEncoder(dim=32)


@pytest.fixture(scope="module")
def admin(secure_node: NodeState) -> Iterator[Cluster]:
    cluster = connect(secure_node.url)
    reindexed(cluster, INDEX, 90, encoder(), ReindexSettings(term_table=False))
    yield cluster
    drop_indices(cluster, f"{INDEX}*")


def user(admin: Cluster, url: str, name: str, **limits: Any) -> Cluster:
    """A user who may search the index, within limits."""
    actions = ["read", "indices:admin/mappings/get", "indices:admin/get", "indices:monitor/settings/get"]
    granted = {"index_patterns": [f"{INDEX}*"], "allowed_actions": actions, **limits}
    role = {"cluster_permissions": ["cluster_composite_ops_ro", "cluster:monitor/main"]}
    make_users(admin, {name: role | {"index_permissions": [granted]}})
    return connect(url, user=name, password=PASSWORD)


def test_hidden_documents_are_not_found(admin, secure_node):
    limited = user(admin, secure_node.url, "some_documents", dls='{"term": {"tags": "t1"}}')
    whole = {hit.doc_id: hit.score for hit in Search(admin, INDEX, encoder(), settings=BOOST)(TEXT, 90)}
    search = Search(limited, INDEX, encoder(), settings=BOOST)
    assert search.fusion == "absolute"
    hits = search(TEXT, 90)
    assert {hit.doc_id for hit in hits} == {f"d{number}" for number in range(1, 90, 3)}
    assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(
        {hit.doc_id: whole[hit.doc_id] for hit in hits}, abs=1e-4
    )


def test_hidden_fields_add_nothing(admin, secure_node):
    """Neither in a search of one's own, nor in a request that was made by somebody who sees them."""
    limited = user(admin, secure_node.url, "some_fields", fls=["~price"])
    with pytest.raises(SettingsError, match="'price' of '.*' is not mapped"):
        Search(limited, INDEX, encoder(), settings=BOOST)
    plain = Search(limited, INDEX, encoder(), settings=SearchSettings(signals=("none",)))(TEXT, 20)
    boosted = Search(admin, INDEX, encoder(), settings=BOOST)
    assert [hit.doc_id for hit in boosted(TEXT, 20)] != [hit.doc_id for hit in plain]
    answer = limited.search(boosted.info.name, boosted.body(TEXT, 20))
    found = [(hit["_id"], hit["_score"]) for hit in answer["hits"]["hits"]]
    assert [doc_id for doc_id, _ in found] == [hit.doc_id for hit in plain]
    assert [score for _, score in found] == pytest.approx([hit.score for hit in plain], abs=1e-5)


def test_what_was_learnt_counts_for_documents_that_a_user_sees(admin, secure_node):
    """2.19.1 credits as 3.x does; who may not read past queries searches without."""
    before = {hit.doc_id: hit.score for hit in Search(admin, INDEX, encoder())(TEXT, 90)}
    learn(admin, INDEX, ([Query("past", TEXT)], {"past": {"d1": 1, "d2": 1}}), encoder=encoder())
    try:
        after = {hit.doc_id: hit.score for hit in Search(admin, INDEX, encoder())(TEXT, 90)}
        gained = {doc: after[doc] - one for doc, one in before.items()}
        assert gained == pytest.approx({doc: 0.2 * (doc in ("d1", "d2")) for doc in before}, abs=1e-5)
        some = user(admin, secure_node.url, "some_documents", dls='{"ids": {"values": ["d1", "d5", "0"]}}')
        asked = json.dumps(Search(some, INDEX, encoder()).body(TEXT)["rescore"])
        assert ('"_id": "d1"' in asked, '"_id": "d2"' in asked) == (True, False)
        others = [INDEX, f"{INDEX}-hybridr-1"]
        limited = user(admin, secure_node.url, "some_fields", index_patterns=others)
        search = Search(limited, admin.index_info(others[1]), encoder())
        assert "memory" in search.signals.members
        scores = {hit.doc_id: hit.score for hit in search(TEXT, 90)}
        assert scores == pytest.approx(before, abs=1e-4)
    finally:
        unlearn(admin, INDEX)
