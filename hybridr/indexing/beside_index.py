"""Plans the new index that a reindex makes beside its source: body, record, and filling requests."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from shlex import quote
from typing import Any, TypeAlias

from ..cluster.aliases import (
    alias_target,
    companion_aliases,
    is_related,
    moved_aliases,
    narrowing_keys,
    partial_aliases,
    previous_index,
    switch_actions,
    undoing_rollover,
)
from ..cluster.connection import Cluster, IndexView, path_of
from ..cluster.default_pipeline import require_searchable
from ..cluster.destinations import (
    MAX_EVENTS,
    MOVES,
    claiming_indices,
    default_alias,
    destination_pattern,
    destinations,
    generation_number,
    is_destination_of,
    is_in_place,
    is_restored,
    is_unlisted,
    reindex_command,
)
from ..cluster.field_values import require_whole_source
from ..cluster.known_problems import require_no_loss
from ..cluster.mappings import (
    alias_obstacles,
    is_incompatible,
    mapping_obstacles,
    narrow_window_warnings,
    raised_limits,
    require_no_obstacle,
)
from ..cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, IndexInfo, Record, parse_record
from ..encoders.contract import Encoder
from ..errors import ClusterError, DataError, SettingsError, quantity
from ..files.local import fingerprint
from .client_writes import (
    CLIENT_WRITES,
    Writes,
    find_writes,
    is_live,
    require_nothing_lost,
)
from .final_pipelines import (
    FINAL,
    NONE,
    has_wrapper,
    owners_pipeline,
    pipeline_difference,
    wrap_requests,
    wrapper_name,
)
from .planning import Plan, Proposal, index_to_read, propose
from .preflight import (
    check_disk,
    check_limits,
    check_templates,
    copied_settings,
    differing_settings,
    estimate_disk,
    matching_templates,
    policies_for,
    protections_lost,
    settings_not_copied,
)
from .representations import name_conflict_hints, representations_in
from .semantic_models import planned_models, requests_for_models, semantic_fields
from .settings import ReindexSettings
from .terms.storage import HOME

DURING_FILL: dict[str, Any] = {"refresh_interval": "-1", "number_of_replicas": 0, FINAL: NONE}
Request: TypeAlias = dict[str, Any]
REPLANNED_FIELDS = "alias previous fields_named lexical_fields precision backend arithmetic".split()
"""Fields of a record that may change between two runs of one job."""
INVALID_ALIAS = re.compile(r'[\s,"*\\<|>?/#:]|^[_+-]|^\.\.?$')


def plan_new_index(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Plan the new index that gets the documents of `name` and their vectors. An index that an earlier run of
    the same job created is used again.

    Raises ClusterError (engine, plugin, alias), DataError (empty, no text, incomplete `_source`, a field name
    that is in use), ModelError (dimension), NotFound, SettingsError (invalid alias).
    """
    view = IndexView.of(cluster, name, destination_pattern(name), settings.alias or default_alias(name))
    named = view.index_info(name)
    alias = settings.alias or named.record.alias or usual_alias(named, name)
    if name != (source := named.record.source or named.name):
        view = IndexView.of(cluster, name, source, destination_pattern(source), alias)
    info = index_to_read(view, name)
    check_named(named, name, alias)
    check_source(cluster, info, settings)
    proposal = propose(cluster, info, encoder, settings, view)
    target = check_alias(view, alias, info, discard=settings.discard)
    job = fingerprint([info.uuid, encoder.fingerprint, proposal.job_settings])
    current = index_of_job(cluster, view, info, job)
    destination = current.name if current else new_name(view, info)
    side_index = HOME + info.name if settings.term_table else ""
    limit_notes = check_limits(cluster, info, current=current, side_index=side_index)
    matching = None if current else matching_templates(cluster, destination)
    templates = [] if current else check_templates(cluster, destination, info, matching)
    disk = None if current else estimate_disk(cluster, info, proposal.disk_bytes)
    check_disk(disk, destination)
    proposal = proposal.with_chosen_precision(current.record if current else None)
    record = new_record(proposal, job, alias, target, current)
    live = current is not None and current.record.state == "complete" and not has_fill_settings(current)
    wraps = wrap_requests(destination, owners_pipeline(record.original), current if live else None)
    if wraps:
        has_wrapper(cluster, destination)  # raises for another pipeline of that name
    final_settings = settings_after(record, destination, current) if not live else {}
    moves = switch_actions(alias, target, destination, info)
    requests = [
        *([] if current else requests_for_models(proposal, destination)),
        *wraps,
        *filling_requests(proposal, record, destination, final_settings, current),
        {"method": "POST", "path": "/_aliases", "body": {"actions": moves}},
    ]
    companions = companion_aliases(alias, target, destination, info)
    shaping = [current.settings] if current else [template.settings for template in matching or ()]
    cautions = cautions_of(cluster, info, destination, (alias, *companions), shaping)
    others = [generation for generation in destinations(view, info) if generation.name != destination]
    require_movable(cluster, others, target, alias, current)
    proposal = replace(proposal, alias_notes=tuple(notes_on_staying_aliases(others, alias)))
    writes = {generation.name: find_writes(cluster, generation, view=view) for generation in others}
    carried = {index: entry for index, entry in writes.items() if entry or not entry.deletes_known}
    details = plan_details(destination, record, final_settings, templates, proposal.vectors) | {
        "cautions": cautions,
        "settings_left_out": settings_not_copied(info.settings),
        "along": companions,
        "carried": {index: entry.counts() for index, entry in carried.items()},
    }
    remarks = [*limit_notes, *templates, *plan_remarks(info, companions, carried, target), *cautions]
    exists = current is not None
    return Plan(
        proposal, destination, record, exists, live, requests, disk, remarks, details, cautions=cautions
    )


