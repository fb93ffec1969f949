"""Makes unanswerable queries from a list of words: questions on many subjects and in many forms."""

from __future__ import annotations

import random
from functools import cache
from importlib import resources

DRAWS, THINGS = 13, 2 / 3
OF_THINGS = (
    "{}",
    "what is known about {}",
    "{} explained",
    "why do people worry about {}",
    "who first wrote about {}",
    "the effect of {} on prices",
    "how much do {} cost",
    "which is better, {} or {}",
    "{} {}",
    "is there a link between {} and {}",
    "when did {} begin",
    "{} increase the risk of {}",
    "I am looking for material on {}, how it is measured, and how it compares with {}",
    "what methods are there to study {} and what were the results of experiments with {}",
)
OF_DEEDS = (
    "{}",
    "how to {}",
    "how do I {}",
    "what is the best way to {}",
    "can I {} by myself",
    "{} step by step",
    "do I need a licence to {}",
    "what do I need before I {} for the first time, and what goes wrong most often",
)


@cache
def fields() -> dict[str, tuple[list[str], list[str]]]:
    """Return the words of each subject: the things that people ask about, and what they do."""
    text = resources.files(__package__).joinpath("unanswerable_queries.txt").read_text(encoding="utf-8")
    by_field = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            field, _, words = line.partition(" = ")
            things, _, deeds = words.partition(" | ")
            by_field[field] = (things.split(", "), deeds.split(", "))
    return by_field


@cache
def unanswerable_queries(number: int) -> list[str]:
    """Return this number of different queries, spread evenly over the subjects; some thousands exist."""
    draw, queries = random.Random(DRAWS), dict[str, None]()
    while len(queries) < number:
        for things, deeds in fields().values():
            of_things = draw.random() < THINGS
            form, words = (draw.choice(OF_THINGS), things) if of_things else (draw.choice(OF_DEEDS), deeds)
            queries[form.format(*draw.sample(words, form.count("{}")))] = None
    return draw.sample(list(queries), number)
