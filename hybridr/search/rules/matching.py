"""Matching: which rules hold for a text, told in microseconds however many there are, and what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple

from .filters import comparisons
from .patterns import READ_BY_PATTERNS, compiled
from .rule import MOST_PINS, Rule, compared_as, words_of

MOST_READ = 1_000
"""Characters of a text that are compared; a longer one is no rule's whole text."""
MOST_BANNED, MOST_CLAUSES = 10_000, 500
"""Documents that all rules for a text ban together, and clauses of their filters: clusters bound a search."""
KEPT_RULINGS, MOST_REMARKS = 512, 20
NO_PINS: Mapping[str, str] = MappingProxyType({})


class MatchedRules(NamedTuple):
    """What rules make of the search for a text: the text itself, and which rules hold.

    `pins` are documents in their order, with the rule that pins each; `bans` are never shown; every hit
    matches all `filters`. `left_out` are rules whose bans or filters would make the search too large.
    """

    text: str
    names: tuple[str, ...] = ()
    pins: Mapping[str, str] = NO_PINS
    bans: tuple[str, ...] = ()
    filters: tuple[Mapping[str, Any], ...] = ()
    left_out: tuple[str, ...] = ()

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

    def descriptions(self) -> list[str]:
        """Say for people which rules hold, and what they do; nothing where there are none."""
        if not self.names:
            return []
        done = [f"pins {', '.join(self.pins)}"] if self.pins else []
        done += [f"bans {', '.join(self.bans)}"] if self.bans else []
        done += [f"{len(self.filters)} more filters"] if self.filters else []
        done += [f"too much for one search: {', '.join(self.left_out)}"] if self.left_out else []
        return [f"rules {', '.join(self.names)}: {'; '.join([*done, f'searched for: {self.text}'])}"]


class RuleBook:
    """Rules in the order in which they were made, ready to be asked; one text is read once for all of them.

    `left_out` maps the names of stored rules that cannot be used to the reason.

    >>> RuleBook([Rule(name="sale", text="Basket", pin=("d7",))]).ruling(" basket ").pins
    {'d7': 'sale'}
    """

    def __init__(self, rules: Sequence[Rule] = (), left_out: Mapping[str, str] = NO_PINS) -> None:
        self.rules, self.left_out = tuple(rules), left_out
        self.ruling = lru_cache(KEPT_RULINGS)(self._ruling)
        read = [
            (number, compared_as(said)) for number, rule in enumerate(rules) for _, said in [rule.condition]
        ]
        of_kind = {
            kind: [(n, said) for n, said in read if self.rules[n].condition[0] == kind]
            for kind in ("text", "words", "prefix")
        }
        self._texts = grouped(of_kind["text"])
        self._prefixes = grouped(of_kind["prefix"])
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})
        self._words = by_rarest_word([(number, words_of(said)) for number, said in of_kind["words"]])
        self._patterns = [(n, compiled(rule.pattern)) for n, rule in enumerate(rules) if rule.pattern]

    @property
    def is_slow(self) -> bool:
        """Return whether a text takes longer than a look-up: patterns are tried one after the other."""
        return bool(self._patterns)

    def remarks(self) -> list[str]:
        """Return a line for each rule that is left out, for the first ones where there are many."""
        lines = [f"rule {name} is left out: {reason}" for name, reason in self.left_out.items()]
        more = len(lines) - MOST_REMARKS
        return lines if more <= 0 else [*lines[:MOST_REMARKS], f"{more:,} more rules are left out"]

    def _ruling(self, text: str) -> MatchedRules:
        """Return what the rules make of a text. What one puts in its place is not looked up once more."""
        if not self.rules:
            return MatchedRules(text)
        holding = [self.rules[number] for number in sorted(self._holding(text))]
        return ruling_of(text, holding) if holding else MatchedRules(text)

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
        start = read[:READ_BY_PATTERNS]
        yield from (number for number, pattern in self._patterns if pattern.isinstance_python(start))


def ruling_of(text: str, rules: Sequence[Rule]) -> MatchedRules:
    """Put together what several rules do: the first text in place of what was typed, pins one after the
    other, and what any of them bans is gone."""
    every_ban = dict.fromkeys(chain.from_iterable(rule.ban for rule in rules))
    bans = tuple(islice(every_ban, MOST_BANNED))
    filters, left_out = fitting_filters(rules)
    if len(every_ban) > len(bans):
        left_out += tuple(rule.name for rule in rules if not set(rule.ban) <= set(bans))
    pins: dict[str, str] = {}
    for rule in rules:
        for doc in rule.pin:
            if doc not in every_ban and len(pins) < MOST_PINS:
                pins.setdefault(doc, rule.name)
    return MatchedRules(
        next((rule.replace for rule in rules if rule.replace), text),
        tuple(rule.name for rule in rules),
        pins,
        bans,
        filters,
        left_out,
    )


def fitting_filters(rules: Sequence[Rule]) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """Return the first filters, as many as one search can hold, and the names of the other filters' rules."""
    filters: list[Mapping[str, Any]] = []
    left_out: list[str] = []
    clauses = 0
    for rule in rules:
        if rule.filter is None:
            continue
        clauses += sum(1 for _ in comparisons(rule.filter))
        if clauses <= MOST_CLAUSES:
            filters.append(rule.filter)
        else:
            left_out.append(rule.name)
    return tuple(filters), tuple(left_out)


def grouped(said: Sequence[tuple[int, str]]) -> dict[str, list[int]]:
    """Map what is said to the rules that say it."""
    groups: dict[str, list[int]] = {}
    for number, key in said:
        groups.setdefault(key, []).append(number)
    return groups


def by_rarest_word(
    said: Sequence[tuple[int, frozenset[str]]],
) -> dict[str, list[tuple[int, frozenset[str]]]]:
    """Map of each rule's words the one that fewest rules have to the rule: few are looked at for a text."""
    often = Counter(word for _, words in said for word in words)
    groups: dict[str, list[tuple[int, frozenset[str]]]] = {}
    for number, words in said:
        groups.setdefault(min(words, key=lambda word: (often[word], word)), []).append((number, words))
    return groups


NO_RULES = RuleBook()