def usual_alias(named: IndexInfo, name: str) -> str:
    """Return the alias of a reindex by the name of an index: that name if it is such an alias already."""
    is_ours = name != named.name and name.endswith(default_alias(""))
    return name if is_ours else default_alias(name)


def new_name(view: IndexView, info: IndexInfo) -> str:
    """Return the name of the next index with vectors of a source, which no index and no alias has."""
    indices = view.indices(destination_pattern(info.name))
    names = {name for index in indices for name in (index.name, *index.aliases)}
    first = 1 + max(map(generation_number, indices), default=0)
    return next(name for number in count(first) if (name := f"{info.name}-hybridr-{number}") not in names)


def filling_requests(
    proposal: Proposal, record: Record, destination: str, settings: dict[str, Any], current: IndexInfo | None
) -> list[Request]:
    """Return the requests that create the index or prepare the `current` one, fill it, and set `settings`.

    If `settings` is empty, the index is only filled.
    """
    bulk: Request = {"method": "POST", "path": path_of(destination, "_bulk"), "documents": proposal.documents}
    if not settings:
        return [bulk]
    path = path_of(destination, "_settings")
    first: Request = {"method": "PUT", "path": path_of(destination), "body": new_index_body(proposal, record)}
    if current:
        first = {"method": "PUT", "path": path, "body": {"index": settings_during_fill(settings)}}
    return [first, bulk, {"method": "PUT", "path": path, "body": {"index": settings}}]


def cautions_of(
    cluster: Cluster,
    info: IndexInfo,
    destination: str,
    moving: Collection[str],
    settings: Iterable[Mapping[str, Any]],
) -> list[str]:
    """Return warnings, a line each, about what holds for the source but not for its copy: security roles,
    lifecycle policies, filtered aliases (those not in `moving`), result windows.

    `settings` are the flat ones of the copy, or of the templates for it.
    """
    staying = [
        f"alias '{alias}' shows only a part of '{info.name}' and stays there: hybridr applies its filter to "
        f"'{destination}', other clients do not; --alias with your own alias moves it too"
        for alias in partial_aliases(info)
        if alias not in moving
    ]
    return [
        *protections_lost(cluster, info.name, destination),
        *policies_for(cluster, destination, settings),
        *staying,
        *narrow_window_warnings(info),
    ]


