"""A rule: which query texts it matches, what it does to their searches, and which filters it may have.

The regular expressions of rules are run by pydantic's engine, Rust's `regex`. Its time grows with the
length of the text times the size of the compiled program. A short pattern can compile to megabytes:
`(?:(?:a{90}){90}){90}`. So the size is bounded before compiling.
"""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import SchemaError, SchemaValidator, core_schema

from ...errors import DataError
from ...languages import has_visible_text

MAX_PROGRAM_SIZE, MAX_TOTAL_PROGRAM_SIZE = 1_000, 20_000
"""The largest size of one pattern's program, and of all of an index together."""
MAX_PATTERNS = 200
MAX_PATTERN_INPUT = 200
"""Characters of a text that patterns are compared with."""
MAX_MATCH_S = 0.05  # seconds that a new pattern may take for a text of that length
IGNORE_CASE = "(?i)"
GROUP = re.compile(r"\(\?(?:P?<[^>]*>|([A-Za-z-]*)([:)]))")
REPEAT = re.compile(r"\{\s*(\d*)\s*(?:(,)\s*(\d*)\s*)?\}")
ESCAPE = re.compile(r"\\(?:[pPxuUbB]\{[^}]*\}|[pP].|.)", re.DOTALL)
CLASSES = frozenset("pPwWdDsS")
CLASS_SIZE, SET_SIZE = 10, 2
"""Sizes of a Unicode class such as `\\w`, which has hundreds of ranges, and of a bracketed set."""


def compile_pattern(pattern: str) -> SchemaValidator:
    """Compile a case-insensitive regular expression; the engine has no look-around and no back-references.

    Raises ValueError for an invalid pattern, and for one whose program is too large.
    """
    if (size := program_size(pattern)) > MAX_PROGRAM_SIZE:
        raise ValueError(
            f"the pattern is too complex (size {size:,}, limit {MAX_PROGRAM_SIZE:,}): "
            "shorten it or use smaller repeat counts"
        )
    try:
        return SchemaValidator(
            core_schema.str_schema(pattern=IGNORE_CASE + pattern, regex_engine="rust-regex")
        )
    except SchemaError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = lines[-1].removeprefix("SchemaError: ")[:200]
        raise ValueError(f"the pattern cannot be used: {reason}") from None


def require_quick(pattern: str) -> None:
    """Raise ValueError for a pattern that takes long to match a text, however small its program is."""
    validator = compile_pattern(pattern)
    letters = "".join(character for character in pattern if character.isalpha()) or "a"
    texts = (
        (sample * MAX_PATTERN_INPUT)[:MAX_PATTERN_INPUT] for sample in (letters, letters[0], "a quiet word ")
    )
    for text in texts:
        seconds = min(time_match(validator, text) for _ in range(3))
        if seconds > MAX_MATCH_S:
            raise ValueError(f"the pattern cannot be used: it takes {seconds * 1000:,.0f} ms for a text")


def time_match(validator: SchemaValidator, text: str) -> float:
    """Return the seconds that one match of a pattern against a text takes."""
    began = time.perf_counter()
    validator.isinstance_python(text)
    return time.perf_counter() - began


def program_size(pattern: str) -> int:
    """Return an upper bound on the number of parts of a pattern's program, without compiling it.

    Parts of a sequence and alternatives add up, repeats multiply. Raises ValueError for the flag `x`, whose
    comments could hide repeats.
    """
    sizes, last_size, place = [0], 0, 0
    while place < len(pattern):
        character = pattern[place]
        end = place + 1
        if character == "(":
            if group := GROUP.match(pattern, place):
                end = group.end()
                if "x" in (group[1] or "").partition("-")[0]:
                    raise ValueError("the pattern cannot be used: the flag x is not supported")
            if group is None or group[2] != ")":
                sizes.append(0)
                last_size = 0
            place = end
            continue
        if character == ")" and len(sizes) > 1:
            last_size = max(sizes.pop(), 1)
        elif character == "|":
            last_size = 1
        elif character in "*+?":
            sizes[-1] -= last_size
            last_size += 1
        elif character == "{" and (repeat := REPEAT.match(pattern, place)):
            sizes[-1] -= last_size
            counts = [int(digits) for digits in (repeat[1], repeat[3]) if digits]
            is_open = repeat[2] is not None and not repeat[3]  # {3,} has one part more that repeats
            last_size = last_size * (max([*counts, 1]) + is_open) + 1
            end = repeat.end()
        else:
            end, last_size = part_at(pattern, place)
        sizes[-1] += last_size
        place = end
    return sum(sizes)


