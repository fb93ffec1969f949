"""Documents and fields: what an agent reads of an index beside its searches, within the scope of its name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.fields import types_of
from ..cluster.reading import text_of
from ..cluster.record import IndexInfo
from .inside import ToolFailure
from .wording import (
    CUT,
    LONGEST_OF_HIT,
    WARNED,
    bytes_in,
    cut_to,
    fitting,
    plain_text,
    shortened_to,
    shown_id,
    shown_values,
)

MOST_IDS, MOST_ID_BYTES = 20, 512
READ_BYTES = 6_000  # of the texts of one answer
MOST_FIELDS, FREQUENT = 60, 8
VALUES = ("keyword", "boolean", "ip", "constant_keyword")
RANGES = frozenset(
    "byte short integer long unsigned_long half_float float double scaled_float date date_nanos".split()
)
OWN_FIELDS, OF_VECTORS = "hybridr_", ("knn_vector", "rank_features", "binary")


def told_documents(cluster: Cluster, info: IndexInfo, ids: Sequence[str], start: int, characters: int) -> str:
    """Give the text of documents from a character on, and their other fields. Raises ToolFailure."""
    wanted = list(dict.fromkeys(ids))
    hidden = [info.record.vector_field] if info.record.vector_field else []
    body = {
        "size": len(wanted),
        "query": {"ids": {"values": wanted}},
        "_source": {"excludes": [*hidden, f"{OWN_FIELDS}*"]},
    }
    found = {hit["_id"]: hit.get("_source", {}) for hit in cluster.search(info, body)["hits"]["hits"]}
    if not found:
        raise ToolFailure("no document has such an id", hint="take ids from an answer of search")
    room = READ_BYTES // len(wanted)
    parts = [
        document_lines(info, one, found[one], start, characters, room)
        if one in found
        else f"id {json.dumps(shown_id(one))}: there is no such document"
        for one in wanted
    ]
    said, shown = fitting(WARNED, parts)
    left = wanted[shown:]
    more = f"\n{len(left)} more did not fit: ask for them by themselves" if left else ""
    return said + more


def document_lines(
    info: IndexInfo, doc_id: str, source: Mapping[str, Any], start: int, characters: int, room: int
) -> str:
    """Write a part of a document's text, where it goes on, and its other fields, in so many bytes."""
    fields = info.record.fields
    whole = text_of(dict(source), fields)
    part = whole[start : start + characters]
    shown = cut_to(part, room)
    end = start + len(shown)
    rest = f", goes on: start={end}" if end < len(whole) else ""
    head = f"id {json.dumps(shown_id(doc_id))}, characters {start} to {end} of {len(whole)}{rest}"
    others = {name: value for name, value in source.items() if name not in fields}
    told = shortened_to(plain_text(json.dumps(others, ensure_ascii=False, default=str)), LONGEST_OF_HIT)
    lines = "\n".join(f"| {plain_text(line)}" for line in shown.splitlines() if line.strip())
    return f"{head}\n{lines or '| '}" + (f"\n| other fields: {told}" if others else "")


def describe_fields(cluster: Cluster, info: IndexInfo) -> str:
    """Give the fields that a filter may name, by type, with frequent values and ranges; one request."""
    types = {name: of for name, of in types_of(info).items() if is_users(name, of, info)}
    known = dict(sorted(types.items())[:MOST_FIELDS])
    asked = {name: one for name, of in known.items() if (one := aggregations_of(name, of))}
    body = {
        "size": 0,
        "track_total_hits": True,
        "aggs": {k: v for of in asked.values() for k, v in of.items()},
    }
    answer = cluster.search(info, body)
    found, count = answer.get("aggregations", {}), answer["hits"]["total"]["value"]
    head = (
        f"{info.name}: {count:,} documents. Searched by meaning and words: {', '.join(info.record.fields)}."
    )
    lines = [f"{name} ({of}){told_values(name, found)}" for name, of in known.items()]
    said, shown = fitting(f"{head}\n{WARNED}\nFields for filters:", lines)
    left = len(types) - shown
    return said + (f"{CUT}\nand {left} more fields" if left else "")


def is_users(name: str, kind: str, info: IndexInfo) -> bool:
    """Tell whether a field is the user's own, and no vector."""
    own = name.startswith(OWN_FIELDS) or name.partition(".")[0] == info.record.vector_field
    return not own and bool(kind) and kind not in OF_VECTORS


def aggregations_of(name: str, kind: str) -> dict[str, Any]:
    """Ask for the values of a field, or for its range; of texts for neither."""
    if kind in VALUES:
        return {f"values {name}": {"terms": {"field": name, "size": FREQUENT}}}
    if kind in RANGES:
        return {f"{part} {name}": {part: {"field": name}} for part in ("min", "max")}
    return {}


def told_values(name: str, found: Mapping[str, Any]) -> str:
    """Say what the cluster counted of a field."""
    if (values := found.get(f"values {name}")) is not None:
        told = [one.get("key_as_string", one["key"]) for one in values["buckets"]]
        more = CUT if values.get("sum_other_doc_count") else ""
        return f": | {shown_values(told)}{more}" if told else ": no values"
    ends = [found.get(f"{part} {name}", {}) for part in ("min", "max")]
    known = [end.get("value_as_string", end.get("value")) for end in ends]
    return f": {known[0]} to {known[1]}" if None not in known else ""


def require_ids(ids: Sequence[str]) -> None:
    """Raise ToolFailure for no ids, too many, or such as no document has."""
    if not 1 <= len(ids) <= MOST_IDS:
        raise ToolFailure(f"{len(ids)} ids were sent", hint=f"send 1 to {MOST_IDS} at a time")
    if any(not 0 < bytes_in(one) <= MOST_ID_BYTES for one in ids):
        raise ToolFailure("an id is empty or too long", hint="take ids from an answer of search")