def notes_on_staying_aliases(earlier: Iterable[IndexInfo], alias: str) -> Iterator[str]:
    """Yield a line for each alias that an earlier reindex moved and that stays on that earlier index."""
    for info in earlier:
        for name in sorted({*moved_aliases(info)} - {alias}):
            option = f"--alias {quote(name)}"
            yield f"alias '{name}' stays on '{info.name}': the same command with {option} moves it"


def plan_remarks(
    info: IndexInfo, companions: Collection[str], carried: dict[str, Writes], target: IndexInfo | None
) -> list[str]:
    """Return remarks, a line each: settings that the new index does not get, from its source or from the
    index `target` behind the alias; aliases and writes of clients that move to the new index.
    """
    settings = ", ".join(f"index.{name}" for name in settings_not_copied(info.settings))
    lines = [f"settings that are not copied from the source: {settings}"] if settings else []
    if target is not None and is_destination_of(target, info):
        names = differing_settings(target, info)
        names += [f"index.{FINAL}"] if pipeline_difference(target, info) else []
        start = f"settings that differ in '{target.name}'; the new index gets those of '{info.name}': "
        lines += [start + ", ".join(names)] if names else []
    lines += [f"alias '{alias}', which shows only a part, moves too" for alias in companions]
    for name, writes in carried.items():
        if writes:
            lines.append(
                f"carried over from '{name}', where clients wrote: "
                f"{quantity(len(writes.changed), 'document')}, {len(writes.deleted):,} deletes; "
                f"{len(writes.conflicts):,} more were changed in the source too, which wins"
            )
        if not writes.deletes_known:
            lines.append(f"deletes by clients in '{name}' cannot be determined and are not carried over")
    return lines


def check_source(cluster: Cluster, info: IndexInfo, settings: ReindexSettings) -> None:
    """Raise ClusterError or DataError for a source index that cannot be copied with vectors."""
    if is_in_place(info):
        raise ClusterError(
            f"'{info.name}' holds its own vectors (in place)",
            hint=f"{reindex_command(info)}   continues in place; or first: hybridr remove {quote(info.name)}",
        )
    obstacles = [*alias_obstacles(cluster, info), *mapping_obstacles(info, {})]
    require_no_obstacle(obstacles, f"the entry in the mapping of '{info.name}' that names the new index")
    require_whole_source(info)
    require_no_loss(cluster, info)
    require_searchable(cluster, info)
    freeing = name_conflict_hints(settings)
    if conflicts := {ENCODER_FIELD, SEQ_NO_FIELD, *freeing} & info.properties.keys():
        raise DataError(
            f"index '{info.name}' already has a field '{min(conflicts)}'",
            hint=freeing.get(min(conflicts), "--vector-field NAME chooses another"),
        )


def index_of_job(cluster: Cluster, view: IndexView, info: IndexInfo, job: str) -> IndexInfo | None:
    """Return the index that an earlier run of this job created, or that another process is creating now; None
    if there is none.

    An index that the source does not name yet counts only while it is empty, because anybody could have
    written its documents. Not used: indices whose mapping can no longer follow the source, and indices that
    clients no longer search but that hold writes of clients.
    """

    def is_empty(claimant: IndexInfo, query: dict[str, Any] | None = None) -> bool:
        """Return whether an index holds no document that matches the query."""
        cluster.refresh(claimant.name)
        return cluster.count(claimant.name, query) == 0

    claims = []
    for claimant in claiming_indices(view, info.name):
        is_unusable = is_restored(claimant, info) or is_incompatible(info, claimant)
        if claimant.record.job != job or is_unusable:
            continue
        history = claimant.record.history  # if it is full, older events may have been dropped
        was_searched = len(history) >= MAX_EVENTS or any(event["event"] in MOVES for event in history)
        if not was_searched or is_live(claimant) or is_empty(claimant, CLIENT_WRITES):
            claims.append(claimant)
    named = [claimant for claimant in claims if is_destination_of(claimant, info)]
    unnamed = (claimant for claimant in claims if claimant.record.source_uuid == info.uuid)
    return named[0] if named else next(filter(is_empty, unnamed), None)


