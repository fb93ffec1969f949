"""Patterns of rules: however they are written, their programs and their time are bounded."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from hybridr.errors import DataError
from hybridr.search.rules import rule
from hybridr.search.rules.matching import MAX_QUERY_CHARACTERS, RuleBook
from hybridr.search.rules.rule import (
    MAX_PATTERN_INPUT,
    MAX_PATTERNS,
    MAX_PROGRAM_SIZE,
    MAX_TOTAL_PROGRAM_SIZE,
    Rule,
    compile_pattern,
    program_size,
    read_rule,
    require_quick,
)
from hybridr.search.rules.rules import excess_patterns, require_room

EXPLODING = [
    *("(?:(?:(?:a?){90}){90}){8}zq", "(?:(?:(?:a?){9}){90}){8}zq", "(?:a?){65000}zq", "a{90}{90}"),
    *("a{,90}{,90}", "(a{40}){,40}", "(?:(?:a?){ 90 }){ 90 }zq", "(?P<n>(?P<m>a?){90}){90}"),
    *("(?<n[0]>(?<m>a?){90}){90}", "(?i:(?s:a?){90}){90}", "(?:(?:){1000}){1000}", "(?:\\b){5000}x"),
    *("(?:[^]a](?:[]b]){90}){90}", "(?:[[:alpha:]&&[^q]]?){120}x", "(?:\\w?){150}x"),
    *("(?:\\p{Greek}?){150}x", "(?:\\pL?){150}x", "(?:\\x{61}?){1200}x", "(?:\\){90}?){900}x"),
    *("(?:a|b|(?:c|d){50}){50}", "(?:é?){600}x", "(?:.?){600}x", "(?:a{3,}){400}"),
    *("(((((a{6}){6}){6}){6}){6})", "x(?-i)(?:(?:a?){50}){50}", "[a{2}](?:b{40}){40}"),
    *("\\[(?:b{40}){40}", "(?:a?){99999999999999999999}"),
]
USUAL = [
    *("tr[ai]+ners", r"\bshoe.*\b4[0-9]\b", r"^(size|sz)\.? ?\d{1,3}$", r"\b(\w+) shoes?\b"),
    *(r"[\w.+-]+@\w+\.\w{2,10}", r"\b[A-Z]{2,3}-\d{4,10}\b", "(?i)(red|green|blue){1,3}", r"\{90\}"),
    *(r"[{90}]{3}", "(a+)+x$"),
]


@pytest.mark.attack(126)
@pytest.mark.parametrize("pattern", EXPLODING)
def test_a_pattern_whose_program_explodes_is_refused_before_it_is_compiled(pattern: str, monkeypatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(rule, "SchemaValidator", never)
    with pytest.raises(DataError, match="use smaller repeat counts"):
        read_rule({"name": "a", "pin": ["d1"], "pattern": pattern}, "rule 1")


@pytest.mark.attack(126)
@pytest.mark.parametrize("flags", ["(?x)", "(?ix)", "(?i-s:x)(?mx)", "(?x:a)"])
def test_no_comment_hides_a_repeat(flags: str) -> None:
    with pytest.raises(DataError, match="the flag x is not supported"):
        read_rule({"name": "a", "pin": ["d1"], "pattern": f"{flags}(a?){{9}} # ) \n{{90}}"}, "rule 1")


@pytest.mark.parametrize("pattern", USUAL)
def test_what_people_write_is_taken(pattern: str) -> None:
    assert program_size(pattern) < 150
    require_quick(pattern)


@pytest.mark.parametrize(
    "pattern", ["(", "a{2", "[a", "a)", "*", "{3}", "(?=a)b", r"(a)\1", "\\", "[[a]", "(?"]
)
def test_what_is_no_pattern_is_said(pattern: str) -> None:
    with pytest.raises(ValueError, match="the pattern cannot be used"):
        compile_pattern(pattern)


@pytest.mark.attack(126)
@pytest.mark.parametrize(
    "pattern",
    ["(?:a?){450}z", "(?:[ab]?){300}z", "(?:.?){300}[zx]", "(?:\\w?){80}[zx]", "(?:[a-z].{0,20}){20}z"],
)
def test_the_largest_programs_end_soon(pattern: str) -> None:
    """Texts that differ, so that nothing is remembered of the one before."""
    draw, validator = random.Random(1), compile_pattern(pattern)
    for _ in range(20):
        text = "".join(draw.choices("ab äω中", k=MAX_PATTERN_INPUT))
        assert rule.time_match(validator, text) < 1.0, "some 0.02 s where nothing else runs"


@pytest.mark.attack(126)
def test_a_pattern_that_is_slow_all_the_same_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "time_match", lambda *_: 0.2)
    with pytest.raises(ValueError, match="it takes 200 ms for a text"):
        require_quick("a+b")


@pytest.mark.attack(126)
def test_patterns_read_the_beginning_of_a_text() -> None:
    book = RuleBook([Rule(name="p", pattern="shoes", pin=("d1",))])
    assert book.ruling("a" * (MAX_PATTERN_INPUT - 5) + "shoes").names == ("p",)
    assert book.ruling("a" * MAX_PATTERN_INPUT + "shoes").names == ()
    assert (
        book.ruling("\ufdfa" * MAX_QUERY_CHARACTERS + "shoes").names == ()
    )  # each is compared as eighteen letters


@pytest.mark.attack(126)
def test_all_patterns_of_an_index_together_are_bounded() -> None:
    large = [Rule(name=f"r{n}", pattern=f"(?:a?){{450}}{n}", pin=("d1",)) for n in range(30)]
    assert 900 < program_size(large[0].pattern or "") <= MAX_PROGRAM_SIZE
    require_room(large[: MAX_TOTAL_PROGRAM_SIZE // MAX_PROGRAM_SIZE - 9])
    with pytest.raises(DataError, match="parts together"):
        require_room(large)
    began = time.perf_counter()
    RuleBook(large[:20]).ruling("aä" * 500)
    assert time.perf_counter() - began < 2.0


@pytest.mark.attack(127)
def test_of_stored_patterns_those_beyond_the_bounds_are_left_out() -> None:
    stored = [{"text": "x"}, {"pattern": EXPLODING[0]}, {"pattern": "(?x)a"}, {"pattern": 7}, None]
    assert list(excess_patterns(stored)) == [2, 3]
    many = [{"pattern": f"a{n}"} for n in range(MAX_PATTERNS + 5)]
    assert list(excess_patterns(many)) == list(range(MAX_PATTERNS + 1, MAX_PATTERNS + 6))
    long = [{"pattern": "a" * 1_000_000}] * 200 + [{"pattern": "(a" * 500}] * 20_000
    began = time.perf_counter()
    assert len(excess_patterns(long)) == len(long)
    assert time.perf_counter() - began < 2.0, "nobody scans what is not taken"
    left_out = {f"r{number}": "too large" for number in range(1_000)}
    assert RuleBook((), left_out).remarks()[-1] == "980 more rules are left out"
    large = [{"pattern": "(?:a?){350}"} for _ in range(60)]
    kept = [rule for number, rule in enumerate(large, 1) if number not in excess_patterns(large)]
    assert sum(program_size(rule["pattern"]) for rule in kept) <= MAX_TOTAL_PROGRAM_SIZE
    assert len(kept) > 20
