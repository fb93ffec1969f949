from __future__ import annotations

from collections import Counter

import numpy as np

from hybridr.evaluation.label_free import KINDS, draw_keywords, draw_probes, gain, make_probes, take_sentence
from hybridr.records import Document


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


def test_the_gain_by_hand() -> None:
    assert gain(["a", "b", "c"], "c") == 0.5
    assert gain(["a", "b"], "c") == gain([str(i) for i in range(20)], "10") == 0.0


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
    for probe in draw_probes(documents, 40, seed=3, kinds=["known item"]):
        assert probe.text in documents[probe.position].text
        assert 6 <= len(probe.text.split()) <= 12
    assert draw_probes([Document("d", "")], 10, seed=0) == []


def test_a_known_item_is_a_run_of_words_and_leaves_the_text() -> None:
    text = "one two three four five six seven eight nine ten eleven twelve thirteen"
    probes, (rest,) = make_probes([Document("d", text)], seed=1, kinds=["known item"])
    [(kind, run, position)] = probes
    assert (kind, position) == ("known item", 0)
    assert run in text
    assert 6 <= len(run.split()) <= 7
    assert sorted(f"{run} {rest}".split()) == sorted(text.split())
    assert make_probes([Document("d", "one two three")], seed=1, kinds=["known item"]) == (
        [],
        ["one two three"],
    )
