"""What a destination holds of each document: asked by id, without reading the documents themselves."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from .bodies import ENCODER_FIELD, SEQ_NO_FIELD
from .cluster import Cluster, described, path_of
from .errors import ClusterError
from .reading import SourceDocument

CHUNK = 1000


class Stored(NamedTuple):
    """What the destination holds of a document; `source_seq_no` None when a client wrote it."""

    version: int
    seq_no: int
    primary_term: int
    encoder: str | None
    source_seq_no: int | None


def look_up(
    cluster: Cluster, destination: str, documents: Sequence[SourceDocument], *, patience_s: float = 0.0
) -> dict[str, Stored]:
    """Ask the destination which of the documents it holds, and in which state.

    Raises what the server says of a single document: a missing right must not look like a missing document.
    """
    wanted = [
        {"_id": document.doc_id, **({"routing": document.routing} if document.routing else {})}
        for document in documents
    ]
    params = {"stored_fields": f"{ENCODER_FIELD},{SEQ_NO_FIELD}"}
    path = path_of(destination, "_mget")
    answer = cluster.request("POST", path, {"docs": wanted}, params, patience_s=patience_s)["docs"]
    for found in answer:
        if "error" in found:
            raise described(int(found.get("status", 500)), found["error"])
    return {found["_id"]: stored_of(found) for found in answer if found.get("found")}


def sources_by_id(
    cluster: Cluster, index: str, doc_ids: Sequence[str], *, whole: bool = True, patience_s: float = 0.0
) -> dict[str, dict[str, Any]]:
    """Read documents by id with a search, which needs no other right than reading the index does.

    `whole` False asks only which ids are there. What is missing is left out.
    """
    body = {"size": len(doc_ids), "query": {"ids": {"values": list(doc_ids)}}, "_source": whole}
    if not doc_ids:
        return {}
    answer = cluster.request("POST", path_of(index, "_search"), body, patience_s=patience_s)
    if answer["timed_out"] or answer["_shards"]["failed"]:
        raise ClusterError(f"some shards of '{index}' did not answer", hint="run the same command again")
    return {hit["_id"]: hit.get("_source", {}) for hit in answer["hits"]["hits"]}


def count_missing(cluster: Cluster, index: str, doc_ids: Collection[str], *, patience_s: float = 0.0) -> int:
    """Count the ids that a search of the index does not find."""
    wanted = sorted(set(doc_ids))
    there = 0
    for start in range(0, len(wanted), CHUNK):
        part = wanted[start : start + CHUNK]
        there += len(sources_by_id(cluster, index, part, whole=False, patience_s=patience_s))
    return len(wanted) - there


def stored_of(found: dict[str, Any]) -> Stored:
    """Read one answer of `_mget`."""
    fields = found.get("fields", {})
    encoder, seq_no = fields.get(ENCODER_FIELD, [None]), fields.get(SEQ_NO_FIELD, [None])
    return Stored(found["_version"], found["_seq_no"], found["_primary_term"], encoder[0], seq_no[0])


def is_current(document: SourceDocument, stored: Stored | None, encoder: str) -> bool:
    """Tell whether the destination holds this state of the document, or a newer one a client wrote there."""
    if stored is None:
        return False
    if stored.encoder == encoder and stored.source_seq_no == document.seq_no:
        return True
    newer = stored.source_seq_no is None or stored.source_seq_no > document.seq_no
    return newer and stored.version > document.version
