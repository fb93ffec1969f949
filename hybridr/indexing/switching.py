"""What follows when a new index is filled: it is recorded as complete, and its alias moves to it.

A deployment that only clients use comes along; what `tune` and `learn` found stays where it was found.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection

from ..cluster.aliases import alias_target, companions, switch
from ..cluster.connection import Cluster, path_of
from ..cluster.default_pipeline import DEFAULT, asked_through, found_pipeline, pipeline_path
from ..cluster.destinations import (
    is_known_by,
    name_destination,
    record_event,
    refusals,
    write_record,
)
from ..cluster.reading import settled_position
from ..cluster.record import IndexInfo
from ..cluster.record_parts import Deployment
from ..errors import ClusterError
from .beside_index import check_alias
from .carrying import Convoy
from .client_writes import NOTHING_CARRIED, expected_count, is_live
from .job import Filling, Job
from .planning import Plan
from .syncing import catch_up, unchanged_writes
from .targets import Succession


def finish(job: Job, todo: Plan, filling: Filling, deleted: Collection[str]) -> None:
    """Restore the original settings, check that every document is there, and record how far the source is in.

    `deleted` were deleted by clients. Raises ClusterError when the counts differ; the alias then stays where
    it is. In an index that clients search, counts move: there every id is compared, later.
    """
    cluster, destination, restoring = job.cluster, todo.destination, todo.requests[2]
    cluster.request(restoring["method"], restoring["path"], restoring["body"])
    cluster.refresh(destination)
    info, count = cluster.index_info(destination), cluster.count(destination)
    refused = job.rejects.ids()
    expected = expected_count(cluster, info, {*refused, *deleted})
    moves = is_live(info) or (filling.settled and settled_position(cluster, job.source) != filling.until)
    if count != expected and not moves:
        raise ClusterError(
            f"'{destination}' holds {count} documents, {expected} are expected from '{job.source}' "
            f"({len(refused)} were refused, {len(deleted)} deleted by clients): the alias was not switched",
            hint="run the same command again",
        )
    changes = refusals(info, refused, refused if job.settings.accept_rejects else ()) | {
        "state": "complete",
        "synced": filling.until.seq_no if filling.settled else None,
    }
    changes |= {"taken": {}} if info.record.taken else {}
    details = {"documents": count, "encoded": filling.encoded, "deleted": filling.deleted}
    record_event(cluster, destination, "filled", details, **changes)


def tuned_predecessor(cluster: Cluster, todo: Plan) -> str | None:
    """Name the index that has the alias now if it is another one, and was tuned or has learnt: that stays
    with it."""
    target = alias_target(cluster, todo.record.alias)
    if target is None or target.name == todo.destination:
        return None
    tuned = target.record.tuning
    is_tuned = target.record.memory is not None or (tuned is not None and tuned.gains)
    return target.name if is_tuned else None


def take_over(
    job: Job, todo: Plan, filling: Filling, convoy: Convoy
) -> tuple[Succession | None, tuple[str, ...]]:
    """Move the alias to the destination, with the deployment, and record it when it moved.

    Gives what became of the deployment, and the aliases that went along.

    What was written since the last pass comes in right before, and what is under way right after.
    """
    cluster, alias = job.cluster, todo.record.alias
    source = cluster.index_info(job.source)
    target = check_alias(cluster, alias, source)  # somebody may have given it away meanwhile
    moves = target is not None and target.name != todo.destination
    followed = target is not None and moves and is_known_by(target, source)
    deployment = hand_over(cluster, target, todo.destination) if target is not None and followed else None
    if target is not None and followed and target.record.rules:
        write_record(cluster, todo.destination, rules=target.record.rules)  # of the source, whoever ranks
    name_destination(cluster, cluster.index_info(todo.destination))  # another run may have overwritten it
    bring_in(job, filling, convoy)
    along = companions(alias, target, todo.destination, source)
    switch(cluster, alias, target, todo.destination, source)
    bring_in(job, filling, convoy)
    if target is None or moves:
        origin = target.name if target else None
        event = {"alias": alias, "from": origin} | ({"along": ", ".join(along)} if along else {})
        record_event(cluster, todo.destination, "switched", event, **NOTHING_CARRIED)
    return deployment, along


def bring_in(job: Job, filling: Filling, convoy: Convoy) -> None:
    """Bring in what the source took and what clients wrote elsewhere since the last pass, and record that."""
    if filling.settled:
        filling.add(catch_up(job))
    with unchanged_writes(job.cluster, job.cluster.index_info(job.destination)):
        filling.add(convoy.carry())
    convoy.record()


def hand_over(cluster: Cluster, old: IndexInfo, new: str) -> Succession | None:
    """Give an index, before it gets the alias, the deployment of the one that has it now.

    Only what clients alone use can be copied: a model asks for vectors of the old index's encoder. The old
    index keeps its own, for a rollback. None where nothing is deployed, or the new index is already.
    """
    deployment, target = old.record.deployment, cluster.index_info(new)
    if not deployment or target.record.deployment:
        return None
    pipeline, body = f"hybridr-{new}", found_pipeline(cluster, deployment.pipeline)
    taken = target.settings.get(DEFAULT, "_none") not in ("_none", pipeline)
    if deployment.way != "client" or body is None or taken:
        return Succession(deployment.way, None, command_of(target, deployment))
    cluster.request("PUT", pipeline_path(pipeline), body)
    cluster.request("PUT", path_of(new, "_settings"), asked_through(pipeline))
    write_record(cluster, new, deployment=deployment.model_copy(update={"pipeline": pipeline}))
    return Succession(deployment.way, pipeline, None)


def command_of(info: IndexInfo, deployment: Deployment) -> str:
    """Give the command that deploys an index as a record says."""
    server = f" --server {shlex.quote(deployment.server)}" if deployment.server else ""
    boost = f" --boost {shlex.quote(deployment.boost)}" if deployment.boost else ""
    name = shlex.quote(info.record.source or info.name)
    return f"hybridr deploy {name} --way {shlex.quote(deployment.way)}{server}{boost}"
