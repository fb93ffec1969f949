from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hybridr.cluster.record import Record
from hybridr.errors import SettingsError
from hybridr.tuning.bm25_scores import Similarity
from hybridr.tuning.judgement import Choice, Point
from hybridr.tuning.k1_and_b import bm25_variants
from hybridr.tuning.tuning import Bm25Choice, Tuning, draw_curve, read_judged
from hybridr.tuning.variants import variants

VERSION, COSINE = (3, 6, 0), Record(similarity="cosine")


def test_the_curve_is_drawn_the_same_twice(tmp_path: Path) -> None:
    points = tuple(Point(variant, 0.5) for variant in variants(VERSION, COSINE))
    choice = Choice(30, "nDCG@10", 0.5, points[0].variant, 0.0, -0.1, 0.1, False, points)
    found = Tuning("docs", choice, None, None, None, "not asked for")
    for name in ("one.svg", "two.svg"):
        draw_curve(found, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert "z_score" in (tmp_path / "one.svg").read_text()
    words = [Point(word, 0.4) for word in bm25_variants(Similarity())]
    of_words = Choice(30, "nDCG@10", 0.4, words[0].variant, 0.0, -0.1, 0.1, False, tuple(words))
    both = replace(found, bm25=Bm25Choice(Similarity(), of_words, None, ()))
    draw_curve(both, tmp_path / "both.svg")
    assert "k1" in (tmp_path / "both.svg").read_text()
    with pytest.raises(SettingsError, match="SVG"):
        draw_curve(found, tmp_path / "one.png")
    with pytest.raises(SettingsError, match="no curve"):
        draw_curve(Tuning("docs", None, None, None, None, None), tmp_path / "one.svg")


def test_judgements_need_queries() -> None:
    assert read_judged(None, "test", None) is None
    with pytest.raises(SettingsError, match="without queries"):
        read_judged(None, "test", Path("qrels.tsv"))
