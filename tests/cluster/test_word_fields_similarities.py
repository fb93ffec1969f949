"""What an index says of its similarities, read from settings and mapping."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.cluster.word_fields import (
    Similarity,
    can_be_combined,
    search_analyzer_of,
    shared_similarity,
    similarity_of,
)

OTHER = {"mine.type": "BM25", "mine.k1": "0.9", "far.type": "DFR"}


def index(default: dict[str, str], **fields: dict[str, Any]) -> IndexInfo:
    settings = {f"index.similarity.{name}": value for name, value in (OTHER | default).items()}
    properties = {name: {"type": "text", **field} for name, field in fields.items()}
    return IndexInfo("docs", settings, {"properties": properties}, {})


def test_the_similarity_of_an_index_is_read() -> None:
    assert similarity_of(index({})) == Similarity(1.2, 0.75)
    own = {"default.type": "BM25", "default.k1": "0.9", "default.b": "0.4"}
    assert similarity_of(index(own)) == Similarity(0.9, 0.4)
    assert similarity_of(index({"default.type": "LegacyBM25"})) is None
    named = ("BM25", "mine", "boolean", "far")
    assert [similarity_of(index({}), one) for one in named] == [Similarity(), Similarity(0.9), None, None]


@pytest.mark.parametrize(
    ("fields", "shared"),
    [
        ([{}, {"similarity": "BM25"}], Similarity()),
        ([{"similarity": "mine"}], Similarity(0.9)),
        ([{}, {"similarity": "mine"}], None),
        ([{}, {"similarity": "far"}], None),
        ([{"similarity": "boolean"}], None),
        ([{"norms": False}], None),
        ([{"type": "match_only_text"}], None),
        ([{}, {"type": "keyword"}], None),
    ],
    ids=str,
)
def test_fields_share_one_bm25_or_none(fields: list[dict[str, Any]], shared: Similarity | None) -> None:
    named = {f"f{number}": one for number, one in enumerate(fields)}
    assert shared_similarity(index({}, **named), named) == shared


def test_scores_of_both_versions_are_brought_to_one_scale() -> None:
    assert (Similarity().gain(old=False), Similarity().gain(old=True)) == pytest.approx((1, 2.2))
    assert (Similarity(0.1).gain(old=False), Similarity(0.1).gain(old=True)) == pytest.approx((2, 2.2))


def test_the_analyser_of_all_queries_comes_before_that_of_a_field() -> None:
    fields = {"plain": {}, "own": {"analyzer": "english"}, "asked": {"search_analyzer": "simple"}}
    found = index({}, **fields, sku={"type": "keyword"})
    assert [search_analyzer_of(found, one) for one in (*fields, "sku")] == ["", "", "simple", ""]
    found.settings["index.analysis.analyzer.default_search.type"] = "english"
    expected = ["default_search", "default_search", "simple", ""]
    assert [search_analyzer_of(found, one) for one in (*fields, "sku")] == expected
    assert can_be_combined(found, ["plain", "own"])
    assert not can_be_combined(found, ["plain", "asked"])
