"""Finds the rules that match a query text, in microseconds for any number of rules, and combines them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple

from pydantic_core import SchemaValidator

from .rule import MAX_PATTERN_INPUT, MAX_PINS, Rule, clause_count, compile_pattern, normal_form, text_words

MAX_QUERY_CHARACTERS = 1_000
"""Characters of a text that rules compare; a longer text equals no rule's `text`."""
MAX_BANNED, MAX_CLAUSES = 10_000, 500
"""Limits for all rules that match one text: banned documents, and clauses of filters."""
MAX_RULINGS, MAX_REMARKS = 512, 20
NO_PINS: Mapping[str, str] = MappingProxyType({})


class MatchedRules(NamedTuple):
    """The combined effect of the rules that match a query text.

    `text` is the text to search for. `pins` are documents in their order, each with the rule that pins it;
    `bans` are never shown; every hit matches all `filters`. `left_out` are rules whose bans or filters would
    make the search too large.
    """

    text: str
    names: tuple[str, ...] = ()
    pins: Mapping[str, str] = NO_PINS
    bans: tuple[str, ...] = ()
    filters: tuple[Mapping[str, Any], ...] = ()
    left_out: tuple[str, ...] = ()

    def restricted_filter(self, filter: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return the filter of a request, restricted by the rules' filters and bans."""
        if not self.filters and not self.bans:
            return filter
        return {"bool": {"filter": [*([filter] if filter else []), *self.filters], **self._banned}}

    def restricted_query(self, query: Mapping[str, Any]) -> dict[str, Any]:
        """Return a query restricted by the rules' filters and bans, with unchanged scores."""
        if not self.filters and not self.bans:
            return dict(query)
        filters = {"filter": list(self.filters)} if self.filters else {}
        return {"bool": {"must": [query], **filters, **self._banned}}

    @property
    def _banned(self) -> dict[str, Any]:
        """The `must_not` part of a query that leaves out the banned documents."""
        return {"must_not": [{"ids": {"values": list(self.bans)}}]} if self.bans else {}

    def descriptions(self) -> list[str]:
        """Return in words which rules match and what they do; empty if none matches."""
        if not self.names:
            return []
        actions = [f"pins {', '.join(self.pins)}"] if self.pins else []
        actions += [f"bans {', '.join(self.bans)}"] if self.bans else []
        actions += [f"{len(self.filters)} more filters"] if self.filters else []
        actions += [f"too much for one search: {', '.join(self.left_out)}"] if self.left_out else []
        return [f"rules {', '.join(self.names)}: {'; '.join([*actions, f'searched for: {self.text}'])}"]


class RuleBook:
    """The rules of an index, in the order in which they were made, indexed for fast matching.

    `left_out` maps the names of stored rules that cannot be used to the reason.

    >>> RuleBook([Rule(name="sale", text="Basket", pin=("d7",))]).ruling(" basket ").pins
    {'d7': 'sale'}
    """

    def __init__(self, rules: Sequence[Rule] = (), left_out: Mapping[str, str] = NO_PINS) -> None:
        self.rules, self.left_out = tuple(rules), left_out
        self.ruling = lru_cache(MAX_RULINGS)(self._ruling)
        self._texts, self._prefixes = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
        self._words = defaultdict[str, list[tuple[int, frozenset[str]]]](list)
        self._patterns: list[tuple[int, SchemaValidator]] = []
        words = {n: text_words(normal_form(rule.words)) for n, rule in enumerate(rules) if rule.words}
        counts = Counter(chain.from_iterable(words.values()))
        for number, rule in enumerate(rules):
            kind, value = rule.condition
            if kind == "words":  # looked up by the word that fewest rules have
                rarest = min(words[number], key=lambda word: (counts[word], word))
                self._words[rarest].append((number, words[number]))
            elif kind == "pattern":
                self._patterns.append((number, compile_pattern(value)))
            else:
                group = self._texts if kind == "text" else self._prefixes
                group[normal_form(value)].append(number)
        self._lengths = sorted({len(prefix) for prefix in self._prefixes})

    @property
    def is_slow(self) -> bool:
        """Return whether matching is slower than a look-up, because patterns are tried one by one."""
        return bool(self._patterns)

    def remarks(self) -> list[str]:
        """Return a line for each rule that cannot be used, for the first ones if there are many."""
        lines = [f"rule {name} is left out: {reason}" for name, reason in self.left_out.items()]
        excess = len(lines) - MAX_REMARKS
        return lines if excess <= 0 else [*lines[:MAX_REMARKS], f"{excess:,} more rules are left out"]

    def _ruling(self, text: str) -> MatchedRules:
        """Return the combined effect of the rules that match a text; a replacement text is not matched again.

        The first replacement wins. Pins keep the order of their rules. A document that any rule bans is never
        pinned.
        """
        rules = [self.rules[number] for number in sorted(self._matching(text))]
        all_bans = dict.fromkeys(chain.from_iterable(rule.ban for rule in rules))
        bans = tuple(islice(all_bans, MAX_BANNED))
        filters: list[Mapping[str, Any]] = []
        left_out: list[str] = []
        clauses = 0
        for rule in rules:
            if rule.filter is not None:
                clauses += clause_count(rule.filter)
                if clauses <= MAX_CLAUSES:
                    filters.append(rule.filter)
                else:
                    left_out.append(rule.name)
        if len(all_bans) > len(bans):
            left_out += [rule.name for rule in rules if not set(rule.ban) <= set(bans)]
        pins: dict[str, str] = {}
        for rule in rules:
            for doc in rule.pin:
                if doc not in all_bans and len(pins) < MAX_PINS:
                    pins.setdefault(doc, rule.name)
        search_text = next((rule.replace for rule in rules if rule.replace), text)
        names = tuple(rule.name for rule in rules)
        return MatchedRules(search_text, names, pins, bans, tuple(filters), tuple(left_out))

    def _matching(self, text: str) -> Iterator[int]:
        """Yield the numbers of the rules that match a text."""
        query = normal_form(text[:MAX_QUERY_CHARACTERS])
        if len(text) <= MAX_QUERY_CHARACTERS:
            yield from self._texts.get(query, ())
        for length in self._lengths:
            if length <= len(query):
                yield from self._prefixes.get(query[:length], ())
        words = text_words(query)
        for word in words:
            yield from (number for number, rule_words in self._words.get(word, ()) if rule_words <= words)
        start = query[:MAX_PATTERN_INPUT]
        yield from (number for number, pattern in self._patterns if pattern.isinstance_python(start))


NO_RULES = RuleBook()
