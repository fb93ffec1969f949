"""What follows when a new index is filled: it is recorded as complete, and its alias moves to it.

A deployment that only clients use comes along; what `tune` and `learn` found stays where it was found.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection

from ..cluster.connection import Cluster, IndexView, path_of
from ..cluster.default_pipeline import DEFAULT, asked_through, found_pipeline, pipeline_path
from ..cluster.destinations import (
    companions,
    is_known_by,
    name_destination,
    refusals,
    rewritten,
    rewritten_later,
    switch,
    with_event,
    write_record,
)
from ..cluster.mappings import carry_over
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
from .targets import Ending, Succession


def finish(
    job: Job, todo: Plan, filling: Filling, deleted: Collection[str], view: IndexView
) -> tuple[IndexInfo, Callable[[], IndexView]]:
    """Restore the original settings, check that every document is there, and record how far the source is in.

    `deleted` were deleted by clients. Return as `rewritten_later`. Raise ClusterError when the counts differ;
    the alias then stays where it is. In an index that clients search, counts move: there every id is
    compared, later.
    """
    info = view.index_info(todo.destination)
    cluster, destination, restoring = job.cluster, todo.destination, todo.requests[2]
    cluster.request(restoring["method"], restoring["path"], restoring["body"])
    cluster.refresh(destination)
    count, refused = cluster.count(destination), job.rejects.ids()
    expected = expected_count(cluster, info, {*refused, *deleted})
    moves = is_live(info) or (
        filling.settled and settled_position(cluster, job.source_before) != filling.until
    )
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
    return rewritten_later(view, destination, with_event("filled", details, **changes))


def tuned_predecessor(target: IndexInfo | None, destination: str) -> str | None:
    """Name the index that has the alias now if it is another one, and was tuned or has learnt: that stays
    with it."""
    if target is None or target.name == destination:
        return None
    tuned = target.record.tuning
    is_tuned = target.record.memory is not None or (tuned is not None and tuned.gains)
    return target.name if is_tuned else None


def take_over(job: Job, todo: Plan, filling: Filling, convoy: Convoy, view: IndexView) -> Ending:
    """Move the alias to the destination, with the deployment, and record it when it moved.

    All is looked at once more, since somebody may have given the alias away, or written over what names the
    destination, while it was filled and verified: `view` was taken just now. What was written since the last
    pass comes in right before the switch, and what is under way right after.
    """
    cluster, alias = job.cluster, todo.record.alias
    source, info = view.index_info(job.source), view.index_info(todo.destination)
    target = check_alias(view, alias, source)
    moves = target is not None and target.name != todo.destination
    deployment = None
    if target is not None and moves and is_known_by(target, source):
        deployment = hand_over(cluster, target, info)
        if target.record.rules:
            write_record(cluster, info.name, rules=target.record.rules)  # of the source, whoever ranks
        view = view.again()  # time has passed
        info = view.index_info(info.name)
    name_destination(cluster, info, view)
    carry_over(cluster, source, info)  # its mapping may have changed without a document
    info = bring_in(job, filling, convoy, info)
    along = companions(alias, target, info.name, source)
    switch(cluster, alias, target, info.name, source)
    info = bring_in(job, filling, convoy, info)
    if target is None or moves:
        origin = target.name if target else None
        event = {"alias": alias, "from": origin} | ({"along": ", ".join(along)} if along else {})
        if info.record != view.index_info(info.name).record:  # it was written since
            view = IndexView.of(cluster, info.name)
        switched = with_event("switched", event, **NOTHING_CARRIED)
        info = rewritten(view, info.name, switched).index_info(info.name)
    tuned_before = tuned_predecessor(target, info.name)
    return Ending(filling.rejected, True, deployment, tuned_before, along, convoy.counts(), info)


def bring_in(job: Job, filling: Filling, convoy: Convoy, info: IndexInfo) -> IndexInfo:
    """Bring in what the source took and what clients wrote elsewhere since the last pass, and record that.

    `info` is the destination as it is now; it is returned as it is afterwards.
    """
    if filling.settled:
        more, info = catch_up(job, info)
        filling.add(more)
    with unchanged_writes(job.cluster, info):
        filling.add(convoy.carry())
    convoy.record()
    return info


def hand_over(cluster: Cluster, old: IndexInfo, new: IndexInfo) -> Succession | None:
    """Give an index, before it gets the alias, the deployment of the one that has it now.

    Only what clients alone use can be copied: a model asks for vectors of the old index's encoder. The old
    index keeps its own, for a rollback. None where nothing is deployed, or the new index is already.
    """
    deployment = old.record.deployment
    if not deployment or new.record.deployment:
        return None
    pipeline, body = f"hybridr-{new.name}", found_pipeline(cluster, deployment.pipeline)
    taken = new.settings.get(DEFAULT, "_none") not in ("_none", pipeline)
    if deployment.way != "client" or body is None or taken:
        return Succession(deployment.way, None, command_of(new, deployment))
    cluster.request("PUT", pipeline_path(pipeline), body)
    cluster.request("PUT", path_of(new.name, "_settings"), asked_through(pipeline))
    write_record(cluster, new.name, deployment=deployment.model_copy(update={"pipeline": pipeline}))
    return Succession(deployment.way, pipeline, None)


def command_of(info: IndexInfo, deployment: Deployment) -> str:
    """Give the command that deploys an index as a record says."""
    server = f" --server {shlex.quote(deployment.server)}" if deployment.server else ""
    boost = f" --boost {shlex.quote(deployment.boost)}" if deployment.boost else ""
    name = shlex.quote(info.record.source or info.name)
    return f"hybridr deploy {name} --way {shlex.quote(deployment.way)}{server}{boost}"
