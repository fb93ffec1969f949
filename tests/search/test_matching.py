"""Which rules hold for a text, however many there are, and what several of them come to."""

from __future__ import annotations

import statistics
import time

import pytest

from hybridr.search.rules.matching import MAX_BANNED, MAX_CLAUSES, MAX_QUERY_CHARACTERS, NO_RULES, RuleBook
from hybridr.search.rules.rule import MAX_PINS, Rule

BOOK = RuleBook(
    [
        Rule(name="exact", text=" Red  SHOES ", pin=("d1",)),
        Rule(name="words", words="shoes red", pin=("d2", "d1")),
        Rule(name="prefix", prefix="red sh", ban=("d9",)),
        Rule(name="pattern", pattern=r"\bshoe.*\b4[0-9]\b", filter={"term": {"brand": "a"}}),
        Rule(name="other", text="trainers", replace="red shoes"),
    ]
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("red shoes", ("exact", "words", "prefix")),
        ("RED\tshoes", ("exact", "words", "prefix")),
        ("shoes, red", ("words",)),
        ("red shirt", ("prefix",)),
        ("redshoes", ()),
        ("Shoes of size 42", ("pattern",)),
        ("shoes of size 421", ()),
        ("trainers", ("other",)),
        ("", ()),
        ("red shoes" + " " * MAX_QUERY_CHARACTERS, ("words", "prefix")),
    ],
)
def test_a_condition_holds_or_does_not(text: str, names: tuple[str, ...]) -> None:
    assert BOOK.ruling(text).names == names


def test_several_rules_come_together() -> None:
    found = BOOK.ruling("red shoes")
    assert (found.pins, list(found.pins)) == ({"d1": "exact", "d2": "words"}, ["d1", "d2"])
    assert found.bans == ("d9",)
    assert found.restricted_filter({"term": {"a": 1}}) == {
        "bool": {"filter": [{"term": {"a": 1}}], "must_not": [{"ids": {"values": ["d9"]}}]}
    }
    assert "exact, words, prefix" in found.descriptions()[0]


def test_what_is_banned_is_pinned_by_nobody_and_pins_end_somewhere() -> None:
    many = [Rule(name=f"r{n}", text="x", pin=tuple(f"{n}-{m}" for m in range(60))) for n in range(3)]
    found = RuleBook([*many, Rule(name="ban", text="x", ban=("0-0",))]).ruling("x")
    assert "0-0" not in found.pins
    assert len(found.pins) == MAX_PINS


def test_a_text_in_the_place_of_another_is_not_looked_up_once_more() -> None:
    found = BOOK.ruling("trainers")
    assert (found.text, found.names, found.pins) == ("red shoes", ("other",), {})


def test_without_rules_a_search_is_as_it_was() -> None:
    given = {"term": {"a": 1}}
    for found in (NO_RULES.ruling("red shoes"), BOOK.ruling("nothing of this")):
        assert found.restricted_filter(given) is given
        assert (found.text, found.names) in (("red shoes", ()), ("nothing of this", ()))


def test_ten_thousand_rules_are_told_in_less_than_a_millisecond() -> None:
    kinds = ("text", "words", "prefix")
    rules = [
        Rule(name=f"r{n}", **{kinds[n % 3]: f"common word{n} of size {n % 7}"}, pin=(f"d{n}",))
        for n in range(9_900)
    ]
    rules += [Rule(name=f"p{n}", pattern=rf"(a+)+x{n}$", pin=("d1",)) for n in range(100)]
    book = RuleBook(rules)
    assert book.ruling("common word9000 of size 5").names == ("r9000",)
    took = []
    for _ in range(50):
        began = time.perf_counter()
        book.ruling("a common word4711 of size 3 " + "a" * 500)
        took.append(time.perf_counter() - began)
    assert statistics.median(took) < 0.005, "0.001 s where nothing else runs"


@pytest.mark.attack(127)
def test_many_rules_for_one_text_make_no_search_too_large() -> None:
    """A cluster refuses a search of too many clauses: what does not fit is left out, and said."""
    narrow = [
        Rule(name=f"f{n}", prefix="a", filter={"bool": {"filter": [{"term": {"n": m}} for m in range(9)]}})
        for n in range(200)
    ]
    wide = [Rule(name=f"b{n}", prefix="a", ban=tuple(f"{n}-{m}" for m in range(1_000))) for n in range(12)]
    found = RuleBook([*narrow, *wide, Rule(name="pin", prefix="a", pin=("11-999", "d1"))]).ruling("apple")
    assert (len(found.bans), len(found.filters)) == (MAX_BANNED, MAX_CLAUSES // 10)
    assert list(found.pins) == ["d1"], "what a rule bans is never pinned"
    assert found.left_out == (*(f"f{n}" for n in range(50, 200)), "b10", "b11")
    assert "too much for one search: f50" in found.descriptions()[0]
