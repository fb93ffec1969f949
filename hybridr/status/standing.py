"""The verbs status and remove, which report and delete everything that hybridr made for an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from shlex import quote
from typing import Any

from ..cluster.aliases import partial_aliases, require_no_rollover, undoing_rollover, way_to_vectors
from ..cluster.connection import Cluster, IndexLookup, IndexView
from ..cluster.destinations import (
    claiming_indices,
    destinations,
    has_readable_record,
    indices_in_use,
    is_destination,
    is_destination_of,
    is_of_replaced_source,
    is_restored,
    require_single,
    require_source_index,
    require_whole,
    view_of,
)
from ..cluster.mappings import alias_obstacles, differing_fields, require_no_obstacle
from ..cluster.reading import Key
from ..cluster.record import IndexInfo, Record, can_be_name
from ..cluster.remote_models import DEPLOYED, model_state, send_deletions
from ..errors import AccessDenied, ClusterError, NotFound, quantity
from ..files.remembered import Text, delete_texts, index_texts, known_encoder_folder, local_texts
from ..indexing.client_writes import (
    caught_refusal,
    find_writes,
    require_no_writes,
    require_nothing_lost,
    require_one_option,
)
from ..indexing.final_pipelines import pipeline_difference, wrapper_deletions
from ..indexing.lag import Lag
from ..indexing.representations import representations_in
from ..indexing.rollback import Courier
from ..indexing.semantic_models import model_deletions
from ..indexing.targets import target_of
from ..indexing.targets.beside import delete_indices, moves_from, own_aliases
from ..records import Windows
from ..search.answers import missing_parts_remark
from ..serving.deploy.deploying import Deployed, deployment_of, undeploy, undeploy_requests
from ..serving.deploy.ingesting import undeploy_ingest
from .leftovers import (
    cleanup_requests,
    delete_index_parts,
    delete_sidecars,
    gone_indices,
    leftover_requests,
    sidecars,
)

OUTGROWN_SHARE = 0.2  # change in the number of documents
SHOWN_IDS = 5  # ids in a message
OF_RECORD = ("state", "vectors", "compression", "encoder", "synced", "in_place", "passages", "warning")
"""Values of the record that the status of an index repeats."""


@dataclass(frozen=True)
class IndexStatus:
    """The status of one index with vectors.

    `current` counts documents with a vector of their present state; `lag` and `writes` (changes by clients
    that the source lacks) are None if unknown. `restored` says that the source was restored from a snapshot
    after the vectors were made. `unlike` are fields mapped differently in the source. `arithmetic` is the
    number format and backend of the encoder for documents, and why. `representations` are lines on what
    documents hold besides one vector. `sidecar_states` are the states of sidecars, by label. `parts` lists
    aliases that show a part of the index, with the reasons. `calibrated` is the number of documents at
    calibration, None without one. `unfinished` says what searches still lack.
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
    warning: str = ""
    restored: bool = False
    unlike: tuple[str, ...] = ()
    arithmetic: str = ""
    representations: tuple[str, ...] = ()
    sidecar_states: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, list[str]] = field(default_factory=dict)
    calibrated: int | None = None
    unfinished: str = ""

    @property
    def outgrown(self) -> bool:
        """Return whether the index has grown or shrunk by a fifth since its calibration."""
        count = self.calibrated
        return count is not None and abs(self.documents - count) >= OUTGROWN_SHARE * count

    def sidecar_lines(self) -> list[str]:
        """Return lines for people on what sidecars store."""
        pairs = [(sidecar, self.sidecar_states.get(sidecar.label)) for sidecar in sidecars()]
        return [line for sidecar, value in pairs if value for line in sidecar.lines(value)]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, with those of the sidecars."""
        values = asdict(self)
        return {**values, **values.pop("sidecar_states")}


@dataclass(frozen=True)
class Status:
    """Everything that hybridr made for a source: indices with vectors, and local files with texts.

    `strangers` are indices that claim to hold its vectors but that the source does not list; `earlier` hold
    the vectors of a former index of the same name. `unsynced` are indices with aliases of their own, which
    `sync` of the source does not update. `parts` lists aliases that show a part of the source.
    `final_pipelines` has a line for each index whose final pipeline differs from the source's. `other_files`
    are of indices that this cluster does not have, perhaps another one's. `rollover` says how to undo a
    rollover of the alias, empty without one.
    """

    source: str
    documents: int | None
    holdings: list[IndexStatus]
    files: list[Text]
    strangers: list[str] = field(default_factory=list)
    earlier: list[str] = field(default_factory=list)
    unsynced: list[str] = field(default_factory=list)
    parts: dict[str, list[str]] = field(default_factory=dict)
    final_pipelines: dict[str, str] = field(default_factory=dict)
    other_files: list[Text] = field(default_factory=list)
    rollover: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return asdict(self) | {
            "holdings": [index.to_json() for index in self.holdings],
            "files": [text.to_json() for text in self.files],
            "other_files": [text.to_json() for text in self.other_files],
        }


def status(cluster: Cluster, name: str) -> Status:
    """Return the status of all indices with vectors of `name`: a source, an index with vectors, or an alias.
    Raises NotFound.
    """
    view = view_of(cluster, name)
    source, generations = source_and_destinations(view, name)
    source_info = view.index_info(source) if view.indices(source) else None
    documents = cluster.count(source) if source_info else None
    others = [
        info
        for info in claiming_indices(view, source)
        if source_info and not is_destination_of(info, source_info)
    ]
    earlier = [info.name for info in others if source_info and is_of_replaced_source(info, source_info)]
    strangers = [info.name for info in others if info.name not in earlier]
    holdings = [index_status(cluster, info, source_info) for info in generations]
    unsynced = [info.name for info in indices_in_use(generations)[:-1]]
    parts = partial_aliases(source_info) if source_info else {}
    lines = {info.name: pipeline_difference(info, source_info) for info in generations if source_info}
    pipelines = {name: line for name, line in lines.items() if line}
    files, other_files = local_files(view, source, source_info, generations)
    details = (strangers, earlier, unsynced, parts, pipelines)
    rollover = undoing_rollover(view, source_info) if source_info else ""
    return Status(source, documents, holdings, files, *details, other_files, rollover)


def local_files(
    cluster: IndexLookup, source: str, source_info: IndexInfo | None, generations: Sequence[IndexInfo]
) -> tuple[list[Text], list[Text]]:
    """Return the local files with text of these indices, and those of indices with the same names that the
    cluster does not have: deleted ones, or another cluster's.
    """
    files, ids = local_texts(source), {info.uuid for info in (source_info, *generations) if info is not None}
    existing = ids | {info.uuid for info in claiming_indices(cluster, source)}
    return [text for text in files if text.uuid in ids], [text for text in files if text.uuid not in existing]


def source_and_destinations(cluster: IndexLookup, name: str) -> tuple[str, list[IndexInfo]]:
    """Return the source that `name` stands for (a source, index with vectors or alias), and the indices with
    its vectors.

    The source may be gone; an index whose name is not of that source then stands for itself. With vectors in
    place the source is itself the only index with vectors. Raises NotFound, and the errors of
    `require_source_index`.
    """
    if not cluster.indices(name) and (generations := claiming_indices(cluster, name)):
        return name, generations
    info = require_whole(cluster.index_info(name), name)
    if not is_destination(info):
        return info.name, destinations(cluster, info)
    if not target_of(info.record).is_separate:
        return info.name, [info]
    if not cluster.indices(info.record.source):
        claims = claiming_indices(cluster, info.record.source)
        return info.record.source, claims if info.uuid in {claim.uuid for claim in claims} else [info]
    source = require_source_index(cluster, info)
    return source.name, destinations(cluster, source)


def index_status(cluster: Cluster, info: IndexInfo, source: IndexInfo | None) -> IndexStatus:
    """Return the status of one index with vectors, compared with its source if that exists."""
    state, folder = target_of(info.record).state(cluster, info), known_encoder_folder(info.record.encoder)
    return IndexStatus(
        **{name: getattr(info.record, name) for name in OF_RECORD},
        index=info.name,
        aliases=sorted(info.aliases),
        documents=cluster.count(info.name),
        current=state.current,
        encoder_folder=str(folder) if folder else None,
        lag=state.lag,
        writes=state.writes,
        history=list(info.record.history),
        deployment=deployment_of(cluster, info),
        restored=source is not None and is_restored(info, source),
        unlike=differing_fields(source, info) if source else (),
        arithmetic=info.record.arithmetic or info.record.precision or "",
        representations=tuple(filter(None, representation_lines(cluster, info))),
        sidecar_states={sidecar.label: sidecar.state(cluster, info) for sidecar in sidecars()},
        parts=partial_aliases(info),
        calibrated=info.record.answers.documents if info.record.answers else None,
        unfinished=missing_parts_remark(info),
    )


def representation_lines(cluster: Cluster, info: IndexInfo) -> Iterator[str]:
    """Yield a line for each representation of documents, and one for semantic fields by hybridr's encoder."""
    yield from (kind.described(info.record) for kind in representations_in(info.record))
    if models := info.record.semantic:
        ids = (models.model_id, models.search_model_id)
        states = {model_id: model_state(cluster, model_id) or "gone" for model_id in ids}
        problems = [f"{name} is {state}" for name, state in states.items() if state != DEPLOYED]
        yield (
            f"semantic fields {', '.join(models.fields)}: the models {ids[0]} and, for queries, {ids[1]} ask "
            f"{models.server} ({'NOT WHOLE: ' + ', '.join(problems) if problems else 'whole'})"
        )


