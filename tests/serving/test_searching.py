"""`/v1/rank` gives every body back: ranked, without vectors in its answer, or byte by byte as it came."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridr.cluster.connection import Cluster
from hybridr.cluster.record import IndexInfo, Record
from hybridr.cluster.retrievers.lexical import LexicalRetriever
from hybridr.cluster.word_fields import SearchedField
from hybridr.errors import ClusterError
from hybridr.indexing.terms.terms import Analysed
from hybridr.search.answers import Answers
from hybridr.search.calibration import PlainQuery
from hybridr.search.fusions import Rescoring
from hybridr.serving import snapshots
from hybridr.serving.application import create_app
from hybridr.serving.requests import EncodingFailed
from hybridr.serving.search_threads import SearchThreads
from hybridr.serving.settings import ServeSettings
from hybridr.serving.snapshots import TextAnalysis
from support.hashing import HashingEncoder
from support.searches import StandInSearch

MATCH = {"match": {"text": {"query": "two words", "operator": "OR"}}}
BODY: dict[str, Any] = {
    "from": 0,
    "size": 10,
    "query": {
        "bool": {
            "must": [MATCH],
            "filter": [{"range": {"price": {"lt": 3.5}}}],
            "should": [{"function_score": {"query": MATCH, "functions": [{"weight": 2}]}}],
        }
    },
    "_source": {"includes": ["price"], "excludes": []},
    "sort": [{"_score": {"order": "desc"}}],
    "aggregations": {"a": {"terms": {"field": "brand"}}},
}


SETTINGS = ServeSettings(index="docs", rank_timeout_s=30)


class KnowingSearch(StandInSearch):
    """Ranks every text in the same way."""

    settings = SimpleNamespace(depth=100)
    answers, at_least = Answers(None), 0.0
    analysis = SimpleNamespace(of=lambda texts: [Analysed()] * len(texts))
    record = Record(fields=("text",), vector_field="v")
    info = IndexInfo("docs", {"index.uuid": "u"}, {}, {}).with_record(record)
    words, once = LexicalRetriever((SearchedField("text"),)), SimpleNamespace(asks_once=True)
    context = SimpleNamespace(words=words, fusion=once, plain=PlainQuery(("text",), list))

    def needs_no_request(self, text):
        return text != "new words"

    def has_word_of(self, text):
        return text != "unheard"

    def rescoring(self, text, depth, own, *, filter, reading, boost, among=None):
        both = {"bool": {"should": [own.finding_query, {"knn": {"filter": filter}}]}}
        return Rescoring(both, {"script": {}}, 2 * depth, {"like words": {}})


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshots, "Search", KnowingSearch)
        app = create_app(HashingEncoder(), SETTINGS, cluster=Cluster(None, "http://x"))
        yield TestClient(app)


def ranked(client: TestClient, raw: bytes, recall: str = "all") -> str:
    answer = client.post("/v1/rank", content=raw, params={"recall": recall})
    assert answer.status_code == 200
    found: str = json.loads(answer.content)["body"]
    return found


def places_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the place of every part of a body."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at] * bool(at) + [place for name, part in parts for place in places_of(part, (*at, name))]


def replaced(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Copy a body with something else in one place."""
    copied = json.loads(json.dumps(value))
    inner = copied
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = new
    return copied


ODD = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from([[], {}, [[{}]]])


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(places_of(BODY)), ODD, st.sampled_from(["all", "lexical"]))
def test_wrong_types_in_every_place_lose_nothing(client, place, new, recall):
    body = replaced(BODY, place, new)
    raw = json.dumps(body).encode()
    found = ranked(client, raw, recall)
    if found == raw.decode():
        return
    parts = json.loads(found)
    asked = parts["query"]["bool"]["should"][0] if "rescore" in parts and recall == "all" else parts["query"]
    assert asked == body["query"]
    for name in body.keys() - {"query", "_source"}:
        assert parts[name] == body[name]


@pytest.mark.attack(25)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[1, 2]",
        b'{"query": 7}',
        b'{"query": {"match": {"text": "one"}}, "from": "x"}',
        b'{"query": {"match": {"text": "one"}}, "size": -20000}',
        b'{"query": {"bool": {"must": {"match": {"text": "one"}}, "filter": {"term": {"n": 1e400}}}}}',
        b'{"query": {"bool": {"must": {"match": {"text": "one"}}, "filter": {"term": {"n": 1%b}}}}}'
        % (b"0" * 30),
        b'{"query": {"multi_match": {"query": "one", "fields": 5}}}',
        b'{"query": {"match": {"text": "one"}}, "query": {"match": {"text": "two"}}}',
        b'{"query": {"match": {"text": NaN}}}',
        b'{"query": {"match": {"text": "two"}}, "size": 1e400}',
        b'{"query": {"match": {"text": "\\ud800"}}, "size": 3}',
        b'{"query": {"terms": {"n": [' + b"9" * 40 + b"]}}}",
        b'{"query": ' + b'{"bool": {"must": ' * 500 + b'{"match": {"text": "a"}}' + b"}}" * 500 + b"}",
        b"\xff\xfe",
    ],
)
def test_the_own_bytes_of_an_odd_body_go_through(client: TestClient, raw: bytes) -> None:
    assert ranked(client, raw) == raw.decode(errors="replace")


def test_vectors_stay_out_of_the_answer_to_a_text_that_is_too_long(client: TestClient) -> None:
    body = {"query": {"match": {"text": "word " * 210_000}}}
    assert json.loads(ranked(client, json.dumps(body).encode())) == {**body, "_source": {"excludes": ["v"]}}


