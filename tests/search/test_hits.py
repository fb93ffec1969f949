"""Hits are those of an answer of `_search`, or there are none."""

from __future__ import annotations

from html import unescape
from typing import Any

import pytest

from hybridr.errors import ClusterError
from hybridr.search.hits import LONGEST_FRAGMENT, checked_hits, shown_text


@pytest.mark.attack(63)
@pytest.mark.parametrize(
    "answer", [{}, {"hits": {"hits": [{"_id": "1"}]}}, {"hits": {"hits": []}, "_shards": 5}]
)
def test_hits_of_wrong_shape_are_a_cluster_error(answer: dict[str, Any]) -> None:
    with pytest.raises(ClusterError):
        checked_hits(answer)


def test_hits_without_those_of_a_shard_that_is_not_there_are_none() -> None:
    """A shard without a copy is in no failure: an index that is red, or deleted while it is searched."""
    found = {"hits": {"hits": []}, "_shards": {"total": 3, "successful": 2, "skipped": 0, "failed": 0}}
    with pytest.raises(ClusterError, match="some shards did not answer"):
        checked_hits(found)


@pytest.mark.attack(90)
@pytest.mark.parametrize(
    "word",
    ["e" + "\u0301" * 10**5, "&lt;" * 10**5, f"<em>{'x' * 10**5}</em>", "ab" * 40 + "<em>c</em>" * 9_000],
)
def test_an_endless_word_is_shown_by_its_beginning(word: str) -> None:
    found, _ = shown_text({"highlight": {"text": [f"before <em>it</em> {word}"]}}, ["text"])
    assert found.startswith("before <em>it</em> ")
    assert found.endswith(" …")
    assert len(found) < 10 * LONGEST_FRAGMENT
    assert (found.count("<em>"), found.count("&")) == (found.count("</em>"), found.count(";"))
    plain = unescape(found.replace("<em>", "").replace("</em>", ""))
    assert len(plain) == LONGEST_FRAGMENT + len(" …")


@pytest.mark.parametrize("text", ["a <em>short</em> one", "&amp;" * 400, "x" * 500])
def test_what_is_short_is_shown_whole(text: str) -> None:
    assert shown_text({"highlight": {"text": [text]}}, ["text"])[0] == text


@pytest.mark.attack(90)
def test_a_passage_of_an_endless_word_is_shown_by_its_beginning() -> None:
    inner = {"p": {"hits": {"hits": [{"_score": 1.0, "_source": {"start": 0, "end": 900_000}}]}}}
    found, span = shown_text({"_source": {"text": "y" * 1_000_000}, "inner_hits": inner}, ["text"])
    assert span == (0, 900_000)
    assert len(found) == 5_000
