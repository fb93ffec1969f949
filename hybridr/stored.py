"""What a destination holds of each document: asked by id, without reading the documents themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .bodies import ENCODER_FIELD, SEQ_NO_FIELD
from .cluster import Cluster, path_of
from .reading import SourceDocument


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
    """Ask the destination which of the documents it holds, and in which state."""
    params = {"stored_fields": f"{ENCODER_FIELD},{SEQ_NO_FIELD}"}
    answer = ask(cluster, destination, documents, params, patience_s)
    return {found["_id"]: stored_of(found) for found in answer if found.get("found")}


def ask(
    cluster: Cluster,
    index: str,
    documents: Sequence[SourceDocument],
    params: dict[str, str],
    patience_s: float = 0.0,
) -> list[dict[str, Any]]:
    """Get documents by id and routing, in order; those that are missing have `found` false."""
    wanted = [
        {"_id": document.doc_id, **({"routing": document.routing} if document.routing else {})}
        for document in documents
    ]
    path = path_of(index, "_mget")
    found: list[dict[str, Any]] = cluster.request(
        "POST", path, {"docs": wanted}, params, patience_s=patience_s
    )["docs"]
    return found


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
