"""Finds again in an index what a log names: by ids of documents, or by a field that applications use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...cluster.connection import Cluster
from ...cluster.fields import types_of
from ...cluster.limits import TERMS_COUNT, limit, result_window
from ...cluster.reading import documents_in_pages, hits_by_id
from ...cluster.record import IndexInfo

NAMED_TOGETHER, OF_ONE_NAME = 500, 4
"""Names that one search looks for, and how many documents of each it may find."""
EXACT = frozenset(("keyword", "long", "integer", "short", "unsigned_long"))


def ids_by_name(
    cluster: Cluster, info: IndexInfo, names: Sequence[str], fields: Counter[str]
) -> dict[str, str]:
    """Map the names of documents that the index has to their ids; what is gone, or out of scope, is left out.

    `fields` counts by which field a log names documents. One that the index has not, or cannot look up, says
    nothing: the names are ids then.
    """
    unique = sorted(set(names))
    if field := exact_field(info, [field for field, _ in fields.most_common()]):
        return dict(by_field(cluster, info, unique, field))
    pages = documents_in_pages(cluster, info, unique, page=NAMED_TOGETHER, whole=False)
    return {document.doc_id: document.doc_id for page in pages for document in page}


def exact_field(info: IndexInfo, names: Sequence[str]) -> str | None:
    """Name the first of these fields, or of their keywords, that documents can be looked up by; else None."""
    types = types_of(info)
    candidates = [candidate for name in names for candidate in (name, f"{name}.keyword")]
    return next((candidate for candidate in candidates if types.get(candidate) in EXACT), None)


def names_by_id(cluster: Cluster, info: IndexInfo, doc_ids: Sequence[str], field: str) -> dict[str, str]:
    """Map the ids of documents to what a field of theirs holds; what has none there is left out."""
    if (exact := exact_field(info, [field])) is None:
        return {}
    names: dict[str, str] = {}
    for start in range(0, len(doc_ids), NAMED_TOGETHER):
        batch = list(doc_ids[start : start + NAMED_TOGETHER])
        for hit in hits_by_id(cluster, info, batch, {"_source": False, "docvalue_fields": [exact]}):
            if values := hit.get("fields", {}).get(exact):
                names[hit["_id"]] = str(values[0])
    return names


def by_field(
    cluster: Cluster, info: IndexInfo, names: Sequence[str], field: str
) -> Iterator[tuple[str, str]]:
    """Yield the value of a field and the id of each document that has one of the names there."""
    together = min(NAMED_TOGETHER, limit(info, TERMS_COUNT), max(1, result_window(info) // OF_ONE_NAME))
    for start in range(0, len(names), together):
        body = {
            "size": min(together * OF_ONE_NAME, result_window(info)),
            "query": {"terms": {field: list(names[start : start + together])}},
            "_source": False,
            "docvalue_fields": [field],
        }
        for hit in cluster.search(info, body, every_shard=True)["hits"]["hits"]:
            yield from ((str(value), hit["_id"]) for value in hit.get("fields", {}).get(field, ()))
