"""Boosts: scores from numbers and dates of a document, added to its relevance by a formula.

`log1p(popularity):0.1 + recency(published, 30d):0.05`: each form gives 0 to 1, and 0 without a value, so that
its weight is the most that it adds. Boosts become standard queries: nothing that a user types is part of a
script.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..cluster.record import IndexInfo
from ..errors import SettingsError

TERM = re.compile(r"(\w+)\(([\w@.-]+)(?:,([\w.]+))?\):([\d.]+)", re.ASCII)
NUMBERS = "byte short integer long unsigned_long half_float float scaled_float double".split()
DATES = ("date", "date_nanos")
USUAL_TOP = "1000000"  # of log1p: this value and larger ones count fully
MIN_TOP_SCORE = 1e-30  # its inverse must fit into the cluster's 32-bit numbers
MAX_WEIGHT, MAX_BOOSTS = 10.0, 8
HALF_LIFE = re.compile(r"([1-9]\d{0,4})([hd])")
STEPS = 50  # a half-life has at least so many time steps of "now"
GRAMMAR = "log1p(FIELD[, TOP]):WEIGHT, linear(FIELD, TOP):WEIGHT, recency(FIELD, 30d):WEIGHT, joined by +"


class Boost(NamedTuple):
    """A term of a boost formula: form, field, argument of the form, and weight (the most that it adds)."""

    form: str
    field: str
    argument: str
    weight: float

    @property
    def name(self) -> str:
        """Return the term as it was typed, without its weight."""
        return f"{self.form}({self.field}{', ' + self.argument if self.argument else ''})"

    def clause(self) -> dict[str, Any]:
        """Return the query whose score is the value of the form, 0 to 1.

        A number scores by its share of the top, at most 1; numbers below zero do not score. A date scores
        half-life / (half-life + age), and 1 if it lies in the running time step or in the future. Ages are
        counted from the end of the running day, hour or minute on the server, at most a fiftieth of the
        half-life: equal requests get equal answers for a while, and pages fit together.
        """
        if self.form == "recency":
            count, unit = int(self.argument[:-1]), self.argument[-1]
            hours = count * 24 if unit == "d" else count
            origin = "now/" + ("d" if hours >= 24 * STEPS else "h" if hours >= STEPS else "m")
            by_age = {"distance_feature": {"field": self.field, "origin": origin, "pivot": self.argument}}
            in_future = {"constant_score": {"filter": {"range": {self.field: {"gte": origin}}}}}
            return {"dis_max": {"queries": [by_age, in_future]}}
        top = float(self.argument or USUAL_TOP)
        modifier, top = ("ln1p", math.log1p(top)) if self.form == "log1p" else ("none", top)
        value = {"field": self.field, "modifier": modifier, "missing": 0}
        return {
            "function_score": {
                "query": {"constant_score": {"filter": {"range": {self.field: {"gte": 0}}}}},
                "functions": [{"field_value_factor": value, "weight": 1 / top}],
                "boost_mode": "multiply",
                "max_boost": 1.0,
            }
        }


def read_boosts(formula: str) -> tuple[Boost, ...]:
    """Return the terms of a boost formula; none for an empty one. Raises SettingsError that shows the wrong
    term and the grammar.
    """
    terms = formula.split("+") if formula.strip() else []
    if len(terms) > MAX_BOOSTS:
        raise SettingsError(f"{len(terms)} boosts are given, a search takes at most {MAX_BOOSTS}")
    boosts: list[Boost] = []
    for term in map(str.strip, terms):
        parts = TERM.fullmatch("".join(term.split()))
        if not parts or parts[1] not in FORMS:
            raise SettingsError(f"'{term}' is not a boost", hint=GRAMMAR)
        form, argument, weight = parts[1], parts[3] or "", as_number(parts[4])
        if not FORMS[form](argument):
            raise SettingsError(f"'{argument}' is not an argument of {form} in '{term}'", hint=GRAMMAR)
        if not 0 < weight <= MAX_WEIGHT:
            raise SettingsError(f"the weight of a boost must be over 0 and at most {MAX_WEIGHT:g}: '{term}'")
        boosts.append(Boost(form, parts[2], argument, weight))
    if len({boost.name for boost in boosts}) < len(boosts):
        raise SettingsError(f"a boost is given twice: '{formula.strip()}'")
    return tuple(boosts)


def as_number(text: str) -> float:
    """Return the number in a text; NaN if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def is_top(text: str) -> bool:
    """Return whether a text is a number that can be a `top`, the least value that counts fully."""
    return MIN_TOP_SCORE <= as_number(text) < math.inf


FORMS: Mapping[str, Any] = {
    "log1p": lambda text: not text or is_top(text),
    "linear": is_top,
    "recency": HALF_LIFE.fullmatch,
}
"""The forms, each with a test of its argument."""


def check_boost(info: IndexInfo, boost: Boost) -> None:
    """Raise SettingsError unless the index maps the boost's field as its form needs: a number or date with
    doc values, not nested.
    """
    kinds = DATES if boost.form == "recency" else NUMBERS
    mapping = info.mapping_of(boost.field)
    nested = any(field.name == boost.field and field.nested for field in info.mapped_fields)
    hidden = mapping.get("doc_values") is False or (boost.form == "recency" and mapping.get("index") is False)
    if mapping.get("type") in kinds and not nested and not hidden:
        return
    kind = mapping.get("type", "an object" if mapping else "not mapped")
    obstacle = "inside nested objects" if nested else "kept out of searches" if hidden else kind
    needed = "a date" if kinds == DATES else "a number"
    names = [field.name for field in info.mapped_fields if not field.name.startswith("hybridr_")]
    suitable = [name for name in names if info.mapping_of(name).get("type") in kinds]
    raise SettingsError(
        f"'{boost.field}' of '{info.name}' is {obstacle}, {boost.form} needs {needed}",
        hint=f"suitable fields: {', '.join(suitable)}" if suitable else "the index has no suitable field",
    )
