"""Reads the values in the fields of a document, as texts or with their names; checks whether an index stores
its documents whole (`_source`), so that a copy of them loses nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from ..errors import DataError
from .record import IndexInfo

SURROGATE = re.compile("[\ud800-\udfff]")
DERIVED = "index.derived_source.enabled"
"""Setting with which an index rebuilds `_source` from field values at each request."""
SOURCE_MODE, WITHOUT_VECTORS = "index.mapping.source.mode", "index.mapping.exclude_source_vectors"
SYNTHETIC_MODES = ("logsdb", "time_series")
"""Values of Elasticsearch's `index.mode` whose `_source` is synthetic unless a setting says otherwise."""
VECTOR_FIELD = rb'"(dense|knn)_vector"'
RELOAD = "load the documents again from where they came, into an index whose _source is whole"


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


def require_stored_source(info: IndexInfo) -> None:
    """Raise DataError if `_source` is disabled: the index does not store its documents."""
    if info.mappings.get("_source", {}).get("enabled") is False:
        raise DataError(f"index '{info.name}' does not keep its documents (_source is disabled)", hint=RELOAD)


def require_whole_source(info: IndexInfo) -> None:
    """Raise DataError unless the index stores its documents with all their fields.

    A copy or update of documents would silently lose what `_source` leaves out or only rebuilds from fields
    (synthetic `_source`).
    """
    require_stored_source(info)
    loss = ""
    mode = info.mappings.get("_source", {}).get("mode") or info.settings.get(SOURCE_MODE)
    if mode is None and info.settings.get("index.mode") in SYNTHETIC_MODES:
        mode = "synthetic"
    mapping_json = orjson.dumps(info.properties)
    if str(mode).lower() == "synthetic":
        loss = "keeps no documents, they are made anew of fields (synthetic _source)"
    elif str(info.settings.get(WITHOUT_VECTORS)).lower() == "true" and re.search(VECTOR_FIELD, mapping_json):
        loss = f"gives no vectors back ({WITHOUT_VECTORS})"
    if loss:
        raise DataError(f"index '{info.name}' {loss}: a copy would not be the same documents", hint=RELOAD)
    filters = ((kind, info.mappings.get("_source", {}).get(kind)) for kind in ("includes", "excludes"))
    if rules := [f"_source.{kind}: {', '.join(names)}" for kind, names in filters if names]:
        raise DataError(
            f"index '{info.name}' does not keep its documents whole ({', '.join(rules)}): whatever is made "
            "of them would lose what is left out",
            hint=RELOAD,
        )