def view_of_plan(cluster: Cluster, todo: Plan) -> IndexView:
    """Return a view of a plan's indices: the source, all with its vectors, and the one behind the alias."""
    source = todo.record.source
    return IndexView.of(cluster, source, destination_pattern(source), todo.destination, todo.record.alias)


def check_named(named: IndexInfo, name: str, alias: str) -> None:
    """Raise ClusterError if `name` is an alias with a filter or routing, because a new alias made from its
    index would show every document.
    """
    if alias != name and (reasons := narrowing_keys(named.aliases.get(name, {}))):
        raise ClusterError(
            f"'{name}' is an alias with {' and '.join(reasons)}, but '{alias}' would show every document",
            hint=f"hybridr reindex {quote(named.name)}   then searches of '{name}' keep its filter and "
            "routing",
        )


def check_alias(view: IndexView, alias: str, info: IndexInfo, *, discard: bool) -> IndexInfo | None:
    """Check that this run may move the alias; return the index that it points to now, None if it is new.

    Raises SettingsError for an invalid alias name, ClusterError if the alias belongs to an index of another
    source that this one did not replace. Unless `discard`, ClusterError too if the source lacks what clients
    wrote behind the alias.
    """
    if INVALID_ALIAS.search(alias):
        raise SettingsError(
            f"'{alias}' cannot be an alias: it holds a blank or , \" * \\ < | > ? / # : or begins with _ - +",
            hint="--alias NAME chooses another name",
        )
    target = alias_target(view, alias)
    if target is None:
        return None
    if way := undoing_rollover(view, target):
        raise ClusterError(f"alias '{alias}' points to '{target.name}', which has no vectors", hint=way)
    if info.name not in (target.name, target.record.source) and not is_related(target, info):
        raise ClusterError(
            f"alias '{alias}' points to '{target.name}', which was not made from '{info.name}'",
            hint=f"--alias NAME chooses another name; or point it to '{info.name}' first, by POST /_aliases",
        )
    if is_unlisted(target, info) and not discard:
        require_nothing_lost(view.cluster, target, info, f"leaves them in '{target.name}'")
    return target


def require_movable(
    cluster: Cluster,
    others: Iterable[IndexInfo],
    target: IndexInfo | None,
    alias: str,
    current: IndexInfo | None,
) -> None:
    """Raise ClusterError if a block of another index would stop this run at its end: of the index `target`,
    which the alias leaves, or of `others` with vectors, whose records get the position of clients' writes.

    `current` is the index that an earlier run of this job created; it may have these writes already.
    """
    uuid = current.uuid if current else None
    changing = {info.name: info for info in others if info.record.carried_into != uuid}
    if target and target.uuid != uuid:
        changing[target.name] = target
    obstacles = [obstacle for info in changing.values() for obstacle in alias_obstacles(cluster, info)]
    require_no_obstacle(obstacles, f"the move of '{alias}' and of clients' writes")


def new_record(
    proposal: Proposal, job: str, alias: str, target: IndexInfo | None, current: IndexInfo | None
) -> Record:
    """Return the record of the new index: how its vectors are made, and the index `target` behind its alias.

    Raises DataError for an alias or a fingerprint that no record can hold.
    """
    settings = {name: proposal.info.settings.get(f"index.{name}") for name in DURING_FILL}
    previous = proposal.info.name  # a rollback returns to the index behind the alias now, else to the source
    if target is not None and is_destination_of(target, proposal.info):
        is_same = current is not None and target.name == current.name
        previous = previous_index(target, alias) if is_same else target.name
    origin = "moved" if target else "made"
    if target is not None and is_unlisted(target, proposal.info):
        origin = target.record.aliases.get(alias, origin)
    record = {
        "passages": None,  # written even without passages
        **proposal.record_fields(job, current.record if current else None),
        "state": "filling",
        "alias": alias,
        "previous": previous,
        "aliases": {alias: origin},
        "original": current.record.original if current else settings,
    }
    if models := planned_models(proposal, current):
        record["semantic"] = models
    return parse_record(record, "the new record")


