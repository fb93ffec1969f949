"""Memory on a real node: what it credits, for whom, for how long, and that nothing else changes."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hybridr
from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.record_parts import Remembered
from hybridr.errors import DataError, SettingsError
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.files.formats import write_beir
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import Qrels, Query
from hybridr.relevance.learning import learn, need_numbers, similarity_threshold, unlearn
from hybridr.search.calibration import likeness_threshold
from hybridr.search.past_queries import (
    MAX_DOCUMENTS,
    STAMP,
    PastQuery,
    Relevant,
    current_memory,
    document_credits,
    list_memories,
    read_relevant,
)
from hybridr.search.settings import with_tuning
from hybridr.search.systems import Compared, evaluate_index
from hybridr.status.standing import remove, status
from support.corpus import add_alias, filled_and_reindexed, text_number
from support.hashing import HashingEncoder

INDEX = "t-memory"
MADE = f"{INDEX}-hybridr-1"
PAST = "ribbon saddle timber umbrella velvet window"
LIKE = f"{PAST} yellow"
"""Of which six words of seven are those of a past query."""
UNLIKE = "basket n7"
JUDGED: tuple[list[Query], Qrels] = (
    [Query("p1", PAST), Query("p2", "kettle ladder marble n30"), Query("p3", "nobody found anything")],
    {"p1": {"d3": 2, "d4": 1, "d5": 0, "gone": 2}, "p2": {"d30": 2}, "p3": {"d6": 0}},
)
WHOLE = 60


def encoder() -> HashingEncoder:
    return HashingEncoder(dim=32)


def opened(cluster: Cluster, name: str = INDEX, *signals: str) -> Search:
    return Search(cluster, name, encoder(), settings=SearchSettings(signals=signals or ("auto",)))


def scores(search: Search, text: str) -> dict[str, float]:
    return search.run([Query("q", text)], WHOLE)["q"]


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    with filled_and_reindexed(cluster, INDEX, WHOLE, encoder(), ReindexSettings(term_table=False)) as name:
        yield name


@pytest.fixture
def before(cluster: Cluster, index: str) -> dict[str, dict[str, float]]:
    """Scores of an index that has no memory."""
    unlearn(cluster, index)
    search = opened(cluster)
    assert "memory" not in {*search.signals.members, *search.signals.left_out}
    return {text: scores(search, text) for text in (LIKE, PAST, UNLIKE)}


@pytest.fixture
def learnt(cluster: Cluster, before: dict[str, dict[str, float]]) -> Search:
    found = learn(cluster, INDEX, JUDGED, encoder=encoder())
    assert found.to_json() == {
        "index": MADE,
        "memory": current_memory(resolve(cluster, INDEX)),
        "queries": 2,
        "documents": 3,
        "unused": 1,
        "least": likeness_threshold(encoder()),
        "rehearsal": None,
    }
    return opened(cluster)


def test_a_document_is_credited_by_how_like_the_query_is(cluster, learnt, before):
    signal = learnt.signals.members["memory"]
    past, now = encoder().encode_queries([PAST, LIKE])
    nearness = (float(past @ now) - signal.least) / (1 - signal.least)
    assert 0.1 < nearness < 1
    after = scores(learnt, LIKE)
    gained = {doc: after[doc] - one for doc, one in before[LIKE].items()}
    credit = {"d3": 0.2 * nearness, "d4": 0.1 * nearness}
    assert gained == pytest.approx({doc: credit.get(doc, 0.0) for doc in gained}, abs=2e-3)
    [first] = [hit for hit in learnt(LIKE, WHOLE, explain=True) if hit.doc_id == "d3"]
    assert first.parts["memory"] == pytest.approx(gained["d3"], abs=2e-6)
    assert sum(first.parts.values()) == pytest.approx(first.score, abs=1e-4)
    assert json.dumps(learnt.body(LIKE)).count('"_id"') == 2


def test_nothing_else_ranks_otherwise(cluster, learnt, before):
    assert scores(learnt, UNLIKE) == pytest.approx(before[UNLIKE], abs=1e-6)
    without = opened(cluster, INDEX, "phrases")
    assert scores(without, LIKE) == pytest.approx(before[LIKE], abs=1e-6)
    unlearn(cluster, INDEX)
    assert list_memories(cluster, MADE) == []
    assert scores(opened(cluster), LIKE) == pytest.approx(before[LIKE], abs=1e-6)
    assert unlearn(cluster, INDEX).memory is None

    # A dry run measures and writes nothing.
    numbers = range(0, 24)
    queries = [Query(f"q{n}", f"{text_number(n)} {'basket' if n % 2 else 'candle'}") for n in numbers]
    qrels = {f"q{n}": {f"d{n - n % 4 // 2}": 1} for n in numbers}
    found = learn(cluster, INDEX, (queries, qrels), encoder=encoder(), dry_run=True)
    assert (found.queries, found.rehearsal.asked) == (24, 24)
    shared = [list(one) for one in qrels.values()]
    expected = sum(shared.count(one) > 1 for one in shared)
    assert found.rehearsal.returning == expected > 0
    assert 0 < found.rehearsal.before < 1
    assert list_memories(cluster, MADE) == []
    assert resolve(cluster, INDEX).record.memory is None


def test_what_is_computed_here_is_what_the_node_ranks_by(learnt, cluster):
    for weight in (0.5, 0.8):
        settings = SearchSettings(dense_weight=weight)
        search = Search(learnt.cluster, INDEX, encoder(), settings=settings)
        ranked = scores(search, LIKE)
        here = search.context.fusion.scores(search.candidates([LIKE])[0])
        assert ranked == pytest.approx({doc: here[doc] for doc in ranked}, abs=1e-4)

    # An alias shows its own documents and is told of no others.
    shown = {"ids": {"values": ["d4", "d5", "d6", "d30"]}}
    add_alias(cluster, MADE, f"{INDEX}-few", filter=shown)
    search = opened(cluster, f"{INDEX}-few")
    assert set(scores(search, LIKE)) <= {"d4", "d5", "d6", "d30"}
    assert '"d3"' not in json.dumps(search.body(LIKE)["rescore"])
    assert '"d4"' in json.dumps(search.body(LIKE)["rescore"])
    with pytest.raises(hybridr.HybridrError, match="alias with a filter"):
        learn(cluster, f"{INDEX}-few", JUDGED, encoder=encoder())


def test_a_document_that_says_something_else_since_is_credited_no_more(cluster, learnt):
    path = path_of(MADE, "_update", "d3")
    cluster.request("POST", path, {"doc": {"price": 99.0}}, {"refresh": "true"})
    assert '"d3"' in json.dumps(opened(cluster).body(LIKE)["rescore"])
    try:
        cluster.request("POST", path, {"doc": {"text": "another thing"}}, {"refresh": "true"})
        assert '"d3"' not in json.dumps(opened(cluster).body(LIKE)["rescore"])
    finally:
        cluster.request("POST", path, {"doc": {"text": text_number(3), "price": 0.3}}, {"refresh": "true"})


def test_no_search_fails_without_its_memory_and_that_is_said(cluster, learnt, before, caplog):
    cluster.request("DELETE", path_of(current_memory(learnt.info)))
    with caplog.at_level(logging.WARNING, "hybridr.memory"):
        assert scores(learnt, LIKE) == pytest.approx(before[LIKE], abs=1e-6)
        assert scores(learnt, UNLIKE) == pytest.approx(before[UNLIKE], abs=1e-6)
    assert [one.getMessage() for one in caplog.records if one.name == "hybridr.memory"] == [
        f"searches of '{MADE}' go without memory: no such index [{current_memory(learnt.info)}]"
    ]
    [held] = status(cluster, INDEX).holdings
    assert "memory: 2 past queries, NOT USABLE: hybridr learn makes it anew" in held.sidecar_lines()


def test_no_text_is_kept_and_who_reads_it_finds_no_vector_either(cluster, learnt):
    found = cluster.search(current_memory(learnt.info), {"size": 9})["hits"]["hits"]
    assert [sorted(hit["_source"]) for hit in found] == [["relevant"]] * 2
    kept = json.dumps([found, cluster.index_info(current_memory(learnt.info)).mappings])
    assert not any(word in kept for word in PAST.split())
    assert cluster.index_info(current_memory(learnt.info)).settings["index.hidden"] == "true"

    # Status and remove know of it.
    [held] = status(cluster, INDEX).holdings
    assert f"memory: 2 past queries, in {current_memory(learnt.info)}" in held.sidecar_lines()
    assert held.history[-1]["event"] == "learnt"
    assert remove(cluster, INDEX, dry_run=True)["memories"] == [current_memory(learnt.info)]


def test_judged_queries_that_were_learnt_are_told_of(cluster, learnt, tmp_path):
    write_beir(tmp_path, [], [Query("a", PAST), Query("b", UNLIKE)], {"a": {"d3": 1}, "b": {"d7": 1}})
    assert learnt.signals.learnt_from([UNLIKE, PAST]) == {PAST}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybridr.search.systems.encoder_for", lambda *_, **__: encoder())
        found = evaluate_index(cluster, INDEX, JudgedQueries(tmp_path), Compared(("hybrid", "dense")))
    [remark] = found.remarks
    assert remark.startswith("hybrid: 1 of 2 queries were learnt")


def test_what_cannot_be_learnt_is_refused(cluster, index):
    with pytest.raises(DataError, match="no judged query has a relevant document"):
        learn(cluster, index, ([Query("q", "window")], {"q": {"d1": 0}}), encoder=encoder())
    with pytest.raises(DataError, match="are not in"):
        learn(cluster, index, ([Query("q", "window")], {"q": {"other": 1}}), encoder=encoder())
    unlearn(cluster, index)
    with pytest.raises(SettingsError, match="nothing was learnt yet: hybridr learn"):
        opened(cluster, index, "memory")


def test_the_nearest_past_query_counts_and_what_is_no_document_does_not():
    stamp = "0" * STAMP
    past = [
        PastQuery(1.0, [Relevant("a", 0.5, stamp)]),
        PastQuery(0.9, [Relevant("a", 1.0, stamp), Relevant("b", 1.0, stamp)]),
    ]
    found = document_credits(past, 0.8)
    assert {doc: one.score for doc, one in found.items()} == pytest.approx({"a": 0.5, "b": 0.5})
    fine = ["a", 1, stamp]
    odd: list[Any] = [["", 1, stamp], ["a" * 513, 1, stamp], ["a", 2, stamp], ["a", float("nan"), stamp]]
    odd += [["a", 1, "x"], ["a", "1", stamp], [7, 1, stamp], "a", None, {"a": 1}, ["a", 1]]
    assert list(read_relevant({"_source": {"relevant": [*odd, fine]}})) == [Relevant("a", 1.0, stamp)]
    assert len(list(read_relevant({"_source": {"relevant": [fine] * 10_000}}))) == MAX_DOCUMENTS
    for other in ({}, {"_source": {}}, {"_source": {"relevant": "abc"}}):
        assert list(read_relevant(other)) == []


def test_needs_are_queries_that_share_a_document_if_by_way_of_others():
    first, second, third, alone, nothing = need_numbers([["a"], ["b", "c"], ["a", "b"], ["d"], []])
    assert first == second == third
    assert len({first, alone, nothing}) == 3


@pytest.mark.parametrize(("same", "raised"), [(0, True), (3, True), (8, False), (40, False)])
def test_where_near_queries_have_other_needs_they_have_to_be_nearer(same, raised):
    """Forty pairs, of which so many share a document; pairs themselves are far from each other."""
    angles = np.linspace(0.02, 0.6, 40)  # cosines from .9998 to .825
    left = np.eye(80, dtype=np.float32)[:40]
    right = np.cos(angles)[:, None] * left + np.sin(angles)[:, None] * np.eye(80)[40:]
    vectors = np.concatenate([left, right]).astype(np.float32)
    others = np.arange(100, 140)
    others[:same] = np.arange(same)
    found = similarity_threshold(vectors, np.concatenate([np.arange(40), others]), 0.8)
    assert (0.8 < found < 1) if raised else (found == 0.8)
    assert similarity_threshold(vectors[:40], np.arange(40), 0.8) == 0.8, "nothing is near"


def test_what_was_tuned_leaves_a_memory_in(cluster, learnt):
    tuned = {"tuning": {"search": {"fusion": "absolute", "signals": ["phrases"]}}}
    record = learnt.info.record.changed(**tuned)
    info = learnt.info.__class__(MADE, {}, {"_meta": {"hybridr": record.to_json()}}, {})
    assert with_tuning(SearchSettings(), info).signals == ("phrases", "memory")
    other = record.changed(memory=Remembered(queries=1, encoder="f" * 64, job="1"))
    info = learnt.info.__class__(MADE, {}, {"_meta": {"hybridr": other.to_json()}}, {})
    assert with_tuning(SearchSettings(), info).signals == ("phrases",)
