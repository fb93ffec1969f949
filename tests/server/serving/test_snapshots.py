"""A server that runs follows its index: whatever changes it, requests are ranked by the old or by the new."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hybridr import Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import write_record
from hybridr.cluster.relay import ClientRequest, ClusterAnswer, Relay
from hybridr.errors import ClusterError, ModelError, NotFound, SettingsError
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.indexing.terms import storage
from hybridr.search import client_query
from hybridr.search.settings import SearchSettings
from hybridr.serving import snapshots
from hybridr.serving.application import create_app
from hybridr.serving.deploy import deploying, preconditions
from hybridr.serving.settings import DeploySettings, ServeSettings
from hybridr.status.leftovers import rollback
from hybridr.status.standing import remove
from support.corpus import bulk, put_documents, reindexed, text_number
from support.deployed import serving_index
from support.golden_ddr import colbert as exported
from support.hashing import HashingEncoder
from support.in_place_index import IN_PLACE
from support.waiting import wait_until

ENCODERS = {one.fingerprint: one for one in (HashingEncoder(), HashingEncoder(salt="other"))}
TEXT = text_number(7)
PLAIN = {"accept-encoding": "identity"}


@pytest.fixture
def client(
    cluster: Cluster, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[TestClient, str]]:
    monkeypatch.setattr(snapshots, "EVERY_S", 0.6)
    monkeypatch.setattr(snapshots, "encoder_for", lambda info, _: ENCODERS[info.record.encoder])
    reindexed(cluster, index_name, 60, settings={"number_of_shards": 3})
    with TestClient(
        create_app(HashingEncoder(), ServeSettings(index=index_name), cluster=cluster)
    ) as running:
        yield running, index_name


def scores(client: TestClient) -> dict[str, float]:
    answer = client.post("/search", json={"query": TEXT, "k": 10})
    assert answer.status_code == 200, answer.text
    return {hit["doc_id"]: hit["score"] for hit in answer.json()["hits"]}


def expected(cluster: Cluster, index: str, encoder: HashingEncoder) -> dict[str, float]:
    return {hit.doc_id: hit.score for hit in Search(cluster, index, encoder)(TEXT, 10)}


def await_scores(client: TestClient, wanted: dict[str, float]) -> None:
    wait_until(lambda: scores(client) == pytest.approx(wanted, abs=1e-6), 5)


def slow_fitting(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Have a shape of clients' queries ranked; from now on none is brought to its scale until the event."""
    own = {"query": {"multi_match": {"query": TEXT, "fields": ["title^3", "text"]}}}

    wait_until(lambda: "rescore" in client.post("/v1/rank?recall=lexical", json=own).json()["body"])
    go_on = threading.Event()
    monkeypatch.setattr(client_query, "measure_template_scale", lambda *_: float(go_on.wait(60)))
    return go_on


def test_reindex_tune_and_rollback_are_followed_and_no_request_is_lost_or_a_mixture(
    client, cluster, monkeypatch
):
    running, index = client
    fitting = slow_fitting(running, monkeypatch)
    first, second = ENCODERS.values()
    known = [expected(cluster, index, first)]
    seen, ended, lost = [], threading.Event(), []

    def go_on() -> None:
        while not ended.is_set():
            try:
                seen.append(scores(running))
            except AssertionError as error:
                lost.append(str(error))

    asking = threading.Thread(target=go_on)
    asking.start()
    try:
        done = reindex(cluster, index, second)
        known.append(expected(cluster, index, second))
        await_scores(running, known[-1])
        found = {"fusion": "absolute", "dense_weight": 0.9}
        write_record(cluster, done.destination, tuning={"search": found})
        known.append(expected(cluster, index, second))
        assert known[-1] != pytest.approx(known[-2], rel=1e-3)
        await_scores(running, known[-1])
        rollback(cluster, index, drop=True)
        await_scores(running, known[0])
    finally:
        fitting.set()
        ended.set()
        asking.join()
    assert not lost
    assert len(seen) > 10
    strange = [one for one in seen if not any(one == pytest.approx(each, abs=1e-6) for each in known)]
    assert not strange, (strange, known)
    health = running.get("/healthz").json()
    assert health["encoder"] == first.fingerprint


