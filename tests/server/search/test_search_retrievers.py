"""One more leg on a real node: a mode for every way of asking, and with a weight a part of a hybrid."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr import Search
from hybridr.cluster import retrievers
from hybridr.cluster.connection import Cluster
from hybridr.search import scripts
from hybridr.search.settings import SearchSettings
from support.corpus import reindexed, text_number
from support.hashing import HashingEncoder
from support.members import TITLES, one_more


@pytest.fixture
def index(cluster: Cluster, index_name: str, tmp_path: Path) -> Iterator[str]:
    reindexed(cluster, index_name, 60)
    with one_more(retrievers, "throwaway", TITLES, tmp_path):
        yield index_name


def test_a_weight_makes_it_a_part_of_a_hybrid(cluster, index, monkeypatch):
    two, three = (Search(cluster, index, HashingEncoder(), settings=one) for one in (plain(), joined()))
    text = text_number(7)
    before = {hit.doc_id: hit.score for hit in two(text, 60)}
    found = three(text, 20, explain=True)
    for hit in found:
        assert list(hit.parts) == ["words", "cosine", "first word"]
        assert hit.parts["first word"] == pytest.approx(0.4 * (hit.scores["throwaway"] or 0.0))
        assert hit.score == pytest.approx(before[hit.doc_id] + hit.parts["first word"], abs=1e-5)
    assert {hit.scores["throwaway"] for hit in found} == {1.0, None}
    monkeypatch.setattr(scripts, "scripts_refused", lambda *_: "no scripts today")
    here = Search(cluster, index, HashingEncoder(), settings=joined())
    assert here.remarks == ["ranked in several requests: no scripts today"]
    scores = {hit.doc_id: hit.score for hit in here(text, 20)}
    assert scores == pytest.approx({hit.doc_id: hit.score for hit in found}, abs=1e-5)


def test_a_pipeline_joins_three_legs(cluster, index):
    settings = joined().model_copy(update={"fusion": "pipeline"})
    search = Search(cluster, index, HashingEncoder(), settings=settings)
    assert len(search.request(text_number(7))["query"]["hybrid"]["queries"]) == 3
    assert search(text_number(7), 3)[0].doc_id == "d7"


def plain() -> SearchSettings:
    return SearchSettings(signals=("none",))


def joined() -> SearchSettings:
    return SearchSettings(retrievers={"throwaway": 0.4}, signals=("none",))
