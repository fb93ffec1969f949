"""What needs no pipeline of the matrix, on OpenSearch 2.19.1: bodies rewritten as for a deployment."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest

from hybridr import Search, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.embedded.state import NodeState
from hybridr.indexing.reindexing import reindex
from hybridr.search.clauses import NotRanked
from hybridr.serving.rewriting.rewriting import BodyRanking, RankedRequest, ReadBody, normalised_body
from support.corpus import drop_indices
from support.hashing import HashingEncoder
from support.matrix import MATCH, RANKED, TEXT, fill_mart

pytestmark = [pytest.mark.secure, pytest.mark.usefixtures("few_probes")]
INDEX, COUNT = "bazaar", 200
SINCE_3 = ("combined_fields",)
WHOLE = [one for one in RANKED if one.api == "_search" and one.name not in SINCE_3]


@pytest.fixture(scope="module")
def search(secure_node: NodeState) -> Iterator[Search]:
    cluster = connect(secure_node.url)
    fill_mart(cluster, INDEX, COUNT)
    reindex(cluster, INDEX, HashingEncoder())
    yield Search(cluster, INDEX, HashingEncoder())
    drop_indices(cluster, f"{INDEX}*")


def asked(cluster: Cluster, index: str, body: Any, params: dict[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in params.items() if name not in ("q", "df", "size", "from")}
    found: dict[str, Any] = cluster.request("POST", path_of(index, "_search"), body, known)
    return found


@pytest.mark.parametrize(("one", "recall"), [*zip(WHOLE, cycle(["all", "lexical"]), strict=False)])
def test_rewritten_bodies_keep_their_contract(search, one, recall):
    ranking, sent = BodyRanking(search, recall), normalised_body(one.body, one.params)
    cluster, index = search.cluster, search.info.name
    plain, wanted = asked(cluster, index, sent, one.params), ranking.read(sent)
    if recall == "lexical" and sent.get("size") == 0:
        assert wanted == NotRanked("counting"), "nothing is ranked where only words find"
        return
    assert isinstance(wanted, ReadBody), wanted
    assert wanted.query.text == TEXT
    ranked = ranking.rank(wanted)
    assert isinstance(ranked, RankedRequest), ranked
    answer = asked(cluster, index, ranked.body, one.params)
    assert answer.keys() == plain.keys()
    assert answer["_shards"] == plain["_shards"]
    hits, earlier = answer["hits"]["hits"], plain["hits"]["hits"]
    assert len(hits) >= len(earlier)
    assert not any("hybridr_vector" in hit.get("_source", {}) for hit in hits)
    if recall == "lexical":
        assert answer["hits"].get("total") == plain["hits"].get("total")


def test_the_order_is_that_of_search(search):
    ranking, body = BodyRanking(search), {"query": MATCH, "size": 50}
    wanted = ranking.read(body)
    assert isinstance(wanted, ReadBody)
    ranked = ranking.rank(wanted)
    answer = search.cluster.search(search.info.name, ranked.body)
    expected = search(TEXT, 50)
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == [hit.doc_id for hit in expected]
