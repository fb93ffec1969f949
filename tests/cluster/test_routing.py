"""Where routing values lead; a real node agrees, by tests/server/indexing/terms/test_terms.py."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridr.cluster.record import IndexInfo, Scope
from hybridr.cluster.routing import murmur3, routing_values, shards_for, text_preference


def index(shards: int, **settings: str) -> IndexInfo:
    return IndexInfo("docs", {"index.number_of_shards": str(shards), **settings}, {}, {})


@pytest.mark.parametrize(
    ("text", "wanted"),
    # OpenSearch's own Murmur3HashFunctionTests
    [("hell", 0x5A0CB7C3), ("hello", 0xD7C31989), ("hello w", 0x22AB2984), ("hello wo", 0xDF0CA123)],
)
def test_the_hash_is_that_of_opensearch(text: str, wanted: int) -> None:
    assert murmur3(text.encode("utf-16-le")) & 0xFFFFFFFF == wanted


@pytest.mark.parametrize("shards", [1, 2, 3, 5, 8, 40])
def test_each_shard_has_a_value(shards: int) -> None:
    """Those behind the eighth too: with documents routed by tenant no part of them stands for the others."""
    values = routing_values(index(shards))
    assert [shards_for(value, index(shards))[0] for value in values] == list(range(shards))


def test_an_alias_with_routing_has_values_for_its_own_shards() -> None:
    whole = index(40)
    (value,) = routing_values(replace(whole, scope=Scope(routing="tenant-7")))
    assert shards_for(value, whole)[0] == shards_for("tenant-7", whole)[0]


def test_places_are_what_an_index_can_be_split_into() -> None:
    other = index(4, **{"index.number_of_routing_shards": "12"})
    assert {shards_for(str(number), other)[0] for number in range(50)} == {0, 1, 2, 3}


def test_the_same_copies_answer_for_the_same_text_and_all_in_turn() -> None:
    named = [text_preference(f"text {number}")["preference"] for number in range(200)]
    assert named == [text_preference(f"text {number}")["preference"] for number in range(200)]
    assert len(set(named)) == 200
    assert not any("text" in one or one.startswith("_") for one in named), "_local would be a command"
    assert text_preference("half a pair \ud83d") != text_preference("half a pair")