def encoders_in(body: bytes, text: str) -> Iterator[str]:
    """Give the encoder of each query vector in a body that ranks a text."""
    waiting = [json.loads(body)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list) and len(value) == HashingEncoder().dim:
            yield max(ENCODERS, key=lambda name: np.dot(value, ENCODERS[name].encode_queries([text])[0]))
        elif isinstance(value, (list, dict)):
            waiting += value.values() if isinstance(value, dict) else value


def hits_of(answer: Any) -> list[dict[str, Any]]:
    return list(answer.json()["hits"]["hits"])


def test_behind_an_alias_that_moves_no_vector_of_another_encoder_answers(cluster, index_name, monkeypatch):
    """Widths agree, so the cluster ranks by it without an error; a writer and a reader go on all the time."""
    monkeypatch.setattr(snapshots, "EVERY_S", 0.6)
    monkeypatch.setattr(snapshots, "encoder_for", lambda info, _: ENCODERS[info.record.encoder])
    first, second = ENCODERS.values()
    reindexed(cluster, index_name, 60, first)
    alias, ended, passed = f"{index_name}-hybridr", threading.Event(), list[tuple[bytes, bytes]]()
    send = Relay.send

    async def noted(relay: Relay, sent: ClientRequest) -> ClusterAnswer:
        answer = await send(relay, sent)
        passed.append((sent.body, answer.body))
        return answer

    monkeypatch.setattr(Relay, "send", noted)
    settings = ServeSettings(index=index_name, proxy="lexical", rank_timeout_s=5)
    texts, ranked, failed = iter(range(10_000)), set[str](), set[int]()

    def read(running: TestClient) -> None:
        while not ended.is_set():
            text = text_number(next(texts) % 60)
            passed.clear()
            body = {"query": {"match": {"text": text}}}
            answer = running.post(f"/{alias}/_search", json=body, headers=PLAIN)
            if answer.status_code != 200:
                failed.add(answer.status_code)
                continue
            [body] = [sent for sent, given in passed if given == answer.content]
            ranked.update(
                f"{hit['_index']} {by}" for hit in hits_of(answer) for by in encoders_in(body, text)
            )

    def write() -> None:
        for number in range(100, 10_000):
            if ended.wait(0.05):
                return
            with suppress(NotFound):
                put_documents(cluster, alias, [number])

    with TestClient(create_app(first, settings, cluster=cluster)) as running, ThreadPoolExecutor(2) as pool:
        works = [pool.submit(read, running), pool.submit(write)]
        try:
            wait_until(lambda: ranked)
            reindex(cluster, index_name, second)
            wait_until(lambda: len(ranked) > 1)
            rollback(cluster, index_name, copy_back=True)
            time.sleep(1.5)
            assert not failed
            remove(cluster, index_name, copy_back=True)
        finally:
            ended.set()
        for work in works:
            work.result()
    pairs = zip((1, 2), ENCODERS, strict=True)
    assert ranked <= {f"{index_name}-hybridr-{number} {encoder}" for number, encoder in pairs}
    assert failed <= {404, 503}, "the alias is gone, or its index while it was searched"


