"""The family of legs: each is a mode of search, found by its file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.cluster import retrievers
from hybridr.cluster.record import IndexInfo, Record
from hybridr.cluster.retrievers import FAMILY
from hybridr.cluster.retrievers.dense import DenseRetriever, dense_query
from hybridr.cluster.retrievers.lexical import LexicalRetriever, lexical_query
from hybridr.cluster.retrievers.sparse import SparseRetriever, feature_name
from hybridr.errors import DataError, SettingsError
from hybridr.families import member_names
from hybridr.records import Windows
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from support.members import one_more

VERSION = (3, 6, 0)
VECTOR = np.array([0.6, 0.8], dtype=np.float32)
RECORD = Record(dim=2, similarity="cosine", vector_field="v")
STATE = {"encoder": "a" * 64, "spread": 0.5}
PHRASE = '''
from dataclasses import dataclass

from hybridr.cluster.retrievers.lexical import LexicalRetriever, named_query


class Phrase(LexicalRetriever):
    """The words of the query, one after the other."""

    name = "throwaway"

    def query(self, asked, k, *, filter=None, explain=False, boost=None):
        clause = {"match_phrase": {self.fields[0].name: asked}}
        return named_query(clause, self.name if explain else None, filter, boost)
'''


@pytest.fixture
def phrase(tmp_path: Path) -> Iterator[None]:
    with one_more(retrievers, "throwaway", PHRASE, tmp_path):
        yield


def opened(mode: Any) -> Search:
    info = IndexInfo("docs", {"index.uuid": "1"}, {"properties": {"text": {"type": "text"}}}, {})
    cluster = type("Cluster", (), {"version": VERSION})()
    return Search(cluster, info, mode=mode, settings=SearchSettings(lexical_fields=("text",)))


def test_a_new_file_is_a_mode(phrase: None) -> None:
    assert set(member_names(FAMILY)) >= {"dense", "lexical", "throwaway"}
    body = opened("throwaway").request("deep sea", filter={"term": {"tags": "a"}})
    assert body["query"]["bool"]["must"] == [{"match_phrase": {"text": "deep sea"}}]
    assert body["query"]["bool"]["filter"] == [{"term": {"tags": "a"}}]


def test_without_the_file_the_mode_is_unknown() -> None:
    with pytest.raises(SettingsError, match="unknown mode 'throwaway': hybrid, .*lexical"):
        opened("throwaway")


def test_the_lexical_retriever_takes_a_text_or_a_query_made_of_it() -> None:
    leg = LexicalRetriever.of(RECORD, ("title", "text"))
    assert leg.query("sea", 5) == lexical_query("sea", ("title", "text"))
    made = {"term": {"text": "sea"}}
    assert leg.query(made, 5, explain=True) == {"bool": {"must": [made], "_name": "lexical"}}
    assert leg.scoring_query(made, ["a"]) == {
        "bool": {"must": [made], "filter": [{"ids": {"values": ["a"]}}]}
    }


def test_the_dense_leg_keeps_and_asks_vectors() -> None:
    leg = DenseRetriever.of(RECORD, ())
    near = [0.6, 0.8]
    asked = leg.query(VECTOR, 5, explain=True, boost=2.0)["knn"]["v"]
    assert asked == dense_query(asked["vector"], "v", 5, "dense", boost=2.0)["knn"]["v"]
    assert asked["vector"] == pytest.approx(near)
    scored = leg.scoring_query(VECTOR, ["a", "b"])["knn"]["v"]
    assert (scored["k"], scored["filter"]) == (2, {"ids": {"values": ["a", "b"]}})


def test_the_sparse_leg_keeps_and_asks_weights() -> None:
    made = Record(state="complete", representations={"sparse": json.dumps(STATE)})
    leg = SparseRetriever.of(made, ())
    odd = {"##ing": "##ing", "3.14": "3%2E14", "": "%0", "100%": "100%25", "A": "A", "\n*": "%0A%2A"}
    assert {token: feature_name(token) for token in odd} == odd
    asked = leg.query({"3.14": 3.0, "b": 4.0}, 5, filter={"term": {"tags": "a"}}, explain=True)["bool"]
    [first, second] = [one["rank_feature"] for one in asked["should"]]
    assert first == {"field": "hybridr_sparse.b", "boost": 4.0, "linear": {}}
    assert second["field"] == "hybridr_sparse.3%2E14"
    assert (asked["minimum_should_match"], asked["_name"]) == (1, "sparse")
    assert leg.spread_of({"3.14": 3.0, "b": 4.0}) == 2.5
    many = leg.scoring_clause({str(number): 1.0 + number for number in range(2_000)}, 0.5)["bool"]
    assert (len(many["should"]), many["boost"]) == (400, 0.5)
    assert many["should"][0]["rank_feature"]["boost"] == 2_000.0
    assert SparseRetriever.unscaled(made) is None
    assert SparseRetriever.unscaled(Record()) == "the scores of its sparse retriever are not calibrated"
    with pytest.raises(DataError, match="record of a representation is damaged"):
        SparseRetriever.unscaled(Record(representations={"sparse": "[]"}))
    assert SparseRetriever.obstacle(made.changed(state="filling")) == "its weights are not complete"


def test_the_dense_leg_of_passages_tells_the_best_one_where_it_is_shown() -> None:
    leg = DenseRetriever.of(RECORD.changed(passages=Windows(22, 4, 64)), ())
    assert "inner_hits" not in leg.query(VECTOR, 5)["nested"]
    assert leg.query(VECTOR, 5, explain=True)["nested"]["inner_hits"]["name"] == "passages"
    assert leg.scoring_query(VECTOR, ["a"])["nested"]["query"]["knn"]["v.vector"]["k"] == 64