def remove(
    cluster: Cluster, name: str, *, copy_back: bool = False, discard: bool = False, dry_run: bool = False
) -> dict[str, Any]:
    """Delete every index with vectors of `name` and local files, and put its aliases back; the source stays.

    Leftovers of deleted indices are deleted too. If `name` has vectors of an earlier source of the same name,
    only that index is deleted. `copy_back` first copies documents that only clients wrote to the source, and
    `returned` counts them; `discard` deletes them. `dry_run` changes nothing.

    Returns source, indices, files and what `delete_sidecars` returns; the alias actions, sent as one request;
    the requests that undeploy (sent first) and delete models; and `refusal`, the error that a dry run found.
    Raises NotFound for nothing to delete, ClusterError if the source is gone or lacks clients' documents.
    """
    require_one_option(copy_back, discard)
    view = view_of(cluster, name)  # before aliases are removed
    if earlier := orphaned_by_replacement(view, name):
        return remove_earlier(cluster, *earlier, discard=discard, dry_run=dry_run)
    source, generations = removable_indices(cluster, name, view)
    source_info = view.index_info(source) if view.indices(source) else None
    if source_info:
        require_single(indices_in_use(generations), source_info)
    files, others = local_files(view, source, source_info, generations)
    deleted_indices = gone_indices(cluster, source, generations)
    if not generations and not files and not has_leftovers(cluster, source, deleted_indices):
        raise nothing_made(view, source)
    target = target_of(generations[0].record if generations else Record())
    leftovers = wrapper_deletions(cluster, generations) + leftover_requests(cluster, deleted_indices)
    copies = target.is_separate and copy_back and not dry_run and source_info is not None
    returned = {"changed": 0, "deleted": 0} if copies else None
    if returned:
        copy_writes_back(view, generations, returned)
    check = partial(require_removable, view, source, generations, copied=copy_back, discard=discard)
    refusal = caught_refusal(check, dry_run=dry_run) if target.is_separate else None
    requests, models = undeploy_all(cluster, generations, dry_run=True), model_deletions(cluster, generations)

    def final_check() -> None:
        """Copy back, or refuse to lose, what clients wrote meanwhile; then undeploy."""
        if returned:
            copy_writes_back(view, generations, returned)
        if target.is_separate and not discard:
            require_no_loss(view, source, generations, copied=copy_back, at_last=True)
        undeploy_all(cluster, generations, dry_run=False)

    removal = target.remove(cluster, source, generations, final_check, dry_run=dry_run)
    parts = delete_sidecars(cluster, [*generations, *deleted_indices], sidecars(), dry_run=dry_run)
    if not dry_run:
        send_deletions(cluster, [*models, *leftovers])
        files = delete_texts(files)
    return {
        "source": source,
        **removal,
        "files": [text.to_json() for text in files],
        "other_files": [text.to_json() for text in others],
        "requests": requests + models + leftovers,
        **parts,
        "returned": returned,
        "refusal": refusal,
        "removed": not dry_run,
    }


