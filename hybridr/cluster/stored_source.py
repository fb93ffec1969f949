"""Checks whether an index stores its documents whole (`_source`), so that a copy of them loses nothing."""

from __future__ import annotations

import re

import orjson

from ..errors import DataError
from .record import IndexInfo

DERIVED = "index.derived_source.enabled"
"""Setting with which an index rebuilds `_source` from field values at each request."""
SOURCE_MODE, WITHOUT_VECTORS = "index.mapping.source.mode", "index.mapping.exclude_source_vectors"
SYNTHETIC_MODES = ("logsdb", "time_series")
"""Values of Elasticsearch's `index.mode` whose `_source` is synthetic unless a setting says otherwise."""
VECTOR_FIELD = rb'"(dense|knn)_vector"'
RELOAD = "load the documents again from where they came, into an index whose _source is whole"


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
