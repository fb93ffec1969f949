"""What a destination holds of each document: asked by id, without reading the documents themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from .bodies import ENCODER_FIELD, SEQ_NO_FIELD
from .cluster import Cluster, path_of
from .reading import SourceDocument, source_document

CHUNK = 1000


class Stored(NamedTuple):
    """What the destination holds of a document.

    `source_seq_no` is the state of the source that it was made of. For a document that a client wrote in the
    destination (`written_here`) it is the state that the source had when hybridr saw that: -1 for no
    document, None while nobody has seen it.
    """

    version: int
    seq_no: int
    primary_term: int
    encoder: str | None
    source_seq_no: int | None
    written_here: bool = False


def look_up(cluster: Cluster, destination: str, documents: Sequence[SourceDocument]) -> dict[str, Stored]:
    """Ask the destination which of the documents it holds, and in which state.

    Raises what the server says of a single document: a missing right must not look like a missing document.
    """
    wanted = [
        {"_id": document.doc_id, **({"routing": document.routing} if document.routing else {})}
        for document in documents
    ]
    params = {"stored_fields": f"{ENCODER_FIELD},{SEQ_NO_FIELD}"}
    path = path_of(destination, "_mget")
    answer = cluster.request("POST", path, {"docs": wanted}, params, every_shard=True)["docs"]
    return {found["_id"]: stored_of(found) for found in answer if found.get("found")}


def sources_by_id(
    cluster: Cluster, index: str, doc_ids: Sequence[str], *, whole: bool = True
) -> dict[str, dict[str, Any]]:
    """Read the sources of documents by id; see `documents_by_id`."""
    found = documents_by_id(cluster, index, doc_ids, whole=whole)
    return {doc_id: document.source for doc_id, document in found.items()}


def documents_by_id(
    cluster: Cluster, index: str, doc_ids: Sequence[str], *, whole: bool = True
) -> dict[str, SourceDocument]:
    """Read documents by id with a search, which needs no other right than reading the index does.

    `whole` False asks only which ids are there, in which state. What is missing is left out.
    """
    if not doc_ids:
        return {}
    body = {
        "size": len(doc_ids), "query": {"ids": {"values": list(doc_ids)}}, "_source": whole,
        "version": True, "seq_no_primary_term": True,
    }  # fmt: skip
    answer = cluster.request("POST", path_of(index, "_search"), body, every_shard=True)
    return {hit["_id"]: source_document(hit) for hit in answer["hits"]["hits"]}


def count_missing(cluster: Cluster, index: str, doc_ids: Collection[str]) -> int:
    """Count the ids that a search of the index does not find."""
    wanted = sorted(set(doc_ids))
    there = 0
    for start in range(0, len(wanted), CHUNK):
        part = wanted[start : start + CHUNK]
        there += len(sources_by_id(cluster, index, part, whole=False))
    return len(wanted) - there


def stored_of(found: dict[str, Any]) -> Stored:
    """Read one answer of `_mget`."""
    fields = found.get("fields", {})
    encoder, (number,) = fields.get(ENCODER_FIELD, [None]), fields.get(SEQ_NO_FIELD, [None])
    written_here = number is None or number < 0
    origin = -2 - number if number is not None and number < 0 else number
    return Stored(
        found["_version"], found["_seq_no"], found["_primary_term"], encoder[0], origin, written_here
    )


def written_here_mark(source_seq_no: int) -> int:
    """Write what `stored_of` reads: a client wrote the document while the source was in this state."""
    return -2 - source_seq_no


def is_current(document: SourceDocument, stored: Stored | None, encoder: str) -> bool:
    """Tell whether the destination holds this state of the document, or a newer one a client wrote there."""
    if stored is None:
        return False
    if stored.source_seq_no is None:
        return stored.version > document.version
    if stored.source_seq_no == document.seq_no:
        return stored.written_here or stored.encoder == encoder
    newer = stored.source_seq_no > document.seq_no
    return newer and (stored.written_here or stored.version > document.version)
