"""The sparse retriever on a real node: scores as `assemble` gives them, alone and as a third of a hybrid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hybridr import ReindexSettings, Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve, write_record
from hybridr.errors import DataError, SettingsError
from hybridr.evaluation.evaluation import evaluate
from hybridr.indexing.reindexing import reindex
from hybridr.records import Query
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.corpus import drop_indices, fill_uneven
from support.golden_ddr import golden
from support.hashing import HashingEncoder
from support.in_place_index import raw
from support.sparse import QUERIES, exported

WORDS = ["anchor basket", "the forest and the garden", "marble", "zephyr of velvet", "n 12 window"]
TEXTS = [*QUERIES, *WORDS]
THREE = SearchSettings(retrievers={"sparse": 0.4}, signals=("none",))
TWO = SearchSettings(signals=("none",))


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    fill_uneven(cluster, "t-sparse", shards=3)
    settings = {"fields": ("text",), "term_table": False, "sparse_encoder": exported()}
    reindex(cluster, "t-sparse", HashingEncoder(), ReindexSettings(**settings))
    yield "t-sparse"
    drop_indices(cluster, "t-sparse*")


def scores_by(ranker: str, documents: dict[str, dict[str, Any]], texts: list[str]) -> np.ndarray:
    """Score all documents for texts in torch: `(texts, documents)`."""
    model = golden(ranker)
    found = model.encode_documents([one["text"] for one in documents.values()])
    return model.encode_queries(texts) @ found.T


def test_scores_are_those_of_the_ranker(cluster, index):
    documents = raw(cluster, resolve(cluster, index).name)
    wanted, ids = scores_by("splade", documents, TEXTS), list(documents)
    search = Search(cluster, index, mode="sparse")
    found = search.run([Query(str(number), text) for number, text in enumerate(TEXTS)], 240)
    overlaps = []
    for number, row in enumerate(wanted):
        scores = found[str(number)]
        assert scores == pytest.approx(dict(zip(ids, row.tolist(), strict=True)), rel=1e-2)
        best = {ids[place] for place in np.argsort(-row, kind="stable")[:10]}
        overlaps.append(len(best & set(list(scores)[:10])) / 10)
    assert np.mean(overlaps) >= 0.98, overlaps


def test_it_is_a_mode_of_the_command_line_the_server_and_evaluate(cluster, index, cli):
    expected = [hit.doc_id for hit in Search(cluster, index, mode="sparse")(WORDS[0], 5)]
    hits = cli(cluster, f"search {index} --mode sparse -k 5 --json", WORDS[0]).json["hits"]
    assert [hit["doc_id"] for hit in hits] == expected
    assert [hit["sparse_score"] for hit in hits] == [hit["score"] for hit in hits]
    client = TestClient(create_app(HashingEncoder(), ServeSettings(index=index), cluster=cluster))
    found = client.post("/search", json={"query": WORDS[0], "k": 5, "mode": "sparse"}).json()
    assert [hit["doc_id"] for hit in found["hits"]] == expected
    queries, qrels = [Query("q", WORDS[0])], {"q": {expected[0]: 1}}
    table = evaluate({"sparse": Search(cluster, index, mode="sparse")}, queries, qrels, ["P@1"])
    assert table.to_json()["systems"]["sparse"]["P@1"] == 1.0

    # A filter and a query of no known token.
    search = Search(cluster, index, mode="sparse")
    only = search(WORDS[0], 240, filter={"ids": {"values": ["d1", "d2"]}})
    assert {hit.doc_id for hit in only} == {"d1", "d2"}
    assert search.context.retrievers["sparse"].query({}, 5) == {"match_none": {}}


def test_as_a_third_leg_it_adds_its_calibrated_score(cluster, index):
    encoder = HashingEncoder()
    two, three = (Search(cluster, index, encoder, settings=one) for one in (TWO, THREE))
    before = {hit.doc_id: hit.score for hit in two(WORDS[1], 240)}
    alone = {hit.doc_id: hit.score for hit in Search(cluster, index, mode="sparse")(WORDS[1], 240)}
    found = three(WORDS[1], 30, explain=True)
    [rate] = {round((hit.parts or {})["sparse"] / alone[hit.doc_id], 5) for hit in found}
    for hit in found:
        assert hit.score == pytest.approx(before[hit.doc_id] + rate * alone[hit.doc_id], abs=1e-3)
    spreads = [np.std(list(scores.values())) for scores in (alone, before)]
    assert 0.1 < rate / 0.4 * spreads[0] / spreads[1] < 10, "neither leg drowns the other"

    # Without a calibration scores are not added.
    info = resolve(cluster, index)
    state = json.loads(info.record.representations["sparse"])
    write_record(cluster, info.name, representations={"sparse": json.dumps({**state, "spread": None})})
    try:
        absolute = THREE.model_copy(update={"fusion": "absolute"})
        with pytest.raises(SettingsError, match="the scores of its sparse retriever are not calibrated"):
            Search(cluster, index, HashingEncoder(), settings=absolute)
        assert Search(cluster, index, HashingEncoder(), settings=THREE).fusion == "pipeline"
        assert Search(cluster, index, HashingEncoder(), settings=TWO).fusion == "absolute"
    finally:
        write_record(cluster, info.name, representations=info.record.representations)


def test_an_index_without_weights_says_so(cluster, index_name):
    fill_uneven(cluster, index_name)
    with pytest.raises(DataError, match="has no sparse retriever: the index has no weights of tokens"):
        Search(cluster, index_name, mode="sparse")
