"""The shift of two collections, measured and drawn."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from hybridr.errors import DataError, MissingExtra, SettingsError
from hybridr.files.formats import write_beir
from hybridr.records import Document, Query
from hybridr.shift import (
    ShiftSettings,
    TextSample,
    compare_samples,
    draw_plane,
    drawn,
    halves,
    measure_shift,
    read_query_texts,
    sample_folder,
)
from support.hashing import HashingEncoder

TOPICS = {
    "sea": "harbor anchor island sail wave captain storm deck lighthouse cargo".split(),
    "kitchen": "kettle basket pepper oven butter recipe saucepan dough garlic knife".split(),
}


def sample(topic: str, seed: int, count: int = 120) -> TextSample:
    chance = np.random.default_rng(seed)
    texts = [" ".join(chance.choice(TOPICS[topic], 12)) for _ in range(count)]
    return TextSample(topic, texts, [f"what is {text.split()[0]}" for text in texts[:40]])


def test_identical_and_disjoint_collections() -> None:
    encoder = HashingEncoder(dim=32)
    sea, kitchen = sample("sea", 1), sample("kitchen", 2)
    same = compare_samples(sea, sea, encoder)
    assert same.value("word_jaccard") == pytest.approx(1.0)
    assert same.value("query_type_jaccard") == pytest.approx(1.0)
    assert same.value("domain_accuracy_documents") == 0.5
    far = compare_samples(sea, kitchen, encoder)
    assert far.value("word_jaccard") == 0.0
    assert far.value("domain_accuracy_documents") > 0.95
    assert far.value("knn_source") < same.value("knn_source")
    assert far.encoded == (120, 120)
    assert all(finding.paper for finding in far.findings)
    assert far.value("hole@10") is None


def test_what_is_not_given_is_said() -> None:
    bare = compare_samples(TextSample("a", ["x y"], []), TextSample("b", ["y z"], []), None, hole_share=0.25)
    needs = {finding.name: finding.note for finding in bare.findings if finding.value is None}
    assert needs["query_type_jaccard"] == "needs queries of both"
    assert needs["domain_accuracy_documents"] == "needs an encoder"
    assert bare.value("hole@10") == 0.25
    few = compare_samples(TextSample("a", ["x y"], []), TextSample("b", ["y z"], []), HashingEncoder())
    needs = {finding.name: finding.note for finding in few.findings if finding.value is None}
    assert needs["domain_accuracy_documents"] == "needs 10 of both"
    assert needs["knn_source"] == "needs queries of the index"
    assert json.loads(json.dumps(few.to_json()))["findings"]["word_jaccard"]["value"] == pytest.approx(1 / 3)


def test_plot_is_svg_and_repeatable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    found = compare_samples(
        sample("sea", 1), sample("kitchen", 2)._replace(name="_$x^ <b>"), HashingEncoder()
    )
    for name in ("a.svg", "b.svg"):
        draw_plane(found, tmp_path / name)
    drawing = (tmp_path / "a.svg").read_bytes()
    assert drawing == (tmp_path / "b.svg").read_bytes()
    assert ElementTree.fromstring(drawing).tag.endswith("svg")
    assert b"sea" in drawing
    assert b"<b>" not in drawing
    with pytest.raises(SettingsError, match="written as SVG"):
        draw_plane(found, tmp_path / "a.png")
    with pytest.raises(SettingsError, match="the plot needs vectors"):
        draw_plane(compare_samples(sample("sea", 1), sample("sea", 1)), tmp_path / "a.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match="a picture needs the package 'matplotlib'"):
        draw_plane(found, tmp_path / "c.svg")
    assert not (tmp_path / "c.svg").exists()


def test_samples_of_a_folder(tmp_path: Path) -> None:
    corpus = [Document(str(n), f"text {n}") for n in range(50)] + [Document("empty", " ")]
    write_beir(tmp_path, corpus, [Query("q", "what is it")], {"q": {"1": 1}})
    few = sample_folder(tmp_path, 10, 13)
    assert len(set(few.documents)) == 10
    assert few == sample_folder(tmp_path, 10, 13)
    assert few.documents != sample_folder(tmp_path, 10, 14).documents
    assert few.queries == ["what is it"]
    assert len(sample_folder(tmp_path, 100, 13).documents) == 50
    write_beir(tmp_path, corpus[-1:], [], {})
    with pytest.raises(DataError, match="has no document with text"):
        sample_folder(tmp_path, 10, 13)


def test_query_files(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("one\n\ntwo\n")
    assert sorted(read_query_texts(tmp_path / "log.txt", 9, 1)) == ["one", "two"]
    (tmp_path / "log.jsonl").write_text('{"text": "one"}\n{"text": ""}\n')
    assert read_query_texts(tmp_path / "log.jsonl", 9, 1) == ["one"]
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(DataError, match="holds no queries"):
        read_query_texts(tmp_path / "none.txt", 9, 1)
    with pytest.raises(DataError, match="cannot read"):
        read_query_texts(tmp_path / "missing.txt", 9, 1)


def test_a_draw_is_uniform() -> None:
    counts = np.bincount([item for seed in range(2000) for item in drawn(range(10), 3, seed)], minlength=10)
    assert counts == pytest.approx(np.full(10, 600), rel=0.15)


def test_halves() -> None:
    assert halves("three two and more") == ("three two", "and more")
    assert halves("检索模型") == ("检索", "模型")


def test_a_run_needs_its_qrels(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs both a run and its qrels"):
        measure_shift(None, "index", "source", ShiftSettings(run=tmp_path / "a.trec"))  # type: ignore[arg-type]
