"""Boosts on a real node of three shards: its arithmetic is ours, on pages, with filters, in every way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

import pytest
from fastapi.testclient import TestClient

from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.errors import SettingsError
from hybridr.indexing.reindexing import reindex
from hybridr.records import Query
from hybridr.search.fusions.absolute import Absolute
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.corpus import create, drop_indices, put, text_number
from support.hashing import HashingEncoder

INDEX, COUNT, DEPTH = "t-boosts", 120, 60
TEXT = text_number(5)
FORMULA = "log1p(sold, 1000):0.2 + linear(stars, 5):0.1 + recency(published, 30d):0.3 + recency(seen, 2d):.05"
PROPERTIES = {
    "text": {"type": "text"},
    "sold": {"type": "long"},
    "stars": {"type": "half_float"},
    "published": {"type": "date", "format": "yyyy/MM/dd"},
    "seen": {"type": "date_nanos"},
    "tags": {"type": "keyword"},
}
TODAY = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
WEIGHTS = (0.2, 0.1, 0.3, 0.05)
STEADY = "log1p(sold, 1000):0.2 + recency(published, 300d):0.3"  # "now" moves at midnight
T = TypeVar("T")
NAMES = ["log1p(sold, 1000)", "linear(stars, 5)", "recency(published, 30d)", "recency(seen, 2d)"]


def source(number: int) -> dict[str, Any]:
    """A document: some lack a value or have several, some numbers are negative, some dates to come."""
    found: dict[str, Any] = {"text": text_number(number), "tags": [f"t{number % 3}"]}
    if number % 4:
        found["sold"] = [-7, 10**12, number**3, [number * 50, 3]][number % 4]
    if number % 5:
        found["stars"] = number % 8 - 1
    if number % 3:
        found["published"] = (TODAY + timedelta(days=40 - number)).strftime("%Y/%m/%d")
    if number % 7 == 0:
        found["seen"] = (TODAY - timedelta(hours=number)).isoformat()
    return found


def parts_of(number: int, now: datetime) -> list[float]:
    """The values of the four forms, 0 to 1, by Python."""
    found = source(number)
    sold = found.get("sold", 0)

    def recent(date: datetime | None, half_life: timedelta, step: timedelta) -> float:
        if date is None:
            return 0.0
        begun = now - timedelta(seconds=now.timestamp() % step.total_seconds())
        return 1.0 if date >= begun else half_life / (half_life + (begun + step - date))

    published = found.get("published") and datetime.strptime(found["published"] + " +0000", "%Y/%m/%d %z")
    seen = found.get("seen") and datetime.fromisoformat(found["seen"])
    return [
        min(1.0, math.log1p(max(min(sold) if isinstance(sold, list) else sold, 0)) / math.log1p(1000)),
        min(1.0, max(found.get("stars", 0), 0) / 5),
        recent(published, timedelta(days=30), timedelta(hours=1)),
        recent(seen, timedelta(days=2), timedelta(minutes=1)),
    ]


def added(doc_id: str, now: datetime) -> float:
    return math.fsum(weight * part for weight, part in zip(WEIGHTS, parts_of(int(doc_id), now), strict=True))


def within_a_minute(ask: Callable[[], T]) -> tuple[T, datetime]:
    """Ask while the node's "now" stands still, and say when."""
    while True:
        before, found, now = datetime.now(timezone.utc), ask(), datetime.now(timezone.utc)
        if (before.hour, before.minute) == (now.hour, now.minute):
            return found, now


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    create(cluster, INDEX, PROPERTIES, {"number_of_shards": 3, "number_of_replicas": 0})
    put(cluster, INDEX, {str(number): source(number) for number in range(COUNT)})
    reindex(cluster, INDEX, HashingEncoder(dim=32))
    yield INDEX
    drop_indices(cluster, f"{INDEX}*")


@pytest.fixture(scope="module")
def search(cluster: Cluster, index: str) -> Search:
    return Search(cluster, index, HashingEncoder(dim=32), settings=SearchSettings(boost=FORMULA, depth=COUNT))


def scores_of(search: Search, k: int = COUNT) -> dict[str, float]:
    return search.run([Query("q", TEXT)], k)["q"]


