"""What the fuzz tests are made of: values of any shape, texts near a format, and how a target is counted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FACTOR_VARIABLE = "HYBRIDR_FUZZ_FACTOR"
FACTOR = float(os.environ.get(FACTOR_VARIABLE, "1"))  # before the suite takes such variables away
ODD: tuple[Any, ...] = (
    *("", "\x00", "\ud800", "../../etc", "a" * 5_000, "1e400", "${parameters.input}", "\x1b]52;c;x\x07"),
    *(10**400, -(2**63) - 1, float("nan"), float("inf"), -0.0, True, [], {}, [[[[]]]]),
    {"query": {"query": {}}},
)
WORDS = ("query", "bool", "must", "name", "fields", "text", "id", "_id", "filter", "a.b", "*", "^2")
pieces = st.sampled_from(
    [
        *('{"_id": "1", "text": "a"}', '{"_id": 1}', '{"_id": null}', "[", "]" * 3, '{"query-id": "q"', "}"),
        *('"corpus-id": 3', '"score": 1e999', ",", "NaN", "\\ud800", '"\\udfff"', '"', "\\", "id\ttext"),
        *("q1 Q0 d1 1 0.5 run", "q1 0 d1 1", "query-id\tcorpus-id\tscore", "\t", " ", "\u2028", "\x85"),
        *("\ufeff", "\x00", "1_0", "٣", "-", "9" * 400, "[" * 2_000, "nan", "inf", "0x1", "\x1c"),
    ]
).map(str.encode)
ends = st.sampled_from([b"\n", b"\r\n", b"\r", b"\n\n", b"", b"\xff\n", b"\xed\xa0\x80"])
texts = st.lists(st.one_of(pieces, ends, st.binary(max_size=4)), max_size=12).map(b"".join)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Put values into lists and objects."""
    names = st.one_of(st.sampled_from(WORDS), st.text(max_size=4))
    return st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3))


plain = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.sampled_from(ODD)
)
values = st.one_of(st.sampled_from(ODD), plain, st.recursive(plain, nested, max_leaves=5))


class Target(NamedTuple):
    """Something that parses: `cases` feeds it one drawn value in every place, and counts the places."""

    name: str
    examples: int
    places: int
    """The least number of cases that one example makes."""
    drawn: st.SearchStrategy[Any]
    cases: Callable[[Any], int]


def said(call: Callable[[], Any], *errors: type[Exception]) -> Exception | None:
    """Give the error of `errors` that a call raises; None where it raises none."""
    try:
        call()
    except errors as error:
        return error
    return None


def each(
    parse: Callable[[Any], Any], valid: Mapping[str, Any], names: Iterable[str], *errors: type[Exception]
) -> Callable[[Any], int]:
    """Give the value to `parse` as a whole, and in the place of every name of a valid record."""
    names = tuple(names)

    def cases(value: Any) -> int:
        for given_ in (value, {**valid, "own": value}, *({**valid, name: value} for name in names)):
            said(partial(parse, given_), *errors)
        return len(names) + 2

    return cases


def run(target: Target) -> int:
    """Draw the target's examples, and count its cases."""
    count = 0

    @settings(
        max_examples=int(target.examples * FACTOR),
        derandomize=FACTOR == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.drawn)
    def drawn(value: Any) -> None:
        nonlocal count
        count += target.cases(value)

    drawn()
    return count
