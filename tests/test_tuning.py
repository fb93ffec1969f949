"""The choice among variants, with known answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridr.cluster.record import Record
from hybridr.errors import SettingsError
from hybridr.records import Query
from hybridr.search.fusions import Legs
from hybridr.search.fusions.absolute import absolute_weights
from hybridr.search.fusions.pipeline import fuse, search_pipeline
from hybridr.search.settings import SearchSettings
from hybridr.tuning.bm25_scores import Similarity
from hybridr.tuning.choice import Landscape, choose, held_out_gains
from hybridr.tuning.evidence import Asked
from hybridr.tuning.judgement import Choice, Point
from hybridr.tuning.k1_and_b import bm25_landscape, bm25_variants
from hybridr.tuning.tuning import Bm25Choice, Tuning, draw_curve, read_judged
from hybridr.tuning.variants import Variant, landscape, scores_of, variants

VERSION, COSINE = (3, 6, 0), Record(similarity="cosine")
ALONE = Landscape(np.array([0.0, 0.09, 0.25]), np.eye(3))


def test_few_queries_stay_near_the_default() -> None:
    better = np.array([[0.5, 0.5, 0.54]])
    assert choose(np.repeat(better, 10, axis=0), ALONE) == 0
    assert choose(np.repeat(better, 100, axis=0), ALONE) == 2


def test_held_out_gains_are_those_of_the_better_variant() -> None:
    random = np.random.default_rng(1)
    noise = random.normal(0, 0.05, (200, 3))
    gains = held_out_gains(noise + np.array([0.4, 0.4, 0.5]), ALONE)
    assert gains.mean() == pytest.approx(0.1, abs=0.02)


def test_held_out_gains_of_noise_are_not_above_zero() -> None:
    """The best of many by chance gains on its own queries, and nothing on others."""
    found, free = [], Landscape(np.zeros(30), np.eye(30))
    for seed in range(20):
        values = np.random.default_rng(seed).normal(0.5, 0.3, (40, 30))
        chosen = choose(values, free)
        found.append(
            (values.mean(axis=0)[chosen] - values.mean(axis=0)[0], held_out_gains(values, free).mean())
        )
    seen, unseen = np.mean(found, axis=0)
    assert seen > 0.05
    assert abs(unseen) < 0.03


@pytest.mark.parametrize("absolute", [True, False])
def test_variants_hold_one_default_which_is_that_of_search(absolute: bool) -> None:
    found = variants(VERSION, COSINE if absolute else Record(similarity="ip"))
    [default] = [variant for variant in found if variant.is_default]
    assert default.settings["dense_weight"] == SearchSettings().dense_weight
    assert default.technique == ("absolute" if absolute else "min_max")
    assert len({str(variant) for variant in found}) == len(found)


def test_a_lone_peak_does_not_win_over_a_hill() -> None:
    tried = variants(VERSION, COSINE)
    lying = landscape(tried)
    assert lying.nearness.sum(axis=1) == pytest.approx(1.0)
    assert tried[lying.default].is_default
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    hill = np.where([variant.technique == "absolute" for variant in tried], 0.5 - (weights - 0.7) ** 2, 0.2)
    hill[next(i for i, variant in enumerate(tried) if str(variant) == "absolute, dense weight 0.1")] += 0.4
    chosen = tried[choose(np.repeat(hill[None], 1000, axis=0), lying)]
    assert chosen.settings["dense_weight"] == pytest.approx(0.7, abs=0.051)


def test_old_servers_are_offered_what_they_take() -> None:
    found = variants((2, 19, 1), COSINE, ["pipeline"])
    assert {variant.technique for variant in found} == {"min_max", "l2", "rrf"}
    for variant in found:
        search_pipeline(SearchSettings(**variant.settings), (2, 19, 1))


def test_scores_are_those_of_the_formula_and_of_the_pipeline() -> None:
    listed = ({"a": 4.0, "b": 2.0}, {"b": 0.9, "c": 0.8})
    legs = Legs(listed, {**listed[0], "c": 1.0}, {**listed[1], "a": 0.6})
    asked = Asked(Query("q", "text"), legs, 9.0)
    lexical, dense = absolute_weights(0.3, 9.0, 2.0)
    assert (lexical, dense) == (pytest.approx(0.7 / 12), pytest.approx(1.2))
    found = scores_of(Variant({"fusion": "absolute", "dense_weight": 0.3}, 0.0), asked, 2.0)
    assert found == pytest.approx(
        {"a": lexical * 4 + dense * 0.6, "b": lexical * 2 + dense * 0.9, "c": lexical + dense * 0.8}
    )
    settings = {"fusion": "pipeline", "normalization": "l2", "dense_weight": 0.3}
    assert scores_of(Variant(settings, 0.1), asked, 2.0) == fuse(
        listed, normalization="l2", weights=[0.7, 0.3]
    )


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


def test_more_is_tried_when_asked_for_and_only_what_a_search_can_do() -> None:
    plain = variants(VERSION, COSINE)
    wide = variants(VERSION, COSINE, depths=(20,), feedback=("rm3", "rocchio"))
    assert wide[: len(plain)] == plain
    assert len({str(variant) for variant in wide}) == len(wide)
    assert [variant for variant in wide if variant.is_default] == [plain[landscape(plain).default]]
    assert {variant.technique for variant in wide if variant.feedback == "rocchio"} >= {"absolute", "min_max"}
    assert "absolute" not in {variant.technique for variant in wide if variant.feedback == "rm3"}
    assert {variant.depth for variant in wide} == {20, 100}
    for variant in wide:
        assert SearchSettings(**variant.settings).feedback == variant.feedback
        more = variant.feedback != "none" or variant.depth == 20
        assert not more or variant.distance >= 0.05


@pytest.mark.parametrize("now", [Similarity(), Similarity(0.9, 0.4)], ids=str)
def test_words_are_judged_from_those_that_the_index_has(now: Similarity) -> None:
    tried = bm25_variants(now)
    lying = bm25_landscape(tried)
    assert tried[lying.default].similarity == now
    assert [word.is_default for word in tried].count(True) == 1
    assert len({word.similarity for word in tried}) == len(tried)
    assert lying.nearness.sum(axis=1) == pytest.approx(1.0)
    flat = np.repeat([[word.similarity.b for word in tried]], 1000, axis=0)
    assert tried[choose(flat, lying)].similarity.b == 1.0
    assert choose(flat[:10] / 100, lying) == lying.default