def part_at(pattern: str, place: int) -> tuple[int, int]:
    """Return where the literal, escape or set at position `place` ends, and its size in the program."""
    if pattern[place] == "[":
        end = end_of_set(pattern, place)
        return end, CLASS_SIZE if {"\\", "[", "^"} & set(pattern[place + 1 : end]) else SET_SIZE
    if escape := ESCAPE.match(pattern, place):
        return escape.end(), CLASS_SIZE if escape[0][1] in CLASSES else 1
    return place + 1, 1 if pattern[place].isascii() and pattern[place] != "." else SET_SIZE


def end_of_set(pattern: str, place: int) -> int:
    """Return where the bracketed set that begins at position `place` ends; sets may contain sets."""
    depth = 0
    while place < len(pattern):
        if escape := ESCAPE.match(pattern, place):
            place = escape.end()
            continue
        if pattern[place] == "[":
            depth += 1
            place += 1 + pattern.startswith("[^", place)
            place += pattern.startswith("]", place)  # a first `]` is a literal
            continue
        if pattern[place] == "]":
            depth -= 1
        place += 1
        if not depth:
            break
    return place


MAX_PINS, MAX_BANS = 100, 1_000  # of one rule
LONGEST_TEXT = 1_000  # characters of a condition or of a replacement text
CONDITIONS, ACTIONS = ("text", "words", "prefix", "pattern"), ("pin", "ban", "filter", "replace")
CLAUSES: dict[str, tuple[str, ...]] = {
    "term": ("value", "case_insensitive"),
    "terms": ("values",),
    "range": ("gte", "gt", "lte", "lt", "format", "time_zone", "relation"),
    "exists": ("field",),
    "ids": ("values",),
    "match": ("query", "operator", "minimum_should_match", "zero_terms_query", "lenient"),
    "bool": ("minimum_should_match",),
}
"""The kinds of clauses in a filter, with their options; a value that is not an object is the first option."""
BY_FIELD, LISTS = ("term", "terms", "range", "match"), ("terms", "ids")
COMMON_OPTIONS = ("boost", "_name")
PARTS_OF_BOOL = ("must", "filter", "should", "must_not")
MAX_FILTER_CLAUSES, MAX_VALUES, MAX_FILTER_DEPTH = 100, 1024, 8
LETTERS_AND_DIGITS = re.compile(r"\w+")

Id = Annotated[str, Field(min_length=1, max_length=512)]
RuleText = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]


