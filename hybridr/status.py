"""What stands of hybridr's work for an index, and how all of it is removed again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .cluster.connection import Cluster
from .cluster.default_pipeline import is_searchable
from .cluster.destinations import (
    default_alias,
    destinations,
    is_destination,
    is_in_place,
    put_record,
    write_record,
)
from .cluster.reading import Position, SourceDocument, hidden_operations, read_pages, settled_position
from .cluster.record import IndexInfo
from .cluster.writing import Action, by_bytes, rejects_of, update_action, write
from .errors import ClusterError, NotFound
from .files.private import Text, delete_texts, texts
from .files.remembered import folder_of, forget
from .records import Windows
from .reindexing.filling import MAX_PASSES
from .reindexing.job import is_current, look_up
from .reindexing.rollback import find_writes, require_none
from .reindexing.syncing import synced_position
from .reindexing.targets.beside import current_query, vanished_pages
from .reindexing.targets.in_place import MARK_FIELD, changing, held_query, other_than
from .reindexing.verification import count_current
from .serving.deploying import Deployed, deployment_of, undeploy

PAGE = 1000
REMOVED_TOGETHER = 500
BULK_BYTES = 5_000_000


@dataclass(frozen=True)
class Lag:
    """Changes of the source that are not yet in a destination."""

    inserts: int
    updates: int
    deletes: int


@dataclass(frozen=True)
class Holding:
    """One index with vectors.

    `current` counts the documents that its encoder looked at in their present state; `lag` and `writes` (what
    clients did here and the source does not know) are None where they cannot be told.
    """

    index: str
    state: str
    aliases: list[str]
    documents: int
    current: int
    vectors: str
    compression: str | None
    encoder: str
    encoder_folder: str | None
    synced: dict[int, int] | None
    lag: Lag | None
    writes: dict[str, Any] | None
    history: list[dict[str, Any]]
    in_place: bool = False
    passages: Windows | None = None
    deployment: Deployed | None = None


@dataclass(frozen=True)
class Standing:
    """Everything that hybridr made for a source: indices, their aliases, local files that hold text."""

    source: str
    documents: int | None
    holdings: list[Holding]
    files: list[Text]

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return asdict(self) | {"files": [text.to_json() for text in self.files]}


def standing(cluster: Cluster, name: str) -> Standing:
    """Look at all destinations of `name`, a source, a destination or an alias. Raises NotFound."""
    if (found := in_place_index(cluster, name)) is not None:
        return Standing(
            found.name, cluster.count(found.name), [holding_in_place(cluster, found)], texts(found.name)
        )
    source = source_name(cluster, name)
    there = cluster.exists(source)
    made = destinations(cluster, source)
    return Standing(
        source,
        cluster.count(source) if there else None,
        [holding(cluster, info, there) for info in made],
        texts(source),
    )


def in_place_index(cluster: Cluster, name: str) -> IndexInfo | None:
    """Find the index, if it holds its vectors itself."""
    found = cluster.indices(name)
    return found[0] if len(found) == 1 and is_in_place(found[0]) else None


def holding_in_place(cluster: Cluster, info: IndexInfo) -> Holding:
    """Look at an index that holds its vectors itself."""
    folder = folder_of(info.record.encoder)
    return Holding(
        info.name,
        info.record.state,
        sorted(info.aliases),
        cluster.count(info.name),
        count_current(cluster, info, synced_position(info)),
        info.record.vectors,
        info.record.compression,
        info.record.encoder,
        str(folder) if folder else None,
        info.record.synced,
        None,
        None,
        list(info.record.history),
        in_place=True,
        deployment=deployment_of(cluster, info),
    )


def source_name(cluster: Cluster, name: str) -> str:
    """Name the source of a destination or alias, or the index itself; it may be gone."""
    found = cluster.indices(name)
    if not found and destinations(cluster, name):
        return name
    info = cluster.index_info(name)
    return str(info.record.source) if is_destination(info) else info.name


def holding(cluster: Cluster, info: IndexInfo, source_there: bool) -> Holding:
    """Look at one destination."""
    cluster.refresh(info.name)
    marked = cluster.search(
        info.name, {"size": 0, "track_total_hits": True, "query": current_query(info.record.encoder)}
    )
    folder = folder_of(info.record.encoder)
    readable = source_there and is_searchable(cluster, info)
    live = readable and info.record.state == "complete"
    return Holding(
        info.name,
        info.record.state,
        sorted(info.aliases),
        cluster.count(info.name),
        int(marked["hits"]["total"]["value"]),
        info.record.vectors,
        info.record.compression,
        info.record.encoder,
        str(folder) if folder else None,
        info.record.synced,
        lag_of(cluster, info) if readable else None,
        find_writes(cluster, info).counts() if live else None,
        list(info.record.history),
        passages=info.record.passages,
        deployment=deployment_of(cluster, info),
    )


def lag_of(cluster: Cluster, info: IndexInfo) -> Lag:
    """Count what the source has and the destination has not; only what happened since is looked at."""
    source, since = str(info.record.source), synced_position(info)
    settled = settled_position(cluster, source)
    inserts = updates = 0
    at = Position(dict(since.seq_no)) if since else None
    for page in read_pages(cluster, source, page=PAGE, position=at, fields=()):
        stored = look_up(cluster, info.name, page)
        inserts += sum(document.doc_id not in stored for document in page)
        updates += sum(
            document.doc_id in stored
            and not is_current(document, stored[document.doc_id], stored[document.doc_id].encoder or "")
            for document in page
        )
    if since and settled and not hidden_operations(cluster, source, since, settled):
        return Lag(inserts, updates, 0)
    return Lag(inserts, updates, sum(map(len, vanished_pages(cluster, source, info.name))))


def remove(cluster: Cluster, name: str, *, discard: bool = False, dry_run: bool = False) -> dict[str, Any]:
    """Delete every index with vectors of `name` and local files, and put its aliases back; never the source.

    Gives source, indices, files, the alias actions, which are sent as one atomic step, and the requests that
    take a deployment away, which are sent first. Raises NotFound when there is nothing, ClusterError when
    clients wrote what the source lacks, or the source is gone, unless `discard`.
    """
    if (found := in_place_index(cluster, name)) is not None:
        requests = withdraw(cluster, [found], dry_run=dry_run)
        return {**remove_in_place(cluster, found, dry_run=dry_run), "requests": requests}
    source = source_name(cluster, name)
    made = destinations(cluster, source)
    files = texts(source)
    if not made and not files:
        raise NotFound(f"hybridr made nothing for '{source}'", hint=f"hybridr reindex {source}")
    if not (discard or dry_run):
        require_no_loss(cluster, source, made)
    actions = removal_actions(cluster, source, made)
    requests = withdraw(cluster, made, dry_run=dry_run)
    if not dry_run:
        if actions:
            cluster.request("POST", "/_aliases", {"actions": actions})
        delete_texts(files)
        for info in made:
            forget(str(info.record.source_uuid))
    return {
        "source": source,
        "indices": [info.name for info in made],
        "actions": actions,
        "files": [text.to_json() for text in files],
        "requests": requests,
        "removed": not dry_run,
    }


def withdraw(cluster: Cluster, made: list[IndexInfo], *, dry_run: bool) -> list[dict[str, Any]]:
    """Undeploy what is deployed; give the requests."""
    deployed = [info.name for info in made if info.record.deployment]
    return [request for name in deployed for request in undeploy(cluster, name, dry_run=dry_run)]


def require_no_loss(cluster: Cluster, source: str, made: list[IndexInfo]) -> None:
    """Raise ClusterError when a destination holds what the source does not."""
    if made and not cluster.exists(source):
        raise ClusterError(
            f"'{source}' is gone: '{made[-1].name}' holds the only copy",
            hint="--discard deletes it all the same",
        )
    for info in made:
        if info.record.state == "complete" and info.aliases:
            hint = f"hybridr rollback {source} --copy-back copies them there first, --discard deletes them"
            require_none(find_writes(cluster, info), info, hint)


def removal_actions(cluster: Cluster, source: str, made: list[IndexInfo]) -> list[dict[str, Any]]:
    """Build one atomic step: aliases that were there before go to the source, those made for it go away."""
    ours = {default_alias(source)} | {
        alias for info in made for alias, how in info.record.aliases.items() if how == "made"
    }
    actions: list[dict[str, Any]] = []
    for there in cluster.indices(source):
        actions += [
            {"remove": {"index": source, "alias": alias, "must_exist": True}}
            for alias in sorted(ours & there.aliases.keys())
        ]
        actions += [
            {"add": {"index": source, "alias": alias, **options}}
            for info in made
            for alias, options in sorted(info.aliases.items())
            if alias not in ours
        ]
    return [*actions, *({"remove_index": {"index": info.name}} for info in made)]


def remove_in_place(cluster: Cluster, info: IndexInfo, *, dry_run: bool = False) -> dict[str, Any]:
    """Take vector and mark out of every document, each over the state that was read, then the record.

    Run again it goes on. Gives the keys of `standing.remove`, with `documents` that hold a vector or mark and
    `fields`, which OpenSearch cannot take out of a mapping. Raises ClusterError when documents are refused.
    """
    files, field = texts(info.name), str(info.record.vector_field)
    cluster.refresh(info.name)
    held = cluster.search(info.name, {"size": 0, "track_total_hits": True, "query": held_query(field)})
    if not dry_run:
        write_record(cluster, info.name, state="removing")
        take_out(cluster, info.name, [field, MARK_FIELD])
        forget_record(cluster, info.name)
        delete_texts(files)
        forget(info.uuid)
    return {
        "source": info.name,
        "indices": [],
        "actions": [],
        "files": [text.to_json() for text in files],
        "documents": int(held["hits"]["total"]["value"]),
        "fields": [field, MARK_FIELD],
        "removed": not dry_run,
    }


def take_out(cluster: Cluster, index: str, fields: list[str]) -> None:
    """Take fields out of all documents, until none holds one; what clients write meanwhile stays."""
    unless = other_than(held_query(fields[0]))
    rejects = rejects_of(index)
    for _ in range(MAX_PASSES):
        cluster.refresh(index)
        seen = 0
        for page in read_pages(cluster, index, page=REMOVED_TOGETHER, unless=unless, fields=()):
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
        document.doc_id,
        changing({}, fields),
        routing=document.routing,
        if_seq_no=document.seq_no,
        if_primary_term=document.primary_term,
    )


def forget_record(cluster: Cluster, index: str) -> None:
    """Take all that a reindex in place recorded out of `_meta`; what `load` and others keep there stays."""
    info = cluster.index_info(index)
    put_record(cluster, info, info.record.bare())
