"""An alias that shows a part of a proxied index: nothing that the server adds to a search knows the rest."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.relay import ClientRequest, ClusterAnswer, Relay
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.terms import storage
from hybridr.serving.proxy import NAMES_KEPT_S
from support.corpus import add_alias, create, drop_indices, put
from support.deployed import Server, serving_index, settle
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.elastic, pytest.mark.usefixtures("few_probes")]
SOURCE, INDEX = "tenants", "tenants-hybridr-1"
HIDDEN = ("riverbank", "riverside", "rivers")  # words of tenant b alone, near `river`
QUERY = {"query": {"match": {"text": "river boat"}}}
PARTS = {
    "t-filter": {"filter": {"term": {"tenant": "a"}}},
    "t-routing": {"search_routing": "a"},
    "t-both": {"filter": {"term": {"tenant": "a"}}, "search_routing": "a"},
}
CLIENT = httpx.Client(timeout=30)


class Sending(NamedTuple):
    """A server, and the requests that it sent on."""

    server: Server
    sent: list[ClientRequest]

    def search(self, name: str, body: dict[str, Any], query: str = "") -> tuple[str, dict[str, Any]]:
        """Return all that went to the cluster for one search, and the answer."""
        self.sent.clear()
        answer = CLIENT.post(f"{self.server.url}/{name}/_search{query}", json=body)
        return b"".join(request.body for request in self.sent).decode(), answer.json()

    def msearch(self, address: str, head: dict[str, Any], body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self.sent.clear()
        lines = f"{json.dumps(head)}\n{json.dumps(body)}\n"
        kind = {"content-type": "application/x-ndjson"}
        answer = CLIENT.post(f"{self.server.url}{address}/_msearch", content=lines, headers=kind)
        return b"".join(request.body for request in self.sent).decode(), answer.json()["responses"][0]


@pytest.fixture(scope="module", params=["cluster", "elastic"])
def tenants(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster: Cluster = request.getfixturevalue(request.param)
    create(cluster, SOURCE, {"text": {"type": "text"}, "tenant": {"type": "keyword"}})
    documents, owners = {}, {}
    for number in range(60):
        tenant = owners[f"d{number}"] = "ab"[number % 2]
        words = "river boat water" if tenant == "a" else f"{HIDDEN[number % 3]} boat water"
        documents[f"d{number}"] = {"text": f"{words} n{number}", "tenant": tenant}
    put(cluster, SOURCE, documents, owners)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "MIN_TERMS", 1)
        reindex(cluster, SOURCE, HashingEncoder())
        for name, part in PARTS.items():
            add_alias(cluster, INDEX, name, **part)
        yield cluster
    drop_indices(cluster, f"{SOURCE}*")


@pytest.fixture(scope="module", params=["lexical", "all"])
def whole(tenants: Cluster, request: pytest.FixtureRequest) -> Iterator[Sending]:
    yield from sending(tenants, SOURCE, request.param)


def sending(cluster: Cluster, index: str, proxy: Any) -> Iterator[Sending]:
    sent: list[ClientRequest] = []
    send = Relay.send

    async def noted(relay: Relay, asked: ClientRequest) -> ClusterAnswer:
        sent.append(asked)
        return await send(relay, asked)

    with pytest.MonkeyPatch.context() as patch, serving_index(cluster, index, proxy=proxy) as server:
        patch.setattr(Relay, "send", noted)
        running = Sending(server, sent)
        running.search(INDEX, QUERY)
        settle(server)
        yield running


def hits_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return list(answer["hits"]["hits"])


@pytest.mark.attack(107)
def test_107_the_whole_index_is_ranked_with_the_words_of_all_documents(whole):
    """So that the tests below can fail."""
    sent, answer = whole.search(INDEX, QUERY)
    assert any(word in sent for word in HIDDEN)
    assert "hybridr_vector" in sent
    assert answer["hits"]["hits"]
    for name in (f"{SOURCE}-hybridr", INDEX):
        assert any(word in whole.msearch("", {"index": name}, QUERY)[0] for word in HIDDEN)


@pytest.mark.attack(107)
@pytest.mark.parametrize("name", PARTS)
def test_107_no_word_of_hidden_documents_goes_to_an_alias_of_a_part(tenants, whole, name):
    for more in ({}, {"profile": True}, {"explain": True}, {"collapse": {"field": "tenant"}}):
        body = {**QUERY, **more}
        pairs = [whole.search(name, body), whole.msearch("", {"index": name}, body)]
        pairs += [whole.msearch(f"/{name}", {}, body), whole.msearch(f"/{INDEX}", {"index": [name]}, body)]
        plain = hits_of(CLIENT.post(f"{tenants.url}/{name}/_search", json=body).json())
        for sent, answer in pairs:
            assert not any(word in sent for word in HIDDEN)
            assert [hit["_id"] for hit in hits_of(answer)] == [hit["_id"] for hit in plain]
            assert all("hybridr_vector" not in hit["_source"] for hit in hits_of(answer))
            if "filter" in PARTS[name]:  # a routing shows what else lies on its shard
                assert not any(word in json.dumps(answer) for word in HIDDEN)
    sent, answer = whole.search(name, {}, "?q=river&profile=true")
    assert not any(word in sent for word in HIDDEN)


@pytest.mark.attack(107)
def test_107_no_profile_shows_what_is_added(whole):
    """Rights that hide documents may let a user profile, and no request says by which alias it came."""
    for body in ({**QUERY, "profile": True}, {**QUERY, "profile": True, "size": 3}):
        sent, answer = whole.search(INDEX, body)
        assert not any(word in sent for word in HIDDEN)
        assert answer["profile"]
    ranked = CLIENT.post(f"{whole.server.url}/v1/rank", json={**QUERY, "profile": True, "size": 3}).json()
    assert json.loads(ranked["body"])["query"] == QUERY["query"]


@pytest.mark.attack(107)
def test_107_a_name_that_becomes_a_part_is_none_of_the_whole_any_more(tenants, whole):
    add_alias(tenants, INDEX, "t-later")
    assert any(word in whole.search("t-later", QUERY)[0] for word in HIDDEN)
    add_alias(tenants, INDEX, "t-later", **PARTS["t-filter"])
    time.sleep(NAMES_KEPT_S + 0.1)
    assert not any(word in whole.search("t-later", QUERY)[0] for word in HIDDEN)
    tenants.request("POST", "/_aliases", {"actions": [{"remove": {"index": INDEX, "alias": "t-later"}}]})


@pytest.mark.attack(107)
@pytest.mark.parametrize("name", PARTS)
def test_107_a_server_of_the_alias_ranks_it_within_its_part_alone(tenants, name):
    for running in sending(tenants, name, "all"):
        sent, answer = running.search(name, QUERY)
        assert "hybridr_vector" in sent
        assert not any(word in sent for word in HIDDEN)
        if "filter" in PARTS[name]:
            assert {int(hit["_id"][1:]) % 2 for hit in hits_of(answer)} == {0}
        others = [other for other in (*PARTS, INDEX, f"{SOURCE}-hybridr") if other != name]
        for other in others:
            plain = CLIENT.post(f"{tenants.url}/{other}/_search", json=QUERY).json()
            through = running.search(other, QUERY)[1]
            assert [hit["_id"] for hit in hits_of(through)] == [hit["_id"] for hit in hits_of(plain)]
