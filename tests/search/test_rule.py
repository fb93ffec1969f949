"""What a rule may say: one condition, something to do, filters that only compare, patterns that end."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.errors import DataError
from hybridr.search.rules.rule import MAX_PINS, read_rule

PIN: dict[str, Any] = {"name": "a", "pin": ["d1"]}


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (PIN, "one of text, words, prefix, pattern"),
        ({**PIN, "text": "x", "words": "x"}, "one of text"),
        ({"name": "a", "text": "x"}, "needs at least one of"),
        ({"name": "a", "text": "x", "pin": []}, "needs at least one of"),
        ({**PIN, "text": ""}, "text"),
        ({**PIN, "text": "\u200b"}, "visible"),
        ({**PIN, "words": "!!!"}, "a letter or a digit"),
        ({**PIN, "text": "x", "ban": ["d1"]}, "pinned and banned"),
        ({**PIN, "text": "x", "pin": ["d1", "d1"]}, "twice"),
        ({**PIN, "text": "x", "pin": [str(n) for n in range(MAX_PINS + 1)]}, "pin"),
        ({**PIN, "text": "x", "pin": ["é" * 600]}, "pin.0"),
        ({**PIN, "text": "x", "filter": {"script": {}}}, "'script' is not supported"),
        ({**PIN, "text": "x", "filter": {"terms": {"a": {"index": "secret"}}}}, "not supported"),
        ({**PIN, "pattern": "("}, "unclosed group"),
        ({**PIN, "pattern": r"(?=x)y"}, "look-around"),
        ({**PIN, "pattern": r"(a)\1"}, "backreferences"),
        ({**PIN, "pattern": r"(a{1000}){1000}"}, "size 1,001,001"),
        ({**PIN, "text": "x", "do": "all"}, "do"),
        ({**PIN, "text": "x", "name": "\x1b[2J"}, "name"),
        ({**PIN, "text": "\ud800"}, "text"),
        ([], "an object"),
    ],
)
def test_what_is_no_rule_is_said(rule: Any, said: str) -> None:
    with pytest.raises(DataError, match="rule 1: ") as error:
        read_rule(rule, "rule 1")
    assert said in error.value.message
    assert "docs/rules.md" in (error.value.hint or "")


def test_a_rule_comes_back_as_it_was_written() -> None:
    given = {**PIN, "text": "Red", "filter": {"range": {"price": {"lt": 3}}}, "by": "eve"}
    assert read_rule(given, "1").to_json() == given