def test_vectors_stay_out_of_the_answer_where_the_server_fails(client: TestClient, monkeypatch) -> None:
    async def fails(*_: Any) -> None:
        raise EncodingFailed

    monkeypatch.setattr(client.app.state.embedder, "read", fails)  # type: ignore[attr-defined]
    for named, left_out in ((None, ["v"]), (["v", "price"], [])):
        body = {"query": MATCH} | ({"_source": {"includes": named}} if named else {})
        found = json.loads(ranked(client, json.dumps(body).encode()))
        assert (found.pop("_source").get("excludes", []), found) == (left_out, {"query": MATCH})
    answer = client.post("/v1/rank", json={"query": MATCH}, params={"index": "another"})
    assert json.loads(answer.json()["body"])["_source"] == {"excludes": ["v"]}


def test_a_reason_is_counted_and_logged(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="hybridr.serving"):
        for body in ({"query": MATCH}, {"query": MATCH, "min_score": 1}, {"query": {"match_all": {}}}, {}):
            ranked(client, json.dumps(body).encode())
    facts = [record.facts for record in caplog.records]  # type: ignore[attr-defined]
    assert [(one["rewritten"], one["reason"]) for one in facts] == [
        (True, None),
        (False, "min_score"),
        (False, "kind"),
        (False, "no_query"),
    ]
    counters = client.get("/metrics").text
    for reason in ("min_score", "kind", "no_query", "unreadable"):
        assert f'hybridr_left_alone_total{{reason="{reason}"}}' in counters


def test_where_only_words_find_the_query_is_the_clients_own(client: TestClient) -> None:
    raw = json.dumps({"query": MATCH}).encode()
    assert json.loads(ranked(client, raw, "lexical"))["query"] == MATCH
    assert "knn" in ranked(client, raw)
    assert client.post("/v1/rank", content=raw, params={"recall": "some"}).status_code == 400


def test_a_ranking_is_made_once_for_all_requests_and_anew_when_the_index_is_looked_at_again(monkeypatch):
    made: list[str] = []

    class Counted(snapshots.BodyRanking):
        def __init__(self, search: Any, recall: Any = "all", **options: Any) -> None:
            made.append(recall)
            super().__init__(search, recall, **options)

    monkeypatch.setattr(snapshots, "Search", KnowingSearch)
    monkeypatch.setattr(snapshots, "BodyRanking", Counted)
    opened: list[Any] = []
    app = create_app(
        HashingEncoder(),
        SETTINGS,
        cluster=Cluster(None, "http://x"),
        added=lambda _, searches: opened.append(searches),
    )
    client, raw = TestClient(app), json.dumps({"query": MATCH}).encode()
    assert all("rescore" in ranked(client, raw, recall) for recall in ("all", "lexical") * 3)
    assert sorted(made) == ["all", "lexical"]
    monkeypatch.setattr(KnowingSearch, "fusion", "pipeline")
    monkeypatch.setattr(snapshots, "resolve", lambda cluster, name: KnowingSearch.info)
    opened[0].reopen()
    assert "rescore" not in ranked(client, raw)


@pytest.mark.parametrize("words", ["new words", "two words", "unheard"])
def test_words_that_the_cluster_has_to_read_are_ranked_alike(client: TestClient, words: str) -> None:
    raw = json.dumps({"query": {"match": {"text": words}}}).encode()
    assert "rescore" in ranked(client, raw)
    assert ("rescore" in ranked(client, raw, "lexical")) is (words != "unheard")


def test_where_the_cluster_runs_no_scripts_one_request_does_not_rank(client: TestClient, monkeypatch) -> None:
    monkeypatch.setattr(KnowingSearch.once, "asks_once", False)
    body = json.loads(ranked(client, json.dumps({"query": MATCH}).encode()))
    assert body == {"query": MATCH, "_source": {"excludes": ["v"]}}
    assert 'hybridr_left_alone_total{reason="failed"}' in client.get("/metrics").text


class SlowAnalysis:
    """Reads texts as soon as it is let; the text "bad" keeps it from those beside it."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.known: set[str] = set()
        self.let = threading.Semaphore(0)
        self.search: Any = SimpleNamespace(needs_no_request=self.known.__contains__, analysis=self)

    def of(self, texts: list[str]) -> None:
        self.asked.append(texts)
        assert self.let.acquire(timeout=60)
        if "bad" in texts:
            raise ClusterError("odd")
        self.known.update(texts)

    def look_up(self, within_s: float = 60) -> TextAnalysis:
        return TextAnalysis(SearchThreads(8), self.search, within_s)

    async def begun(self, requests: int) -> None:
        while len(self.asked) < requests:
            await asyncio.sleep(0.001)


@pytest.mark.anyio
async def test_texts_that_wait_are_looked_up_together() -> None:
    analysis = SlowAnalysis()
    words = analysis.look_up()
    first = asyncio.ensure_future(words.wait_for("a"))
    await analysis.begun(1)
    others = [asyncio.ensure_future(words.wait_for(text)) for text in "bcd"]
    await asyncio.sleep(0)
    others[1].cancel()
    analysis.let.release(2)
    await asyncio.gather(first, others[0], others[2])
    await words.wait_for("a")
    await words.wait_for("long " * 1_000)
    assert analysis.asked == [["a"], ["b", "c", "d"]], "nor again what is known, nor what is long"


@pytest.mark.anyio
async def test_a_look_up_that_fails_or_hangs_leaves_the_next_alone() -> None:
    analysis = SlowAnalysis()
    analysis.let.release()
    with pytest.raises(ClusterError):
        await analysis.look_up().wait_for("bad")
    with pytest.raises(asyncio.TimeoutError):
        await analysis.look_up(within_s=0.01).wait_for("slow")
    analysis.let.release(2)  # the thread of the slow one works to its end
    await analysis.look_up().wait_for("next")
    assert "next" in analysis.known
