"""Matching: which rules hold for a text, told in microseconds however many there are, and what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from .rule import MOST_PINS, Rule, compared_as, compiled, words_of

MOST_READ = 1_000
"""Characters of a text that are compared; a longer one is no rule's whole text."""
NO_PINS: Mapping[str, str] = MappingProxyType({})


class Ruling(NamedTuple):
    """What rules make of the search for a text: the text itself, and which rules hold.

    `pins` are documents in their order, with the rule that pins each; `bans` are never shown; every hit
    matches all `filters`.
    """

    text: str
    names: tuple[str, ...] = ()
    pins: Mapping[str, str] = NO_PINS
    bans: tuple[str, ...] = ()
    filters: tuple[Mapping[str, Any], ...] = ()

    @property
    def conditions(self) -> dict[str, list[Any]]:
        """Give what every hit has to match, and what none may, as parts of a `bool`."""
        banned = [{"ids": {"values": list(self.bans)}}] if self.bans else []
        return {name: part for name, part in (("filter", list(self.filters)), ("must_not", banned)) if part}

    def within(self, filter: dict[str, Any] | None) -> dict[str, Any] | None:
        """Narrow the filter of a request by those of the rules."""
        if not (parts := self.conditions):
            return filter
        return {"bool": {**parts, "filter": [*([filter] if filter else []), *self.filters]}}

    def around(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Narrow what a query finds; its scores stay."""
        return {"bool": {"must": [query], **self.conditions}} if self.conditions else dict(query)

    def told(self) -> list[str]:
        """Say for people which rules hold, and what they do; nothing where there are none."""
        if not self.names:
            return []
        done = [f"pins {', '.join(self.pins)}"] if self.pins else []
        done += [f"bans {', '.join(self.bans)}"] if self.bans else []
        done += [f"{len(self.filters)} more filters"] if self.filters else []
        return [f"rules {', '.join(self.names)}: {'; '.join([*done, f'searched for: {self.text}'])}"]


class RuleBook:
    """Rules in the order in which they were made, ready to be asked; one text is read once for all of them.

    >>> RuleBook([Rule(name="sale", text="Basket", pin=("d7",))]).ruling(" basket ").pins
    {'d7': 'sale'}
    """

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self.rules = tuple(rules)
        read = [
            (number, compared_as(said)) for number, one in enumerate(rules) for _, said in [one.condition]
        ]
        of_kind = {
            kind: [(n, said) for n, said in read if self.rules[n].condition[0] == kind]
            for kind in ("text", "words", "prefix")
        }
        self._texts = grouped(of_kind["text"])
        self._prefixes = grouped(of_kind["prefix"])
        self._lengths = sorted({len(one) for one in self._prefixes})
        self._words = by_rarest_word([(number, words_of(said)) for number, said in of_kind["words"]])
        self._patterns = [(n, compiled(one.pattern)) for n, one in enumerate(rules) if one.pattern]

    def ruling(self, text: str) -> Ruling:
        """Say what the rules make of a text. What one puts in its place is not looked up once more."""
        if not self.rules:
            return Ruling(text)
        holding = [self.rules[number] for number in sorted(self._holding(text))]
        return ruling_of(text, holding) if holding else Ruling(text)

    def _holding(self, text: str) -> Iterator[int]:
        """Give the rules that hold for a text."""
        read = compared_as(text[:MOST_READ])
        if len(text) <= MOST_READ:
            yield from self._texts.get(read, ())
        for length in self._lengths:
            yield from self._prefixes.get(read[:length], ()) if length <= len(read) else ()
        words = words_of(read)
        for word in words:
            yield from (number for number, needed in self._words.get(word, ()) if needed <= words)
        yield from (number for number, one in self._patterns if one.isinstance_python(read))


def ruling_of(text: str, rules: Sequence[Rule]) -> Ruling:
    """Put together what several rules do: the first text in place of what was typed, pins one after the
    other, and what any of them bans is gone."""
    bans = tuple(dict.fromkeys(doc for one in rules for doc in one.ban))
    pins: dict[str, str] = {}
    for one in rules:
        for doc in one.pin:
            if doc not in bans and len(pins) < MOST_PINS:
                pins.setdefault(doc, one.name)
    return Ruling(
        next((one.replace for one in rules if one.replace), text),
        tuple(one.name for one in rules),
        pins,
        bans,
        tuple(one.filter for one in rules if one.filter),
    )


def grouped(said: Sequence[tuple[int, str]]) -> dict[str, list[int]]:
    """Map what is said to the rules that say it."""
    found: dict[str, list[int]] = {}
    for number, one in said:
        found.setdefault(one, []).append(number)
    return found


def by_rarest_word(
    said: Sequence[tuple[int, frozenset[str]]],
) -> dict[str, list[tuple[int, frozenset[str]]]]:
    """Map of each rule's words the one that fewest rules have to the rule: few are looked at for a text."""
    often = Counter(word for _, words in said for word in words)
    found: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for number, words in said:
        found.setdefault(min(words, key=lambda one: (often[one], one)), []).append((number, words))
    return found


NO_RULES = RuleBook()
