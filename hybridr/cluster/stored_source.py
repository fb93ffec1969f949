"""What an index keeps of its documents in `_source`: all, a part, or nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import orjson

from ..errors import DataError
from .record import IndexInfo

KINDS = ("includes", "excludes")
DERIVED = "index.derived_source.enabled"
"""Where it is true, an index makes its documents anew of its fields' values when asked."""
SOURCE_MODE, WITHOUT_VECTORS = "index.mapping.source.mode", "index.mapping.exclude_source_vectors"
AGAIN = "load the documents again from where they came, into an index whose _source is whole"


def require_source(info: IndexInfo) -> None:
    """Raise DataError unless the index keeps its documents."""
    if info.mappings.get("_source", {}).get("enabled") is False:
        raise DataError(f"index '{info.name}' does not keep its documents (_source is disabled)", hint=AGAIN)


def require_whole_source(info: IndexInfo, own: Collection[str] = ()) -> None:
    """Raise DataError unless the index keeps its documents with all of their fields, besides hybridr's `own`.

    What is made of its documents, a copy or an update, would lose the others without a word, for an engine
    gives back no text that it only indexed. OpenSearch lets nobody change this of an index that is there.
    """
    require_source(info)
    if lost := rebuilt(info):
        raise DataError(f"index '{info.name}' {lost}: a copy would not be the same documents", hint=AGAIN)
    if rules := filters_of(info.mappings, own):
        raise DataError(
            f"index '{info.name}' does not keep its documents whole ({', '.join(rules)}): whatever is made "
            "of them would lose what is left out",
            hint=AGAIN,
        )


def filters_of(mappings: Mapping[str, Any], own: Collection[str] = ()) -> list[str]:
    """Say what a mapping leaves out of documents, besides hybridr's `own` fields."""
    source = mappings.get("_source", {})
    named = {kind: [name for name in source.get(kind, ()) if name not in own] for kind in KINDS}
    return [f"_source.{kind}: {', '.join(names)}" for kind, names in named.items() if names]


def rebuilt(info: IndexInfo) -> str:
    """Say what of its documents Elasticsearch makes anew, or leaves out, when it gives them; "" of none."""
    mode = info.mappings.get("_source", {}).get("mode") or info.settings.get(SOURCE_MODE)
    if str(mode).lower() == "synthetic":
        return "keeps no documents, they are made anew of fields (synthetic _source)"
    mapped = orjson.dumps(info.mappings.get("properties", {}))
    has_vectors = b'"dense_vector"' in mapped or b'"knn_vector"' in mapped
    without = str(info.settings.get(WITHOUT_VECTORS)).lower() == "true"
    return f"gives no vectors back ({WITHOUT_VECTORS})" if without and has_vectors else ""