def nothing_made(view: IndexView, source: str) -> NotFound:
    """Return the error for a source without vectors; it names indices of an earlier source of that name."""
    hint = "; ".join(f"hybridr remove {quote(info.name)}" for info in claiming_indices(view, source))
    hint = hint or way_to_vectors(view, view.index_info(source), source)
    return NotFound(f"hybridr made nothing for this '{source}'", hint=hint)


def orphaned_by_replacement(cluster: IndexLookup, name: str) -> tuple[IndexInfo, IndexInfo] | None:
    """Return (index with vectors, present index) if `name` is an index with vectors whose source was since
    replaced by another index of the same name, else None.
    """
    infos = cluster.indices(name)
    if len(infos) != 1 or not has_readable_record(infos[0]) or not is_destination(infos[0]):
        return None
    info = infos[0]
    if info.record.in_place or not cluster.indices(info.record.source):
        return None
    source = cluster.index_info(info.record.source)
    return (info, source) if is_of_replaced_source(info, source) else None


def remove_earlier(
    cluster: Cluster, info: IndexInfo, source: IndexInfo, *, discard: bool, dry_run: bool
) -> dict[str, Any]:
    """Delete an index with vectors of an earlier source, and everything made for it alone.

    Aliases that hybridr did not make move to `source`, the present index of that name. Returns the same as
    `remove`.
    """

    def final_check() -> None:
        """Raise ClusterError for documents that clients wrote."""
        if not discard:
            require_nothing_lost(cluster, info, source, "deletes them")

    def check() -> None:
        """Raise ClusterError for a block of the index, or for documents that clients wrote."""
        require_no_obstacle(alias_obstacles(cluster, info), "the removal")
        final_check()

    refusal = caught_refusal(check, dry_run=dry_run)
    requests = cleanup_requests(cluster, info)
    files = [text for text in index_texts() if text.uuid == info.uuid]
    moves = moves_from([info], own_aliases(source.name, [info]), source.name)
    actions = delete_indices(cluster, [info], moves, final_check, dry_run=dry_run)
    return {
        "source": source.name,
        "indices": [info.name],
        "actions": actions,
        "files": [text.to_json() for text in files],
        "other_files": [],
        "requests": requests,
        **delete_index_parts(cluster, [info], requests, dry_run=dry_run),
        "returned": None,
        "refusal": refusal,
        "removed": not dry_run,
    }