@pytest.mark.parametrize("status", [404, 503])
def test_a_search_that_its_index_did_not_outlive_is_asked_again(cluster, index_name, monkeypatch, status):
    """What is deleted while it is searched answers 404, or 503 for want of all shards."""

    def gone(*_: object, **__: object) -> None:
        raise ClusterError("all shards failed", status=status)

    first, second = ENCODERS.values()
    monkeypatch.setattr(snapshots, "encoder_for", lambda *_: second)
    reindexed(cluster, index_name, 30, first)
    app = create_app(first, ServeSettings(index=index_name), cluster=cluster)
    monkeypatch.setattr(app.state.searches.now.modes["hybrid"], "retrieval", SimpleNamespace(fetch_hits=gone))
    running = TestClient(app)  # without its lifespan nobody looks but who is not answered
    assert running.post("/search", json={"query": TEXT}).status_code >= 404
    reindex(cluster, index_name, second)
    assert scores(running) == pytest.approx(expected(cluster, index_name, second), abs=1e-6)


def test_a_server_has_ranked_before_it_takes_the_first_request(cluster, index_name):
    """The first requests found encoder, threads and script cold, and came back as they went: `late`."""
    reindexed(cluster, index_name, 5)
    asked: list[str] = []

    class Counting(HashingEncoder):
        def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
            asked.extend(texts)
            return super().encode_queries(texts)

    app = create_app(Counting(), ServeSettings(index=index_name), cluster=cluster)
    opened = len(asked)
    with TestClient(app):
        assert len(asked) >= opened + 2


def test_an_index_without_vectors_any_more_is_searched_by_words_and_says_so(client, cluster):
    running, index = client
    rollback(cluster, index)
    running.app.state.searches.look()  # type: ignore[attr-defined]
    answer = running.post("/search", json={"query": TEXT})
    assert answer.json()["mode"] == "lexical"
    assert "has no vectors" in answer.json()["warning"]
    assert running.get("/v1/index").json()["lost"]
    reindex(cluster, index, HashingEncoder())
    await_scores(running, expected(cluster, index, HashingEncoder()))


def test_what_is_opened_anew_and_looked_up_again(client, cluster, monkeypatch):
    running, index = client
    searches = running.app.state.searches  # type: ignore[attr-defined]
    before = searches.now
    write_record(cluster, before.info.name, synced={0: 12}, refused=("d1",))
    searches.look()
    assert searches.now is before
    cluster.request("PUT", path_of(before.info.name, "_settings"), {"index.max_result_window": 12_000})
    searches.look()
    assert searches.now is not before

    # The body of another index is left alone.
    running, index = client
    body = {"query": {"match": {"text": {"query": TEXT}}}, "size": 3}
    uuid = running.app.state.searches.now.info.uuid  # type: ignore[attr-defined]
    for asked, ranked in (({"index": uuid}, True), ({"index": "other"}, False), ({}, True)):
        answer = running.post("/v1/rank", json=body, params=asked)
        assert ("rescore" in answer.json()["body"]) is ranked

    # A table that could not be read at start is taken up later.
    running, _ = client
    searches = running.app.state.searches  # type: ignore[attr-defined]
    searches.look()
    before = searches.now
    opened = before.modes["hybrid"].context
    monkeypatch.setattr(opened.signals, "left_out", {"phrases": "the cluster was away"})
    searches.look()
    assert searches.now is not before

    # Words are looked up again within a minute.
    search = searches.now.modes["hybrid"]
    assert not search.has_word_of("quokka")
    source = {"text": "quokka"}
    cluster.request("POST", path_of(search.info.name, "_doc"), source, {"refresh": "true"})
    assert not search.has_word_of("quokka")
    later = time.monotonic() + 61
    monkeypatch.setattr("hybridr.indexing.terms.terms.time.monotonic", lambda: later)
    assert not search.analysis.remembers("quokka")
    assert search.has_word_of("quokka")