def test_the_node_adds_what_python_adds(cluster, index, search):
    relevance = scores_of(Search(cluster, index, search.encoder, settings=SearchSettings(depth=COUNT)))
    (found, here), now = within_a_minute(lambda: (scores_of(search), search.candidates([TEXT])[0]))
    assert len(found) == COUNT
    assert found == pytest.approx({doc: relevance[doc] + added(doc, now) for doc in found}, abs=1e-4)
    fused = Absolute(search.settings, cluster.version).scores(here)
    assert fused == pytest.approx(found, abs=1e-4), "as Python fuses"

    # Each part is shown.
    hits, now = within_a_minute(lambda: search(TEXT, COUNT, explain=True))
    for hit in hits:
        assert math.fsum(hit.parts.values()) == pytest.approx(hit.score, abs=1e-4)
        shown = [hit.parts[name] / weight for name, weight in zip(NAMES, WEIGHTS, strict=True)]
        assert shown == pytest.approx(parts_of(int(hit.doc_id), now), abs=1e-4)


def test_pages_join_and_filters_hold(cluster, index):
    settings = SearchSettings(boost=STEADY, depth=DEPTH)
    search = Search(cluster, index, HashingEncoder(dim=32), settings=settings)
    whole = search(TEXT, DEPTH)
    paged = [hit for start in range(0, DEPTH, 20) for hit in search(TEXT, 20, offset=start)]
    assert paged == whole
    wanted = {"term": {"tags": "t1"}}
    kept = search(TEXT, 20, filter=wanted)
    assert {int(hit.doc_id) % 3 for hit in kept} == {1}
    scores = {hit.doc_id: hit.score for hit in search(TEXT, COUNT)}
    assert all(hit.score == pytest.approx(scores[hit.doc_id], abs=1e-5) for hit in kept)


def test_the_printed_request_ranks_so_and_its_script_knows_no_field(cluster, search):
    body = search.body(TEXT, 20, boost=STEADY)
    hits = cluster.search(search.info.name, body | {"_source": False})["hits"]["hits"]
    expected = [(hit.doc_id, hit.score) for hit in search(TEXT, 20, boost=STEADY)]
    assert [(hit["_id"], hit["_score"]) for hit in hits] == expected
    assert "distance_feature" in json.dumps(search.request(TEXT))
    parts = body["rescore"]["query"]["rescore_query"]["bool"]["should"]
    [script] = [part["script_score"]["script"]["source"] for part in parts if "script_score" in part]
    assert not [field for field in ("sold", "stars", "published") if field in script]

    # An index without the fields loses nothing.
    cluster.request("PUT", f"/{INDEX}-other/_doc/x", {"text": TEXT}, {"refresh": "true"})
    answer = cluster.search(f"{search.info.name},{INDEX}-other", search.request(TEXT, COUNT + 1))
    assert answer["_shards"]["failed"] == 0
    assert "x" in [hit["_id"] for hit in answer["hits"]["hits"]]


def test_the_server_takes_the_same_formula(cluster, index, search):
    app = TestClient(create_app(HashingEncoder(dim=32), ServeSettings(index=index), cluster=cluster))
    asked = {"query": TEXT, "k": 20, "boost": STEADY, "explain": True}
    plain = Search(cluster, index, search.encoder)
    expected = plain(TEXT, 20, boost=STEADY)
    hits = app.post("/search", json=asked).json()["hits"]
    assert [(hit["doc_id"], hit["score"]) for hit in hits] == [(hit.doc_id, hit.score) for hit in expected]
    assert {"log1p(sold, 1000)", "recency(published, 300d)"} < set(hits[0]["parts"])
    for wrong in ({"boost": "log1p(nothing):1"}, {"boost": "x"}, {"boost": 7}, {"mode": "dense"}):
        assert app.post("/search", json=asked | wrong).status_code == 400
    body = {"query": {"match": {"text": TEXT}}, "size": 20}
    ranked = app.post("/v1/rank", params={"boost": STEADY}, json=body).json()["body"]
    found = cluster.search(plain.info.name, json.loads(ranked))["hits"]["hits"]
    assert [hit["_id"] for hit in found] == [hit.doc_id for hit in expected]


def test_what_adds_no_boosts_says_so(cluster, index, search, cli):
    with pytest.raises(SettingsError, match="the fusion 'pipeline' does not support boosts"):
        Search(cluster, index, search.encoder, settings=SearchSettings(boost=FORMULA, fusion="pipeline"))
    assert "mode lexical ranks by one retriever" in search.using("lexical").remarks[0]
    assert (
        "the boost is not used"
        in cli(cluster, f"search {INDEX} --mode lexical --boost log1p(text):1", TEXT).err
    )