def removable_indices(cluster: Cluster, name: str, view: IndexView) -> tuple[str, list[IndexInfo]]:
    """Return what `source_and_destinations` returns; for a deleted source that left something behind, its
    name and no indices. Raises NotFound for a source that left nothing.
    """
    try:
        return source_and_destinations(view, name)
    except NotFound:
        if not can_be_name(name) or not has_leftovers(cluster, name, gone_indices(cluster, name)):
            raise
        return name, []


def has_leftovers(cluster: Cluster, source: str, deleted_indices: list[IndexInfo]) -> bool:
    """Return whether a source without vectors has an alias of hybridr's, or deleted indices left any part."""
    return bool(
        target_of(Record()).remove(cluster, source, (), lambda: None, dry_run=True)["actions"]
        or delete_sidecars(cluster, deleted_indices, sidecars(), dry_run=True)["beside"]
        or leftover_requests(cluster, deleted_indices)
    )


def undeploy_all(cluster: Cluster, generations: list[IndexInfo], *, dry_run: bool) -> list[dict[str, Any]]:
    """Undeploy the indices, also after a killed `deploy`; return the requests. `dry_run` sends none."""
    deployed = []
    for info in generations:
        try:
            is_deployed = bool(undeploy_requests(cluster, info))
        except AccessDenied:  # this user may not read pipelines: trust the record
            is_deployed = info.record.deployment is not None
        if is_deployed:
            deployed.append(info.name)
    requests = [
        request
        for generation in generations
        for request in undeploy_ingest(cluster, generation, dry_run=dry_run)
    ]
    return requests + [request for name in deployed for request in undeploy(cluster, name, dry_run=dry_run)]