def test_a_table_that_is_written_after_its_name_is_taken_up_within_five_seconds(
    cluster, index_name, monkeypatch, tmp_path
):
    """`keep_term_table` writes the record first: whoever looks between the two finds no table yet."""
    monkeypatch.setattr(storage, "MIN_TERMS", 1)
    info = cluster.index_info(reindexed(cluster, index_name, 60).destination)
    home = storage.hidden_index(info)
    parts = cluster.search(home, {"query": {"match_all": {}}})["hits"]["hits"]
    assert parts
    bulk(cluster, home, [{"delete": {"_id": part["_id"]}} for part in parts])
    monkeypatch.setattr(storage, "data_folder", lambda: tmp_path)  # as on a machine without a copy
    storage._open.clear()
    app = create_app(HashingEncoder(), ServeSettings(index=index_name), cluster=cluster)
    with TestClient(app) as running:
        searches = app.state.searches
        assert "soft_terms" in searches.now.description()["left_out"]
        for part in parts:
            bulk(cluster, home, [{"index": {"_id": part["_id"]}}, part["_source"]])
        wait_until(lambda: "soft_terms" not in searches.now.description()["left_out"], 5)
        await_scores(running, expected(cluster, index_name, HashingEncoder()))


@pytest.fixture
def no_other_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise ModelError("that encoder is not here")

    monkeypatch.setattr(snapshots, "encoder_for", gone)


@pytest.mark.usefixtures("no_other_encoder")
def test_vectors_that_were_filled_in_place_by_another_encoder_are_not_asked_with_the_old_one(
    cluster, index_name
):
    reindexed(cluster, index_name, 30, HashingEncoder(), IN_PLACE, settings={"knn": True})
    app = create_app(HashingEncoder(), ServeSettings(index=index_name), cluster=cluster)
    running = TestClient(app)
    assert running.post("/search", json={"query": TEXT}).json()["mode"] == "hybrid"
    remove(cluster, index_name)
    reindex(cluster, index_name, HashingEncoder(salt="other"), IN_PLACE)
    app.state.searches.look()
    answer = running.post("/search", json={"query": TEXT}).json()
    assert answer["mode"] == "lexical"
    assert "that encoder is not here" in answer["warning"]


@pytest.mark.usefixtures("no_other_encoder")
def test_a_server_that_cannot_follow_answers_as_before_and_says_so(cluster, index_name, monkeypatch):
    first, second = ENCODERS.values()
    reindexed(cluster, index_name, 30, first)
    app = create_app(first, ServeSettings(index=index_name), cluster=cluster)
    running, wanted = TestClient(app), expected(cluster, index_name, first)
    assert running.get("/healthz").json()["status"] == "ok"
    reindex(cluster, index_name, second)
    assert running.get("/v1/index").json()["problem"] == "that encoder is not here"
    assert scores(running) == pytest.approx(wanted, abs=1e-6)
    health = running.get("/healthz").json()
    assert health["status"] == "behind"
    monkeypatch.setattr(deploying, "ask_embedding_server", lambda *_: health)
    there = deploying.Deployed("", "transparent", "", None, "http://server", [])
    said = deploying.server_problem(there, first.fingerprint)
    assert said == "the server at http://server does not follow its index: its log and /v1/index say why"


def test_without_vectors_a_reranker_of_vectors_is_left_out(cluster, index_name):
    reindexed(cluster, index_name, 30, None, ReindexSettings(token_encoder=exported()))
    ranking = SearchSettings(rerank="tokens")
    app = create_app(HashingEncoder(), ServeSettings(index=index_name), cluster=cluster, search=ranking)
    rollback(cluster, index_name, drop=True)
    answer = TestClient(app).post("/search", json={"query": TEXT})
    assert (answer.status_code, answer.json()["mode"]) == (200, "lexical")


def test_deploy_compares_what_the_server_has_open(cluster, index_name):
    reindexed(cluster, index_name, 30)
    with serving_index(cluster, index_name) as running:
        info = running.app.state.searches.now.info
        given = DeploySettings(way="transparent", server=running.url)
        preconditions.check_served(cluster, info, given, SearchSettings())
        made = reindexed(cluster, f"{index_name}-other", 5)
        with pytest.raises(SettingsError, match="uuid is"):
            preconditions.check_served(cluster, cluster.index_info(made.destination), given, SearchSettings())
