"""The formula of boosts: what is read, and what is refused before anything is sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.errors import SettingsError
from hybridr.search.boosts import Boost, check_boost, read_boosts
from hybridr.search.settings import SearchSettings

MAPPINGS: dict[str, Any] = {
    "properties": {
        "popularity": {"type": "long"},
        "hidden": {"type": "float", "doc_values": False},
        "published": {"type": "date"},
        "unlisted": {"type": "date", "index": False},
        "text": {"type": "text"},
        "shop": {"properties": {"sold.out": {"type": "integer"}, "rank": {"type": "half_float"}}},
        "offers": {"type": "nested", "properties": {"price": {"type": "float"}}},
    }
}
INFO = IndexInfo("docs", {"index.uuid": "1"}, MAPPINGS, {})


def test_a_sum_of_terms_is_read() -> None:
    formula = " log1p(popularity):0.1 + recency( published , 30d ):.05+linear(shop.rank,5):1e-1"
    with pytest.raises(SettingsError, match="not a boost"):
        read_boosts(formula)
    found = read_boosts(formula.replace("1e-1", "0.1"))
    assert found == (
        Boost("log1p", "popularity", "", 0.1),
        Boost("recency", "published", "30d", 0.05),
        Boost("linear", "shop.rank", "5", 0.1),
    )
    assert [one.name for one in found] == [
        "log1p(popularity)",
        "recency(published, 30d)",
        "linear(shop.rank, 5)",
    ]
    for one in found:
        check_boost(INFO, one)
    assert read_boosts("  ") == ()


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("linear(price, 0." + "0" * 45 + "1):1", "is not an argument of linear"),
        ("popularity:0.1", "'popularity:0.1' is not a boost"),
        ("log1p(popularity)", "is not a boost"),
        ("log1p(popularity):0.1; System.exit(0)", "is not a boost"),
        ("log1p(popularity, 0):0.1", "'0' is not an argument of log1p"),
        ("linear(popularity, 1.2.3):0.1", "is not an argument of linear"),
        ("recency(published, 30):0.1", "is not an argument of recency"),
        ("recency(published, 0d):0.1", "is not an argument of recency"),
        ("log1p(popularity):0", "over 0 and at most 10"),
        ("log1p(popularity):.", "over 0 and at most 10"),
        ("log1p(a):1+log1p(a):2", "given twice"),
        ("+".join(f"log1p(f{n}):1" for n in range(9)), "a search takes at most 8"),
        ("log1p(ｐ):1", "is not a boost"),
    ],
)
def test_what_is_no_formula_is_refused(formula: str, said: str) -> None:
    with pytest.raises(SettingsError) as error:
        SearchSettings(boost=formula)
    assert said in error.value.message


@pytest.mark.parametrize(
    ("formula", "said", "hint"),
    [
        ("log1p(nothing):1", "'nothing' of 'docs' is not mapped, log1p needs a number", "popularity"),
        ("log1p(text):1", "is text, log1p needs a number", "popularity"),
        ("log1p(shop):1", "is an object", "popularity"),
        ("log1p(hidden):1", "is kept out of searches", "popularity"),
        ("log1p(offers.price):1", "is inside nested objects", "popularity"),
        ("recency(popularity, 3d):1", "is long, recency needs a date", "published"),
        ("recency(unlisted, 3d):1", "is kept out of searches", "published"),
    ],
)
def test_a_field_that_cannot_be_added_is_named(formula: str, said: str, hint: str) -> None:
    [boost] = read_boosts(formula)
    with pytest.raises(SettingsError) as error:
        check_boost(INFO, boost)
    assert said in error.value.message
    assert hint in str(error.value.hint)


@pytest.mark.parametrize(
    ("half_life", "step"), [("1h", "m"), ("2d", "m"), ("3d", "h"), ("30d", "h"), ("50d", "d"), ("365d", "d")]
)
def test_now_stands_still_for_a_while(half_life: str, step: str) -> None:
    [boost] = read_boosts(f"recency(published, {half_life}):1")
    assert f'"now/{step}"' in json.dumps(boost.clause())