def settings_after(record: Record, destination: str, current: IndexInfo | None) -> dict[str, Any]:
    """Return the settings of the index after the fill: those of the source, with the wrapper of its final
    pipeline.

    For a complete index, only those that still have the value of a fill, because a run was killed.
    """
    final = {setting: record.original.get(setting) for setting in {**DURING_FILL, **record.original}}
    if owners_pipeline(final):
        final[FINAL] = wrapper_name(destination)
    if current is None or current.record.state != "complete":
        return final
    present = {name: str(current.settings.get(f"index.{name}")) for name in DURING_FILL}
    return {name: value for name, value in final.items() if present.get(name) == str(DURING_FILL.get(name))}


def has_fill_settings(current: IndexInfo) -> bool:
    """Return whether a complete index still has a fill's setting (no refresh), as after a killed run."""
    never, original = DURING_FILL["refresh_interval"], current.record.original.get("refresh_interval")
    return bool(current.settings.get("index.refresh_interval") == never != original)


def settings_during_fill(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the values during the fill of those `settings` that a fill changes."""
    return {setting: DURING_FILL[setting] for setting in settings if setting in DURING_FILL}


def plan_details(
    destination: str, record: Record, final_settings: dict[str, Any], templates: list[str], vectors: int
) -> dict[str, Any]:
    """Return the JSON entries that only the plan of a new index has."""
    return {
        "source": record.source,
        "destination": destination,
        "alias": record.alias,
        "alias_made": record.aliases[record.alias] == "made",
        "previous": record.previous,
        "before": settings_during_fill(final_settings),
        "after": final_settings,
        "templates": templates,
        "passages": record.passages and record.passages.to_json(),
        "vector_count": vectors,
        "arithmetic": {"precision": record.precision, "backend": record.backend, "chosen": record.arithmetic},
    }


def new_index_body(proposal: Proposal, record: Record) -> dict[str, Any]:
    """Return the body that creates the new index: settings, mappings and analysis of the source, and
    hybridr's fields.

    The fields of the encoder's fingerprint and of the source's `_seq_no` are stored but not in `_source`: a
    client's partial update drops them and keeps the vector, so that stale vectors can be found.
    """
    info, source = proposal.info, proposal.info.mappings
    added = {
        **proposal.mappings,
        ENCODER_FIELD: {"type": "keyword", "store": True},
        SEQ_NO_FIELD: {"type": "long", "store": True},
    }
    kinds = [kind for kind in representations_in(proposal.settings) if kind.hidden]
    hidden = [ENCODER_FIELD, SEQ_NO_FIELD, *(name for kind in kinds for name in kind.fields(record))]
    windows = proposal.recipe.windows  # a nested object for each passage
    fields = {**source.get("properties", {}), **added}
    if record.semantic:
        fields, embeddings = semantic_fields(proposal, record.semantic, fields)
        added |= embeddings
    raised = raised_limits(info, None, added, windows.most if windows else 0)
    copied = copied_settings(info.settings)
    index = {
        **{name: value for name, value in copied.items() if name not in record.original},
        **settings_during_fill(record.original),
        "knn": True,
        **{name.removeprefix("index."): value for name, value in raised.items()},
    }
    mappings = {
        **source,
        "_source": {"excludes": hidden},
        "_meta": info.meta_with(record),
        "properties": fields,
    }
    return {"settings": {"index": index}, "mappings": mappings}


def updated_record(planned: Record, record: Record) -> Record:
    """Return the `record` of an index that an earlier run created, with the values that this run changes."""
    changes = {name: getattr(planned, name) for name in REPLANNED_FIELDS}
    return record.changed(**changes, aliases={**planned.aliases, **record.aliases})
