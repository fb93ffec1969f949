"""What an agent reads of an index beside searches: documents and fields, within the scope of the index's
name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...cluster.connection import Cluster
from ...cluster.fields import mapping_of, types_of
from ...cluster.reading import hits_by_id, text_of
from ...cluster.record import IndexInfo
from ...errors import ClusterError
from .wording import (
    CUT,
    LONGEST_OF_HIT,
    WARNED,
    ToolFailure,
    bytes_in,
    cut_to,
    fitting,
    plain_text,
    shortened_to,
    shown_id,
    shown_name,
    shown_value,
)

MOST_IDS, MOST_ID_BYTES, BAD_REQUEST = 20, 512, 400
READ_BYTES = 6_000  # of the texts of one answer
MOST_FIELDS, FREQUENT = 60, 8
VALUES = ("keyword", "boolean", "ip", "constant_keyword")
RANGES = frozenset(
    "byte short integer long unsigned_long half_float float double scaled_float date date_nanos".split()
)
OWN_FIELDS, OF_VECTORS = "hybridr_", ("knn_vector", "rank_features", "binary")


def documents_as_text(
    cluster: Cluster, info: IndexInfo, ids: Sequence[str], start: int, characters: int
) -> str:
    """Return the texts of documents from a character on, and their other fields. Raises ToolFailure."""
    if not 1 <= len(ids) <= MOST_IDS:
        raise ToolFailure(f"{len(ids)} ids were sent", hint=f"send 1 to {MOST_IDS} at a time")
    if any(not 0 < bytes_in(doc_id) <= MOST_ID_BYTES for doc_id in ids):
        raise ToolFailure("an id is empty or too long", hint="take ids from an answer of search")
    doc_ids = list(dict.fromkeys(ids))
    hidden = [info.record.vector_field] if info.record.vector_field else []
    hits = hits_by_id(cluster, info, doc_ids, {"_source": {"excludes": [*hidden, f"{OWN_FIELDS}*"]}})
    sources = {hit["_id"]: hit.get("_source", {}) for hit in hits}
    if not sources:
        raise ToolFailure("no document has such an id", hint="take ids from an answer of search")
    room = READ_BYTES // len(doc_ids)
    parts = [
        document_lines(info, doc_id, sources[doc_id], start, characters, room)
        if doc_id in sources
        else f"id {json.dumps(shown_id(doc_id))}: there is no such document"
        for doc_id in doc_ids
    ]
    said, count = fitting(WARNED, parts)
    left = doc_ids[count:]
    more = f"\n{len(left)} more did not fit: ask for them by themselves" if left else ""
    return said + more


def document_lines(
    info: IndexInfo, doc_id: str, source: Mapping[str, Any], start: int, characters: int, room: int
) -> str:
    """Return a part of a document's text, where it goes on, and its other fields, cut to `room` bytes."""
    fields = info.record.fields
    whole = text_of(dict(source), fields)
    part = whole[start : start + characters]
    excerpt = cut_to(part, room)
    end = start + len(excerpt)
    rest = f", goes on: start={end}" if end < len(whole) else ""
    head = f"id {json.dumps(shown_id(doc_id))}, characters {start} to {end} of {len(whole)}{rest}"
    others = {name: value for name, value in source.items() if name not in fields}
    other_fields = shortened_to(
        plain_text(json.dumps(others, ensure_ascii=False, default=str)), LONGEST_OF_HIT
    )
    lines = "\n".join(f"| {plain_text(line)}" for line in excerpt.splitlines() if line.strip())
    return f"{head}\n{lines or '| '}" + (f"\n| other fields: {other_fields}" if others else "")


def describe_fields(cluster: Cluster, info: IndexInfo) -> str:
    """Return the fields that filters can use, with types, frequent values and ranges, as text for a model.

    Names of fields are untrusted data like texts: they are quoted, behind the mark of data.
    """
    types: dict[str, str] = {}
    for name, kind in types_of(info).items():
        own = name.startswith(OWN_FIELDS) or name.partition(".")[0] == info.record.vector_field
        if kind and kind not in OF_VECTORS and not own:
            types[name] = kind
    kinds = dict(sorted(types.items())[:MOST_FIELDS])
    values = values_of_fields(cluster, info, kinds)
    searched = ", ".join(map(shown_name, info.record.fields[:MOST_FIELDS]))
    head = f"{info.name}: {cluster.count(info):,} documents. Searched by meaning and words: | {searched}"
    lines = [f"| {shown_name(name)} ({kind}){values.get(name, '')}" for name, kind in kinds.items()]
    text, count = fitting(f"{WARNED}\n{head}\nFields for filters:", lines)
    left = len(types) - count
    return text + (f"{CUT}\nand {left} more fields" if left else "")


def values_of_fields(cluster: Cluster, info: IndexInfo, kinds: Mapping[str, str]) -> dict[str, str]:
    """Return frequent values or ranges of fields as text: by one request, or one a field if that is
    refused.
    """
    requests: dict[str, dict[str, Any]] = {}
    for name, kind in kinds.items():
        if kind in VALUES and has_values(info, name):
            requests[name] = {"values": {"terms": {"field": name, "size": FREQUENT}}}
        elif kind in RANGES and has_values(info, name):
            requests[name] = {part: {part: {"field": name}} for part in ("min", "max")}
    names = list(requests)
    try:
        return values_of_these(cluster, info, names, requests)
    except ClusterError as error:
        if error.status != BAD_REQUEST:
            raise
    values: dict[str, str] = {}
    for name in names:
        with suppress(ClusterError):  # a field without values is described by its type
            values |= values_of_these(cluster, info, [name], requests)
    return values


def values_of_these(
    cluster: Cluster, info: IndexInfo, names: Sequence[str], requests: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    """Return frequent values or ranges of the named fields, by one request. Aggregations are numbered,
    because not every field name can name one.
    """
    numbered = {
        f"{number} {part}": aggregation
        for number, name in enumerate(names)
        for part, aggregation in requests[name].items()
    }
    answer = cluster.search(info, {"size": 0, "aggs": numbered}).get("aggregations", {}) if numbered else {}
    return {
        name: shown_aggregations({part: answer.get(f"{number} {part}", {}) for part in requests[name]})
        for number, name in enumerate(names)
    }


def has_values(info: IndexInfo, name: str) -> bool:
    """Return whether a field, or the field that it is an alias of, has doc values."""
    mapping = mapping_of(info, name)
    return mapping_of(info, mapping.get("path", name)).get("doc_values", True) is not False


def shown_aggregations(answer: Mapping[str, Any]) -> str:
    """Return the frequent values or the range in an aggregation's result, as text for a model."""
    if "values" in answer:
        buckets = answer["values"].get("buckets", [])
        values = [bucket.get("key_as_string", bucket["key"]) for bucket in buckets]
        more = CUT if answer["values"].get("sum_other_doc_count") else ""
        return f": {', '.join(map(shown_value, values))}{more}" if values else ": no values"
    ends = [answer.get(part, {}) for part in ("min", "max")]
    bounds = [end.get("value_as_string", end.get("value")) for end in ends]
    return f": {plain_text(f'{bounds[0]} to {bounds[1]}')}" if None not in bounds else ""
