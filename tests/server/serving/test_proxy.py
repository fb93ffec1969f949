"""Clients of a cluster that ask `hybridr serve --proxy` in its place, on both products: what is ranked is
ranked as `hybridr search` does, and all else is what the cluster says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster
from hybridr.cluster.dialects.elastic import Elastic
from hybridr.indexing.reindexing import reindex
from hybridr.search.settings import SearchSettings
from hybridr.serving.rewriting.explaining import verdict_on
from hybridr.serving.telemetry import UNCOUNTED
from support.corpus import drop_indices
from support.deployed import Server, ids, serving_index, settle
from support.hashing import HashingEncoder
from support.matrix import KEPT, MATCH, RANKED, TEXT, Asked, fill_mart, query, told
from support.raw_http import exchange

pytestmark = [pytest.mark.node, pytest.mark.elastic, pytest.mark.usefixtures("few_probes")]
SOURCE, INDEX, ALIAS, COUNT = "mart", "mart-hybridr-1", "mart-hybridr", 400
CLIENT = httpx.Client(timeout=30)
ALL = [one for one in (*RANKED, *KEPT) if one.api == "_search"]
QueryCompiler = tuple[Cluster, Server]


@pytest.fixture(scope="module", params=["cluster", "elastic"])
def mart(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster: Cluster = request.getfixturevalue(request.param)
    fill_mart(cluster, SOURCE, COUNT)
    reindex(cluster, SOURCE, HashingEncoder())
    yield cluster
    drop_indices(cluster, f"{SOURCE}*")


@pytest.fixture(scope="module")
def server(mart: Cluster) -> Iterator[Server]:
    with serving_index(mart, SOURCE, proxy="lexical") as running:
        for one in ALL:  # each shape is measured when it is seen first
            sent(running.url, one)
        settle(running)
        yield running


def sent(url: str, one: Asked, name: str = ALIAS, **headers: str) -> httpx.Response:
    """Ask as a client of the cluster does, the cluster or the server."""
    address, way = f"{url}/{name}/{one.api}?{urlencode(one.params)}", "POST" if one.body else "GET"
    return CLIENT.request(way, address, json=one.body or None, headers=headers)


def answer_to(server: Server | Cluster, one: Asked) -> Any:
    answer = sent(server.url, one)
    return answer.json() if answer.status_code == 200 else answer.status_code


def left_alone(server: Server) -> set[tuple[str, float]]:
    """Give how often a search was left alone for each reason."""
    samples = next(iter(server.app.state.embedder.metrics.left_alone.collect())).samples
    return {(one.labels["reason"], one.value) for one in samples if one.name.endswith("_total")}


def kept(answer: dict[str, Any]) -> dict[str, Any]:
    """Give of an answer what no order changes: totals, facets, shards."""
    facets = {name: of for name, of in answer.get("aggregations", {}).items() if name != "a"}
    return {"total": answer.get("hits", {}).get("total"), "facets": facets, "shards": answer["_shards"]}


def test_every_kind_of_request_becomes_what_is_told_before(mart, server):
    """What is left alone keeps its whole answer, and what is ranked its totals, facets and shards.
    Elasticsearch's core runs no scripts."""
    ranking, wrong = server.app.state.searches.now.rankings["lexical"], {}
    scripts = {"scripts"} if isinstance(mart.dialect, Elastic) else set()
    for one in ALL:
        verdict = verdict_on(ranking, {"path": f"/{ALIAS}/_search", "params": one.params, "body": one.body})
        before, counted = answer_to(mart, one), left_alone(server)
        answer = answer_to(server, one)
        reasons = {reason for reason, _ in left_alone(server) - counted}
        if not isinstance(before, dict) or not isinstance(answer, dict):
            same, foretold = answer == before, True
        else:
            as_it_was = reasons or not verdict.ranked
            same = told(answer) == told(before) if as_it_was else kept(answer) == kept(before)
            foretold = reasons <= scripts if verdict.ranked else reasons == {verdict.reason} - {UNCOUNTED}
        if not (same and foretold):
            wrong[one.name] = (same, reasons, verdict.reason)
    assert wrong == {}


