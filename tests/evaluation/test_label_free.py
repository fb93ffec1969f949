"""Known-item queries and the statistics that need no judgements."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hybridr.evaluation.label_free import (
    KINDS,
    BeforeAfter,
    Rankings,
    compare_kept,
    compare_means,
    compare_overlap,
    compare_own_documents,
    draw_keywords,
    draw_probes,
    make_probes,
    objections,
    own_document_ndcg,
    single_answer_ndcg,
    take_sentence,
    terms_of,
)
from hybridr.records import Document

TEN = [str(i) for i in range(10)]


@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        ({}, 0),
        ({"dense": (0.5, 0.46, 0.001)}, 0),  # smaller than a disaster
        ({"dense": (0.5, 0.44, 0.001)}, 1),
        ({"dense": (0.5, 0.44, 0.2)}, 0),  # by chance
        ({"hybrid": (0.5, 0.44, 0.001)}, 1),
        ({"overlap": (0.4, 0.385, 0.001)}, 0),
        ({"overlap": (0.4, 0.37, 0.001)}, 1),
        ({"overlap": (0.4, 0.37, 0.3)}, 0),
        ({"kept": (1.0, 0.86, 1.0)}, 0),
        ({"kept": (1.0, 0.84, 1.0)}, 1),
        ({"overlap": (0.4, 0.3, 0.0), "kept": (1.0, 0.5, 1.0), "dense": (0.5, 0.1, 0.0)}, 3),
    ],
)
def test_what_speaks_against_an_encoder(changes: dict[str, tuple[float, float, float]], reasons: int) -> None:
    usual = {"dense": (0.5, 0.5, 1), "hybrid": (0.6, 0.6, 1), "overlap": (0.4, 0.4, 1), "kept": (1, 0.95, 1)}
    rows = [BeforeAfter(name, *values, 100) for name, values in (usual | changes).items()]
    assert len(objections(rows)) == reasons


def test_probes_come_from_documents_and_leave_their_text() -> None:
    document = Document(
        "d", "Wing flutter was measured in a tunnel. The model had a swept wing of steel.", "Flutter of wings"
    )
    probes, (text,) = make_probes([document], seed=3)
    by_kind = {probe.kind: probe.text for probe in probes}
    assert by_kind["title"] == "Flutter of wings"
    assert by_kind["sentence"] not in text
    assert {by_kind["sentence"], text} == {
        "Wing flutter was measured in a tunnel.",
        "The model had a swept wing of steel.",
    }
    assert 2 <= len(by_kind["keywords"].split()) <= 6
    assert set(by_kind["keywords"].split()) <= set(text.lower().strip(".").split())
    assert make_probes([document], seed=3) == (probes, [text])


def test_documents_without_sentences_still_give_keywords() -> None:
    assert take_sentence("one two three", np.random.default_rng(0)) == ("", "one two three")
    probes, texts = make_probes([Document("d", "stack overflow error handling")], seed=0)
    assert [probe.kind for probe in probes] == ["keywords"]
    assert texts == ["stack overflow error handling"]
    assert draw_keywords("word", {"word": 1.0}, np.random.default_rng(0)) == ""
    assert make_probes([Document("d", "")], seed=0) == ([], [""])


def test_chinese_keywords_are_pairs_of_characters_not_clauses() -> None:
    text = "今天天气很好，我们去公园散步。公园里有很多人，大家都很高兴。"
    pairs = {term for term in terms_of(text) if len(term) == 2}
    term_idf = dict.fromkeys(pairs, 1.0)
    for seed in range(20):
        words = draw_keywords(text, term_idf, np.random.default_rng(seed)).split()
        assert 2 <= len(words) <= 6
        assert set(words) <= pairs


def test_the_gain_by_hand() -> None:
    assert single_answer_ndcg(["a", "b", "c"], "c") == 0.5
    assert single_answer_ndcg(["a", "b"], "c") == single_answer_ndcg([str(i) for i in range(20)], "10") == 0.0


def test_probes_are_drawn_evenly_and_what_is_missing_is_made_up_for() -> None:
    documents = [
        Document(
            f"d{i}",
            f"word{i} lies on a long table here today. Sails moved{i} slowly past the old houses.",
            f"t{i}" * (i < 5),
        )
        for i in range(40)
    ]
    probes = draw_probes(documents, 60, seed=3)
    assert Counter(probe.kind for probe in probes) == {"title": 5, "sentence": 27, "keywords": 28}
    assert draw_probes(documents, 60, seed=3) == probes != draw_probes(documents, 60, seed=4)
    for kind in KINDS:
        positions = [probe.position for probe in probes if probe.kind == kind]
        assert len(set(positions)) == len(positions)
    assert draw_probes([Document("d", "")], 10, seed=0) == []


def test_the_statistics_by_hand() -> None:
    assert own_document_ndcg([["a", "b", "c"], ["a"], TEN], ["c", "b", "0"]).tolist() == [0.5, 0.0, 1.0]
    assert own_document_ndcg([[*TEN, "late"]], ["late"]).tolist() == [0.0]
    words = [f"w{i}" for i in range(19)]
    overlap = Rankings([[*words, "3", "0"]], [["3", "w0", *TEN]], [])  # "0" is the 21st
    assert compare_overlap(overlap, overlap).old == 0.2
    old, new = (Rankings([], [], fused) for fused in ([TEN, ["a", "b"], []], [TEN[5:], ["b", "c"], ["a"]]))
    assert compare_kept(old, new).new == pytest.approx((0.5 + 0.5 + 0.0) / 3)


def test_two_systems_are_compared_by_all_of_them() -> None:
    old = Rankings([["a", "b"]] * 2, [["a", "b"], ["b", "a"]], [["a", "b"], ["a", "b"]])
    new = Rankings([["a", "b"]] * 2, [["b", "x"], ["y", "x"]], [["b", "a"], ["x", "a"]])
    dense, hybrid = compare_own_documents(old, new, ["a", "a"])
    assert (dense.name, dense.new, dense.queries) == ("dense nDCG@10, own document", 0.0, 2)
    assert dense.old == pytest.approx((1 + 1 / np.log2(3)) / 2)
    assert (hybrid.old, hybrid.new) == (1.0, pytest.approx(1 / np.log2(3)))
    assert compare_overlap(old, new).old == 0.2
    assert compare_overlap(old, new).new == 0.05
    assert compare_kept(old, new).new == 0.75
    assert compare_kept(old.of([0]), new.of([0])).new == 1.0


def test_the_paired_test_by_hand() -> None:
    row = compare_means("x", np.array([1.0, 0, 1, 0]), np.array([1.0, 1, 1, 1]))
    assert (row.old, row.new, row.queries) == (0.5, 1.0, 4)
    assert row.p == pytest.approx(0.1817, abs=1e-4)  # t = 1.732 with 3 degrees of freedom
    assert compare_means("x", np.array([1.0]), np.array([0.0])).p == 1.0