def require_no_loss(
    view: IndexView, source: str, generations: list[IndexInfo], *, copied: bool, at_last: bool = False
) -> None:
    """Raise ClusterError if an index with vectors holds documents that the source lacks, whether clients
    search it or not.

    With `copied`, writes without conflict are copied to the source, and only conflicts are refused; with
    `at_last` also writes that are not copied yet.
    """
    if generations and not view.cluster.exists(source):
        raise ClusterError(
            f"'{source}' is gone: '{generations[-1].name}' holds the only copy",
            hint="--discard deletes it anyway",
        )
    command = f"hybridr remove {quote(source)}"
    for info in generations:
        hint = f"{command} --copy-back copies them to '{source}' first, --discard deletes them"
        writes = find_writes(view.cluster, info, view=view)
        if copied and writes.conflicts:
            count = len(writes.conflicts)
            ids = ", ".join(doc_id for doc_id, _ in sorted(writes.conflicts)[:SHOWN_IDS])
            ids += f" and {count - SHOWN_IDS:,} more" if count > SHOWN_IDS else ""
            raise ClusterError(
                f"'{source}' and clients of '{info.name}' both changed {quantity(count, 'document')}: {ids}",
                hint=f"{command} --discard keeps those of '{source}'; to keep the clients', "
                f"write them into '{source}' as they are in '{info.name}', then --copy-back again",
            )
        if at_last or not copied:
            require_no_writes(writes, info, source, hint)


def require_removable(
    view: IndexView, source: str, generations: list[IndexInfo], *, copied: bool, discard: bool
) -> None:
    """Raise ClusterError if a block prevents that indices are deleted or that aliases move to the source.

    Unless `discard`, raise also the errors of `require_no_loss`.
    """
    own_names, infos = own_aliases(source, generations), list(generations)
    if any(move.to for move in moves_from(generations, own_names, source)):
        infos += view.indices(source)
    infos += [info for info in view.indices(source) if own_names & info.aliases.keys()]
    unique = {info.name: info for info in infos}.values()
    blocks = [block for info in unique for block in alias_obstacles(view.cluster, info)]
    require_no_obstacle(blocks, "the removal")
    if not discard:
        for info in generations[-1:]:
            require_no_rollover(view, info)
        require_no_loss(view, source, generations, copied=copied)


def copy_writes_back(view: IndexView, generations: list[IndexInfo], returned: dict[str, int]) -> None:
    """Copy clients' writes from all indices with vectors to the source, the latest index first; add the
    numbers of documents changed and deleted there to `returned`.
    """
    changed: set[Key] = set()
    deleted: set[Key] = set()
    for info in reversed(generations):
        courier = Courier(view.cluster, info, view)
        courier.return_all()
        changed.update(courier.tally.changed)
        deleted.update(courier.tally.deleted)
    returned["changed"] += len(changed)
    returned["deleted"] += len(deleted)
