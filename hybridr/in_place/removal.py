"""Takes vectors, marks and record out of an index again; only the fields stay in its mapping."""

from __future__ import annotations

from typing import Any

from ..cluster import Cluster, IndexInfo, path_of
from ..destinations import write_meta
from ..errors import ClusterError
from ..filling import MAX_PASSES
from ..known_encoders import forget
from ..reading import SourceDocument, read_pages
from ..texts import delete_texts, texts
from ..writing import Action, by_bytes, rejects_of, update_action, write
from .filling import changing
from .marks import MARK_FIELD, held_query, other_than

PAGE = 500
BULK_BYTES = 5_000_000
RECORD = (
    "role", "in_place", "source", "source_uuid", "job", "state", "encoder", "dim", "similarity",
    "vector_field", "fields", "lexical_fields", "max_tokens", "engine", "vectors", "compression", "synced",
    "rejected", "refused", "history", "precision", "backend", "deployment",
)  # fmt: skip


def remove_in_place(cluster: Cluster, info: IndexInfo, *, dry_run: bool = False) -> dict[str, Any]:
    """Take vector and mark out of every document, each over the state that was read, then the record.

    Run again it goes on. Gives the keys of `standing.remove`, with `documents` that hold a vector or mark and
    `fields`, which OpenSearch cannot take out of a mapping. Raises ClusterError when documents are refused.
    """
    files, field = texts(info.name), str(info.meta["vector_field"])
    cluster.refresh(info.name)
    held = cluster.search(info.name, {"size": 0, "track_total_hits": True, "query": held_query(field)})
    if not dry_run:
        write_meta(cluster, info.name, {"state": "removing"})
        take_out(cluster, info.name, [field, MARK_FIELD])
        forget_record(cluster, info.name)
        delete_texts(files)
        forget(info.uuid)
    return {
        "source": info.name, "indices": [], "actions": [], "files": [text.to_json() for text in files],
        "documents": int(held["hits"]["total"]["value"]), "fields": [field, MARK_FIELD],
        "removed": not dry_run,
    }  # fmt: skip


def take_out(cluster: Cluster, index: str, fields: list[str]) -> None:
    """Take fields out of all documents, until none holds one; what clients write meanwhile stays."""
    unless = other_than(held_query(fields[0]))
    rejects = rejects_of(index)
    for _ in range(MAX_PASSES):
        cluster.refresh(index)
        seen = 0
        for page in read_pages(cluster, index, page=PAGE, unless=unless, fields=()):
            seen += len(page)
            for group in by_bytes([without(document, fields) for document in page], BULK_BYTES):
                if write(cluster, index, group, rejects=rejects, params={"pipeline": "_none"}).rejected:
                    raise ClusterError(
                        f"'{index}' refused documents, which still hold vectors; reasons in {rejects.file}",
                        hint=f"mend them, then again: hybridr remove {index}",
                    )
        if not seen:
            return
    raise ClusterError(
        f"somebody goes on writing vectors into '{index}'",
        hint=f"stop hybridr sync, then again: hybridr remove {index}",
    )


def without(document: SourceDocument, fields: list[str]) -> Action:
    """Take fields out of exactly the state that was read."""
    return update_action(
        document.doc_id, changing({}, fields), routing=document.routing,
        if_seq_no=document.seq_no, if_primary_term=document.primary_term,
    )  # fmt: skip


def forget_record(cluster: Cluster, index: str) -> None:
    """Take what a reindex in place recorded out of `_meta`; what others keep there stays."""
    meta = dict(cluster.index_info(index).mappings.get("_meta", {}))
    left = {name: value for name, value in meta.pop("hybridr", {}).items() if name not in RECORD}
    meta |= {"hybridr": left} if left else {}
    cluster.request("PUT", path_of(index, "_mapping"), {"_meta": meta})
