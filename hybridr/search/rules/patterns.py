"""Compiles the regular expressions of rules, bounding their time by the size of their program and of the
text.

The engine is pydantic's, Rust's `regex`. Its time grows with the text times the program, and a few letters
can describe a program of megabytes: `(?:(?:a{90}){90}){90}`. So the size is bounded before compiling.
"""

from __future__ import annotations

import re
import time

from pydantic_core import SchemaError, SchemaValidator, core_schema

MOST_PROGRAM, MOST_PROGRAMS = 1_000, 20_000
"""The largest size of one pattern's program, and of all of an index together."""
MOST_PATTERNS = 200
READ_BY_PATTERNS = 200
"""Characters of a text that patterns are compared with."""
SLOWEST_S = 0.05  # that a new pattern may take for a text of that length
IGNORE_CASE = "(?i)"
GROUP = re.compile(r"\(\?(?:P?<[^>]*>|([A-Za-z-]*)([:)]))")
REPEAT = re.compile(r"\{\s*(\d*)\s*(?:(,)\s*(\d*)\s*)?\}")
ESCAPE = re.compile(r"\\(?:[pPxuUbB]\{[^}]*\}|[pP].|.)", re.DOTALL)
CLASSES = frozenset("pPwWdDsS")
SIZE_OF_CLASS, SIZE_OF_SET = 10, 2
"""A class of Unicode such as `\\w` has hundreds of ranges; a set lists its own."""


def compiled(pattern: str) -> SchemaValidator:
    """Return a compiled regular expression, without look-around and back-references.

    Raises ValueError for an invalid pattern, and for one whose program is too large.
    """
    if (size := program_size(pattern)) > MOST_PROGRAM:
        raise ValueError(
            f"the pattern cannot be used: its repeats make a program of {size:,} parts, "
            f"{MOST_PROGRAM:,} are the most; use smaller counts"
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
    validator = compiled(pattern)
    letters = "".join(sign for sign in pattern if sign.isalpha()) or "a"
    texts = (
        (sample * READ_BY_PATTERNS)[:READ_BY_PATTERNS] for sample in (letters, letters[0], "a quiet word ")
    )
    for text in texts:
        seconds = min(seconds_of(validator, text) for _ in range(3))
        if seconds > SLOWEST_S:
            raise ValueError(f"the pattern cannot be used: it takes {seconds * 1000:,.0f} ms for a text")


def seconds_of(validator: SchemaValidator, text: str) -> float:
    """Return the seconds that one match of a pattern against a text takes."""
    began = time.perf_counter()
    validator.isinstance_python(text)
    return time.perf_counter() - began


def program_size(pattern: str) -> int:
    """Return an upper bound on the number of parts of a pattern's program, without compiling it.

    Parts of a sequence and alternatives add up, repeats multiply. Raises ValueError for the flag `x`, whose
    comments could hide repeats.
    """
    sizes, last, place = [0], 0, 0
    while place < len(pattern):
        sign = pattern[place]
        end = place + 1
        if sign == "(":
            if group := GROUP.match(pattern, place):
                end = group.end()
                if "x" in (group[1] or "").partition("-")[0]:
                    raise ValueError("the pattern cannot be used: the flag x is not taken")
            if group is None or group[2] != ")":
                sizes.append(0)
                last = 0
            place = end
            continue
        if sign == ")" and len(sizes) > 1:
            last = max(sizes.pop(), 1)
        elif sign == "|":
            last = 1
        elif sign in "*+?":
            sizes[-1] -= last
            last += 1
        elif sign == "{" and (repeat := REPEAT.match(pattern, place)):
            sizes[-1] -= last
            counts = [int(digits) for digits in (repeat[1], repeat[3]) if digits]
            without_end = repeat[2] is not None and not repeat[3]  # {3,} has one part more that repeats
            last = last * (max([*counts, 1]) + without_end) + 1
            end = repeat.end()
        else:
            end, last = part_at(pattern, place)
        sizes[-1] += last
        place = end
    return sum(sizes)


def part_at(pattern: str, place: int) -> tuple[int, int]:
    """Return where the literal, escape or set at position `place` ends, and its size in the program."""
    if pattern[place] == "[":
        end, depth = place, 0  # sets may contain sets
        while end < len(pattern):
            if inner := ESCAPE.match(pattern, end):
                end = inner.end()
                continue
            if pattern[end] == "[":
                depth += 1
                end += 1 + pattern.startswith("[^", end)
                end += pattern.startswith("]", end)  # the first one stands for itself
                continue
            depth -= pattern[end] == "]"
            end += 1
            if not depth:
                break
        return end, SIZE_OF_CLASS if {"\\", "[", "^"} & set(pattern[place + 1 : end]) else SIZE_OF_SET
    if escape := ESCAPE.match(pattern, place):
        return escape.end(), SIZE_OF_CLASS if escape[0][1] in CLASSES else 1
    return place + 1, 1 if pattern[place].isascii() and pattern[place] != "." else SIZE_OF_SET
