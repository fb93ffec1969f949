"""Reads the values in the fields of a document, as texts or with their names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

SURROGATE = re.compile("[\ud800-\udfff]")


def text_of(source: dict[str, Any], fields: Sequence[str]) -> str:
    """Return the texts in the named fields of a document, joined by spaces; other values count as missing.

    Dotted names reach into objects; lists of strings are joined too. Half a surrogate pair becomes U+FFFD.
    """
    parts = [part for name in fields for part in _strings(_values_at(source, name))]
    return replace_lone_surrogates(" ".join(" ".join(parts).split()))


def replace_lone_surrogates(text: str) -> str:
    """Return the text with U+FFFD in place of each half of a surrogate pair, which no encoder reads."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return SURROGATE.sub("\ufffd", text)
    return text


def _values_at(source: Any, name: str) -> list[Any]:
    """Return the values of a document at a dotted field name, whether it has objects or names with dots."""
    if isinstance(source, list):
        return [value for item in source for value in _values_at(item, name)]
    if not isinstance(source, dict):
        return []
    values = [source[name]] if name in source else []
    for position, character in enumerate(name):
        if character == "." and name[:position] in source:
            values += _values_at(source[name[:position]], name[position + 1 :])
    return values


def _strings(value: Any) -> list[str]:
    """Return all non-blank strings in a value and in its nested lists."""
    if isinstance(value, list):
        return [part for item in value for part in _strings(item)]
    return [value] if isinstance(value, str) and value.strip() else []


def leaf_values(source: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of every value of a document; one pair per list item, none for null."""
    if isinstance(source, dict):
        for key, value in source.items():
            yield from leaf_values(value, f"{name}.{key}" if name else key)
    elif isinstance(source, list):
        for value in source:
            yield from leaf_values(value, name)
    elif source is not None:
        yield name, source