def test_it_ranks_as_search_does_among_what_the_words_match(mart, server):
    every = SearchSettings(depth=COUNT)  # without scripts a search knows its candidates alone
    best = [hit.doc_id for hit in Search(mart, SOURCE, HashingEncoder(), settings=every)(TEXT, COUNT)]
    words = {hit["_id"] for hit in mart.search(INDEX, query(MATCH, size=COUNT))["hits"]["hits"]}
    expected = [doc for doc in best if doc in words][:10]
    assert len(expected) == 10
    for name in ("match", "q="):
        [one] = [one for one in RANKED if one.name == name]
        assert ids(answer_to(server, one)) == expected, name
    pages = [answer_to(server, Asked("", query(MATCH, size=5), params={"from": at})) for at in (0, 5)]
    assert [*ids(pages[0]), *ids(pages[1])] == expected


def test_each_of_several_searches_is_answered_as_if_it_were_alone(mart, server):
    """Of every kind: hits, scores, totals, facets, highlights, and the refusal of one beside others."""
    answers = {one.name: sent(server.url, one) for one in ALL if not one.params}
    fails_all = b"parsing_exception"  # what the product cannot parse
    parts = [one for one in ALL if one.name in answers and fails_all not in answers[one.name].content]
    assert len(parts) > 0.8 * len(answers)
    kind, wrong = {"content-type": "application/x-ndjson"}, {}
    for start in range(0, len(parts), 30):
        some = parts[start : start + 30]
        raw = "".join(f"{{}}\n{json.dumps(one.body)}\n" for one in some)
        together = CLIENT.post(f"{server.url}/{ALIAS}/_msearch", content=raw, headers=kind).json()
        for one, answer in zip(some, together["responses"], strict=True):
            alone = answers[one.name]
            expected = alone.json() | {"status": alone.status_code}
            if told(answer) != told(expected):
                wrong[one.name] = [told(answer), told(expected)]
    assert wrong == {}


def test_several_searches_and_those_of_other_indices(mart, server):
    heads: list[dict[str, Any]] = [{}, {"index": SOURCE}, {"index": [SOURCE, INDEX]}, {"index": "none"}]
    lines = [part for head in heads for part in (head, query(MATCH, size=3))]
    raw = "".join(f"{json.dumps(line)}\n" for line in lines)
    kind = {"content-type": "application/x-ndjson"}
    answer = CLIENT.post(f"{server.url}/{ALIAS}/_msearch", content=raw, headers=kind).json()
    first, *others = answer["responses"]
    assert others[-1]["status"] == 404
    plain = mart.client.send("POST", f"/{ALIAS}/_msearch", raw, None, None)["responses"]
    assert [one.get("hits") for one in others] == [one.get("hits") for one in plain[1:]]
    ok = "".join(f"{json.dumps(line)}\n" for line in lines[:6])
    first = CLIENT.post(f"{server.url}/{ALIAS}/_msearch", content=ok, headers=kind).json()["responses"][0]
    assert ids(first) == ids(answer_to(server, Asked("", query(MATCH, size=3))))
    for name in (SOURCE, f"{SOURCE},{INDEX}", "mart*", "_all", "none"):
        there = sent(server.url, Asked("", query(MATCH)), name)
        assert told(there.json()) == told(
            CLIENT.post(f"{mart.url}/{name}/_search", json=query(MATCH)).json()
        ), name


def test_packed_bodies_and_answers(server):
    raw = gzip.compress(json.dumps(query(MATCH)).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip", "accept-encoding": "gzip"}
    answer = CLIENT.post(f"{server.url}/{ALIAS}/_search", content=raw, headers=headers)
    assert answer.headers["content-encoding"] == "gzip"
    assert ids(answer.json()) == ids(answer_to(server, Asked("", query(MATCH))))


@pytest.mark.attack(106)
def test_106_no_address_writes_or_deletes(mart, server):
    """The proxy is all that makes a cluster without users read-only."""
    document = b'{"index":{"_index":"pwn","_id":"1"}}\n{"a":1}\n'
    removal = json.dumps({"actions": [{"remove_index": {"index": SOURCE}}]}).encode()
    copy = json.dumps({"source": {"index": SOURCE}, "dest": {"index": "pwn"}}).encode()
    for api, body in (("_bulk", document), ("_aliases", removal), ("_reindex", copy), ("pwn", b"{}")):
        for tail in ("#/_search", "%23/_search", "?/_search", "/../_search", "#/_msearch", "/_search", ""):
            for head in ("/", "//", "/./", "/docs/../", "http://localhost/", "/%2e/"):
                target = f"{head}{api}{tail}"
                if target == "/pwn/_search":
                    continue  # a search of an index that is not there
                answer = exchange(server.port, target, body)
                assert answer.split(b" ", 2)[1] in (b"400", b"404", b"405"), target
    assert not mart.exists("pwn")
    assert mart.count(SOURCE) == COUNT
