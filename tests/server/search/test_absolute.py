"""The absolute fusion on a real node: true scores of both legs, whatever the page, filter or vectors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest

from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.errors import SettingsError
from hybridr.evaluation.label_free import idf
from hybridr.indexing.reindexing import reindex
from hybridr.records import Query
from hybridr.search.calibration import MINILM_SPREAD, fixed_text_cosines
from support.corpus import bulk, drop_indices, fill_index, text_number
from support.hashing import HashingEncoder

COUNT, DEPTH = 200, 20
TEXT = text_number(5)


def encoder() -> HashingEncoder:
    return HashingEncoder(dim=32)


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    name = "t-absolute"
    fill_index(cluster, name, COUNT)
    bulk(cluster, name, [{"index": {"_id": "empty"}}, {"tags": ["a"], "price": 1.0}])
    reindex(cluster, name, encoder())
    yield name
    drop_indices(cluster, f"{name}*")


def expected_scores(cluster: Cluster, index: str, text: str, dense_weight: float) -> dict[str, float]:
    """Every document's score from the formula, with BM25 asked for separately."""
    everything = {"size": COUNT + 1, "query": {"match": {"text": text}}, "_source": False}
    hits = cluster.search(index, everything)["hits"]["hits"]
    lexical = {hit["_id"]: hit["_score"] for hit in hits}
    ids = [f"d{number}" for number in range(COUNT)]
    vectors = encoder().encode_documents([text_number(number) for number in range(COUNT)])
    cosines = dict(zip(ids, vectors @ encoder().encode_queries([text])[0], strict=True)) | {"empty": 0.0}
    holding = [sum(word in text_number(n).split() for n in range(COUNT)) for word in set(text.split())]
    total = math.fsum(idf(count, COUNT) for count in holding)
    scale = MINILM_SPREAD / fixed_text_cosines(encoder())[0]
    return {
        doc: (1 - dense_weight) * lexical.get(doc, 0.0) / (4 * math.sqrt(total))
        + dense_weight * min(scale, 8.0) * (1 + cosine)
        for doc, cosine in cosines.items()
    }


def test_legs_are_named_only_where_their_scores_are_shown(cluster, index):
    search = Search(cluster, index, encoder())
    assert "_name" not in json.dumps(search.request(TEXT))
    words = {"size": COUNT, "query": {"match": {"text": TEXT}}, "_source": False}
    lexical = {hit["_id"]: hit["_score"] for hit in cluster.search(search.info.name, words)["hits"]["hits"]}
    for hit in search(TEXT):
        assert hit.scores["lexical"] == pytest.approx(lexical.get(hit.doc_id), abs=1e-5)
        assert hit.scores["dense"] is not None

    # The request takes aggregations.
    search = Search(cluster, index, encoder(), settings=SearchSettings(depth=30))
    body = search.request(TEXT, 5, offset=5, filter={"term": {"tags": "t1"}})
    body["aggs"] = {"tags": {"terms": {"field": "tags"}}}
    answer = cluster.search(search.info.name, body)
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == [
        hit.doc_id for hit in search(TEXT, 5, offset=5, filter={"term": {"tags": "t1"}})
    ]
    counts = {bucket["key"]: bucket["doc_count"] for bucket in answer["aggregations"]["tags"]["buckets"]}
    assert counts == {"a": answer["hits"]["total"]["value"], "t1": answer["hits"]["total"]["value"]}


@pytest.mark.parametrize("dense_weight", [0.0, 0.5, 0.9])
def test_every_candidate_has_its_true_score(cluster, index, dense_weight):
    settings = SearchSettings(dense_weight=dense_weight, depth=DEPTH, signals=("none",))
    search = Search(cluster, index, encoder(), settings=settings)
    assert search.fusion == "absolute"
    expected = expected_scores(cluster, search.info.name, TEXT, dense_weight)
    found = search.run([Query("q", TEXT)], DEPTH)["q"]
    assert len(found) == DEPTH
    assert found == pytest.approx({doc: expected[doc] for doc in found}, abs=1e-4)
    if dense_weight:
        best = sorted(expected, key=lambda doc: -expected[doc])[:10]
        assert [expected[doc] for doc in best] == pytest.approx(list(found.values())[:10], abs=1e-4)


def test_a_page_beyond_what_the_pipeline_normalises_is_refused(cluster, index):
    search = Search(cluster, index, encoder(), settings=SearchSettings(fusion="pipeline", depth=20))
    assert len(search(TEXT, 10, offset=10)) == 10
    with pytest.raises(SettingsError, match="hits 16 to 25 are beyond the 20 candidates"):
        search(TEXT, 10, offset=15)


@pytest.mark.parametrize("mode", ["lexical", "dense", "hybrid"])
@pytest.mark.parametrize("fusion", ["absolute", "pipeline"])
def test_a_filter_limits_both_legs(cluster, index, mode, fusion):
    search = Search(cluster, index, encoder(), mode, settings=SearchSettings(fusion=fusion, depth=30))
    wanted = {"term": {"tags": "t1"}}
    hits = search(TEXT, 30, filter=wanted)
    assert len(hits) == 30
    assert {int(hit.doc_id[1:]) % 3 for hit in hits} == {1}
    if mode != "hybrid" or fusion == "absolute":
        free = {hit.doc_id: hit.score for hit in search(TEXT, COUNT)}
        assert all(hit.score == pytest.approx(free[hit.doc_id], abs=1e-5) for hit in hits)


def test_words_that_nobody_wrote_leave_the_dense_leg(cluster, index):
    search = Search(cluster, index, encoder(), settings=SearchSettings(depth=DEPTH, signals=("none",)))
    for text in ("xyzzy qwertz", "!!!"):
        dense = search.using("dense").run([Query("q", text)], 10)["q"]
        assert list(search.run([Query("q", text)], 10)["q"]) == list(dense)