class Rule(BaseModel):
    """A condition on the query text, and actions on its search. The author `by` made it at the time `at`.

    The condition is one of: `text`, the whole query; `words`, all contained in the query; `prefix`, its
    beginning; `pattern`, a regular expression found in it (RE2 syntax with small counts).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: str = Field(pattern=r"^[^\s\x00-\x1f]([^\x00-\x1f]{0,98}[^\s\x00-\x1f])?$")
    text: RuleText | None = None
    words: RuleText | None = None
    prefix: RuleText | None = None
    pattern: RuleText | None = None
    pin: tuple[Id, ...] = Field((), max_length=MAX_PINS)
    ban: tuple[Id, ...] = Field((), max_length=MAX_BANS)
    filter: dict[str, Any] | None = None
    replace: RuleText | None = None
    by: str = Field("", max_length=200)
    at: str = Field("", max_length=40)

    @model_validator(mode="after")
    def check_fields(self) -> Rule:
        """Return the rule unchanged. Raises ValueError for fields that contradict each other."""
        if len([name for name in CONDITIONS if getattr(self, name) is not None]) != 1:
            raise ValueError(f"a rule needs exactly one of {', '.join(CONDITIONS)}")
        if not any(getattr(self, name) for name in ACTIONS):
            raise ValueError(f"a rule needs at least one of {', '.join(ACTIONS)}")
        if pinned_and_banned := set(self.pin) & set(self.ban):
            raise ValueError(f"'{min(pinned_and_banned)}' is pinned and banned")
        if len(set(self.pin)) < len(self.pin):
            raise ValueError("a document is pinned twice")
        for content in (self.text, self.prefix, self.replace):
            if content is not None and not has_visible_text(content):
                raise ValueError("a text needs a visible character")
        if self.words is not None and not text_words(normal_form(self.words)):
            raise ValueError("words need a letter or a digit")
        if self.filter is not None:
            check_rule_filter(self.filter)
        if self.pattern is not None:
            compile_pattern(self.pattern)
        return self

    @property
    def condition(self) -> tuple[str, str]:
        """Return the kind of the condition, and its value."""
        return next((name, value) for name in CONDITIONS if (value := getattr(self, name)) is not None)

    @property
    def actions(self) -> dict[str, Any]:
        """Return the actions of the rule, by name."""
        return {name: value for name in ACTIONS if (value := getattr(self, name))}

    def to_json(self) -> dict[str, Any]:
        """Return the rule as JSON values."""
        return self.model_dump(mode="json", exclude_defaults=True)


def read_rule(value: Any, where: str) -> Rule:
    """Return a rule from JSON. Raises DataError that names the mistake and its place `where`."""
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: a rule is an object", hint="docs/rules.md has one of each kind")
    try:
        return Rule.model_validate(dict(value))
    except (ValidationError, RecursionError) as error:
        reason = "it is nested too deep"
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))[:100]
            message = first["msg"].removeprefix("Value error, ")[:300]
            reason = f"{place}: {message}" if place else message
        raise DataError(f"{where}: {reason}", hint="docs/rules.md has one of each kind") from None


def check_rule_filter(filter: Any) -> None:
    """Raise ValueError for a filter that does more than compare fields with values.

    Rules run with the rights of the user who searches. A lookup would read other indices, a script would run
    code, and a pattern might take minutes.
    """
    try:
        if clause_count(filter) > MAX_FILTER_CLAUSES:
            raise ValueError(f"more than {MAX_FILTER_CLAUSES} clauses")
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None


def clause_count(clause: Any, depth: int = 0) -> int:
    """Return the number of clauses of a filter. Raises ValueError for a clause or option not allowed."""
    if not isinstance(clause, dict) or len(clause) != 1:
        raise ValueError("a clause is an object with one key")
    [(kind, body)] = clause.items()
    if kind not in CLAUSES or not isinstance(body, dict):
        raise ValueError(f"'{str(kind)[:50]}' is not supported")
    if depth > MAX_FILTER_DEPTH:
        raise ValueError(f"nested deeper than {MAX_FILTER_DEPTH}")
    count = 1
    if kind == "bool":
        for part in PARTS_OF_BOOL:
            inner = body.get(part, [])
            conditions = inner if isinstance(inner, list) else [inner]
            count += sum(clause_count(condition, depth + 1) for condition in conditions)
        body = {part: value for part, value in body.items() if part not in PARTS_OF_BOOL}
    check_options(kind, body)
    return count


def check_options(kind: str, body: dict[str, Any]) -> None:
    """Raise ValueError for an option of a clause that is unknown or not a plain value."""
    options = CLAUSES[kind]
    if kind in BY_FIELD:
        field_values = [value for name, value in body.items() if name not in COMMON_OPTIONS]
        if len(field_values) != 1:
            raise ValueError(f"{kind} names one field")
        body = field_values[0] if isinstance(field_values[0], dict) else {options[0]: field_values[0]}
    for name, value in body.items():
        if name not in options and name not in COMMON_OPTIONS:
            raise ValueError(f"'{str(name)[:50]}' of {kind} is not supported")
        values = value if isinstance(value, list) and kind in LISTS else [value]
        if len(values) > MAX_VALUES or any(isinstance(item, dict | list) for item in values):
            raise ValueError(f"{kind} takes plain values, at most {MAX_VALUES}")


def normal_form(text: str) -> str:
    """Return a text in the form in which rules compare it: case-folded, NFKC, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def text_words(text: str) -> frozenset[str]:
    """Return the words of a text in normal form: its runs of letters and digits."""
    return frozenset(LETTERS_AND_DIGITS.findall(text))
