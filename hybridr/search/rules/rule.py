"""A rule: for which texts it holds, and what it does to their searches."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...errors import DataError
from ...languages import says_something
from .filters import require_comparing
from .patterns import compiled

MOST_PINS, MOST_BANS = 100, 1_000  # of one rule
LONGEST_TEXT = 1_000  # characters of what a rule is compared with, or puts in its place
CONDITIONS, ACTIONS = ("text", "words", "prefix", "pattern"), ("pin", "ban", "filter", "replace")
LETTERS_AND_DIGITS = re.compile(r"\w+")

Id = Annotated[str, Field(min_length=1, max_length=512)]
Said = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]


class Rule(BaseModel):
    """One condition, and what is done where it holds; `by` whom and `at` when it was made.

    `text` is a whole query, `words` are all in it, it begins with `prefix`, or `pattern` is found in it: a
    regular expression of RE2's kind, with small counts: see `patterns`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[^\s\x00-\x1f]([^\x00-\x1f]{0,98}[^\s\x00-\x1f])?$")
    text: Said | None = None
    words: Said | None = None
    prefix: Said | None = None
    pattern: Said | None = None
    pin: tuple[Id, ...] = Field((), max_length=MOST_PINS)
    ban: tuple[Id, ...] = Field((), max_length=MOST_BANS)
    filter: dict[str, Any] | None = None
    replace: Said | None = None
    by: str = Field("", max_length=200)
    at: str = Field("", max_length=40)

    @model_validator(mode="after")
    def whole(self) -> Rule:
        """Check what no single field tells. Raises ValueError."""
        if len([name for name in CONDITIONS if getattr(self, name) is not None]) != 1:
            raise ValueError(f"a rule has one of {', '.join(CONDITIONS)}")
        if not any(getattr(self, name) for name in ACTIONS):
            raise ValueError(f"a rule does something: {', '.join(ACTIONS)}")
        if both := set(self.pin) & set(self.ban):
            raise ValueError(f"'{min(both)}' is pinned and banned")
        if len(set(self.pin)) < len(self.pin):
            raise ValueError("a document is pinned twice")
        for said in (self.text, self.prefix, self.replace):
            if said is not None and not says_something(said):
                raise ValueError("a text needs a visible character")
        if self.words is not None and not words_of(compared_as(self.words)):
            raise ValueError("words are letters or digits")
        if self.filter is not None:
            require_comparing(self.filter)
        if self.pattern is not None:
            compiled(self.pattern)
        return self

    @property
    def condition(self) -> tuple[str, str]:
        """Give the kind of the condition, and what it says."""
        return next((name, said) for name in CONDITIONS if (said := getattr(self, name)) is not None)

    @property
    def actions(self) -> dict[str, Any]:
        """Give what the rule does, by the name of the action."""
        return {name: done for name in ACTIONS if (done := getattr(self, name))}

    def to_json(self) -> dict[str, Any]:
        """Give what was said of the rule as JSON values."""
        return self.model_dump(mode="json", exclude_defaults=True)


def read_rule(value: Any, where: str) -> Rule:
    """Read a rule of JSON. Raises DataError that names what is wrong, and `where`."""
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: a rule is an object", hint="docs/rules.md has one of each kind")
    try:
        return Rule.model_validate(dict(value))
    except (ValidationError, RecursionError) as error:
        said = fault_of(error) if isinstance(error, ValidationError) else "it is nested too deep"
        raise DataError(f"{where}: {said}", hint="docs/rules.md has one of each kind") from None


def fault_of(error: ValidationError) -> str:
    """Say in a line what is wrong with a rule."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))[:100]
    return f"{place}: " * bool(place) + first["msg"].removeprefix("Value error, ")[:300]


def compared_as(text: str) -> str:
    """Read a text as rules compare it: without case, with single spaces, letters in one form."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def words_of(text: str) -> frozenset[str]:
    """Give the words of an analysed text: letters and digits between all other signs."""
    return frozenset(LETTERS_AND_DIGITS.findall(text))
