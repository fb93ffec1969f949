"""The variants on offer, and their scores."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.record import Record
from hybridr.records import Query
from hybridr.relevance.evidence import Asked
from hybridr.relevance.judgement import Variant, scores_of, variants
from hybridr.search.fusions import CandidateLists, Scales
from hybridr.search.fusions.absolute import part_weights
from hybridr.search.fusions.pipeline import fuse, search_pipeline
from hybridr.search.settings import SearchSettings

VERSION, COSINE = (3, 6, 0), Record(similarity="cosine")


@pytest.mark.parametrize("similarity", ["cosine", "ip"])
def test_variants_hold_one_default_which_is_that_of_search(similarity: Any) -> None:
    found = variants(VERSION, Record(similarity=similarity))
    [default] = [variant for variant in found if variant.is_default]
    assert default.settings["dense_weight"] == SearchSettings().dense_weight
    assert default.technique == "absolute"
    assert len({str(variant) for variant in found}) == len(found)


def test_pipelines_alone_have_a_default_too() -> None:
    [default] = [one for one in variants(VERSION, COSINE, ["pipeline"]) if one.is_default]
    assert (default.technique, default.settings["dense_weight"]) == ("min_max", 0.5)


def test_old_servers_are_offered_what_they_take() -> None:
    found = variants((2, 19, 1), COSINE, ["pipeline"])
    assert {variant.technique for variant in found} == {"min_max", "l2", "rrf"}
    for variant in found:
        search_pipeline(SearchSettings(**variant.settings), (2, 19, 1))


def test_scores_are_those_of_the_formula_and_of_the_pipeline() -> None:
    listed = {"lexical": {"a": 4.0, "b": 2.0}, "dense": {"b": 0.9, "c": 0.8}}
    legs = CandidateLists(
        listed, {"lexical": {**listed["lexical"], "c": 1.0}, "dense": {**listed["dense"], "a": 0.6}}
    )
    asked = Asked(Query("q", "text"), legs, 9.0)
    lexical, dense = part_weights({"lexical": 0.7, "dense": 0.3}, Scales(9.0, 2.0)).legs.values()
    assert (lexical, dense) == (pytest.approx(0.7 / 12), pytest.approx(1.2))
    found = scores_of(Variant({"fusion": "absolute", "dense_weight": 0.3}, 0.0), asked, 2.0)
    assert found == pytest.approx(
        {"a": lexical * 4 + dense * 0.6, "b": lexical * 2 + dense * 0.9, "c": lexical + dense * 0.8}
    )
    settings = {"fusion": "pipeline", "normalization": "l2", "dense_weight": 0.3}
    assert scores_of(Variant(settings, 0.1), asked, 2.0) == fuse(
        list(listed.values()), normalization="l2", weights=[0.7, 0.3]
    )
