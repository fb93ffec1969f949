"""What follows when a new index is filled: it is recorded as complete, and its alias moves to it.

A deployment that only clients use comes along; what `tune` and `learn` found stays where it was found.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ..cluster.connection import Cluster, Describing, IndexView, path_of
from ..cluster.default_pipeline import DEFAULT, asked_through, found_pipeline, pipeline_path
from ..cluster.destinations import (
    begin_rewrite,
    companions,
    destinations,
    is_known_by,
    name_destination,
    number_of,
    rewrite_in_view,
    switch,
    with_event,
    write_record,
)
from ..cluster.mappings import add_missing_fields, carry_over
from ..cluster.reading import Share, SourceDocument, documents_by_id, read_pages, settled_position
from ..cluster.record import IndexInfo
from ..cluster.record_parts import Deployment
from ..cluster.writing import Action, delete_action, index_action, refusals, with_room
from ..errors import ClusterError
from ..records import Progress, silent
from .beside_index import check_alias
from .client_writes import (
    NOTHING_CARRIED,
    WRITTEN,
    ClientWrites,
    OtherIndex,
    expected_count,
    is_live,
    own_fields,
)
from .filling import MAX_PASSES, Work, deliver, fill_share
from .job import (
    Filling,
    Job,
    Meter,
    Pending,
    Stored,
    body_of,
    look_up,
    replacement_options,
    written_here_mark,
)
from .planning import Plan
from .syncing import catch_up, unchanged_writes
from .targets import Ending, Succession


class Carrier(ClientWrites):
    """Carries what clients did in one index with vectors into another one of the same source.

    Each document is written only over the state that was seen there. `since` moves on with each pass, and
    `done` says what was carried into it.
    """

    def __init__(
        self, job: Job, view: Describing, info: IndexInfo, others: Sequence[IndexInfo], meter: Meter
    ) -> None:
        super().__init__(job.cluster, info, view)
        self.job, self.meter = job, meter
        self.others = {number_of(source): source for source in others}
        self.target = job.destination_before
        self.rejected = False
        self.missed = False

    def carry_pass(self) -> Filling:
        """Copy what clients wrote and deleted since the last pass to the other index; return the counts.

        What they write during the pass may be left out: then `missed` asks for another pass.
        """
        if self.is_idle:
            return Filling()
        settled, self.missed = settled_position(self.cluster, self.info), False
        view = IndexView.of(self.cluster, self.info.name, self.target.name)
        here, there = (view.index_info(index.name) for index in (self.info, self.target))
        add_missing_fields(self.cluster, here, there, own_fields(self.info))
        work = Work(self.pending_pages, carrying_actions, self.leave_to_next_pass)
        filling = fill_share(self.job, work, self.meter, Share(since=self.since, until=settled))
        filling.from_clients = filling.encoded
        self.cluster.refresh(self.target.name)
        for page in self.gone():
            self.delete(page)
        number = number_of(self.info)
        for page in read_pages(self.cluster, self.target.name, where=WRITTEN, fields=()):
            # What was carried from here and is no longer here was deleted since.
            copies, held = (look_up(self.cluster, index.name, page) for index in (self.target, self.info))
            lost = [document for document in page if document.doc_id not in held]
            self.delete([d for d in lost if d.doc_id in copies and copies[d.doc_id].carried_from == number])
        self.rejected = self.rejected or bool(filling.rejected)
        if not self.missed:
            self.since = settled
        return filling

    def pending_pages(
        self, job: Job, share: Share, filling: Filling, meter: Meter
    ) -> Iterator[list[Pending]]:
        """Read what clients wrote, and leave out what must not go over the state that the target has.

        Each document gets the mark that it will bear.
        """
        for page, stored in self.written_pages(share):
            documents = [document for document in page if document.doc_id in stored]
            doc_ids = [document.doc_id for document in documents]
            there = documents_by_id(self.cluster, self.source_info, doc_ids)
            newer = self.changed_in_source(list(there)) if not self.restored else set()
            targets, pending, contested = look_up(self.cluster, self.target.name, documents), [], []
            for document in documents:
                doc_id, mine = document.doc_id, stored[document.doc_id]
                original, target = there.get(doc_id), targets.get(doc_id)
                content = document._replace(source=self.content_of(document))
                if not self.restored and not prevails(mine, original, doc_id in newer):
                    if original is not None and original.source != content.source:
                        self.done.conflicts.add(doc_id)
                    continue
                if target is not None and target.written_here and not self.is_older(document, mine, target):
                    if not (mine.carried_from and target.carried_from):
                        contested.append(content)
                    continue
                mark = written_here_mark(original.seq_no if original else -1, number_of(self.info))
                pending.append(Pending(content._replace(seq_no=mark), target))
            if contested:
                index = OtherIndex(self.cluster, self.target)
                self.done.conflicts |= {document.doc_id for document in index.without(contested)}
            self.done.changed |= {entry.document.doc_id for entry in pending}
            self.done.conflicts -= {entry.document.doc_id for entry in pending}
            if pending:
                yield pending

    def is_older(self, document: SourceDocument, mine: Stored, target: Stored) -> bool:
        """Return whether the target's document was carried there and no client wrote it since.

        It may have come through other indices, which then must have it as it was carried to them.
        """
        if not target.carried_from:
            return False
        if is_live(self.info):
            return mine.carried_from in (0, number_of(self.info)) or target.carried_from != mine.carried_from
        number, seen = target.carried_from, {number_of(self.target)}
        while number not in seen:
            if number == number_of(self.info):
                return True
            seen.add(number)
            if number not in self.others:
                return False
            there = look_up(self.cluster, self.others[number].name, [document]).get(document.doc_id)
            number = there.carried_from if there else 0
        return False

    def leave_to_next_pass(self, job: Job, page: list[Pending], filling: Filling) -> None:
        """Leave what somebody wrote first to the next pass."""
        self.missed = True

    def delete(self, gone: Sequence[SourceDocument]) -> None:
        """Delete from the target what clients deleted here, unless somebody wrote it there."""
        there = look_up(self.cluster, self.target.name, gone)
        self.done.deleted |= {document.doc_id for document in gone if document.doc_id not in there}
        number = number_of(self.info)
        actions = []
        for document in gone:
            state = there.get(document.doc_id)
            if state is not None and (not state.written_here or state.carried_from == number):
                options = replacement_options(state)
                actions.append(delete_action(document.doc_id, routing=document.routing, **options))
        if deliver(self.job, actions).conflicts:
            self.missed = True
        else:
            self.done.deleted |= {action.doc_id for action in actions}

    def record(self) -> None:
        """Write down how far this index was carried, unless something was refused or has no room."""
        contested = with_room(self.done.conflicts)
        if self.since is None or self.rejected or len(contested) < len(self.done.conflicts):
            return
        changes = {"carried": self.since.seq_no, "carried_into": self.target.uuid, "not_carried": contested}
        record = self.cluster.index_info(self.info.name).record
        if any(getattr(record, name) != value for name, value in changes.items()):
            write_record(self.cluster, self.info.name, **changes)


def prevails(stored: Stored, original: SourceDocument | None, newer: bool) -> bool:
    """Return whether a client's document stays although the source has another, as in `is_current`.

    `newer`: the source changed it since the last round.
    """
    if original is None:
        return not stored.came_from_source
    if stored.source_seq_no is None:
        return not newer or stored.version > original.version
    return stored.source_seq_no >= original.seq_no


def carrying_actions(job: Job, page: list[Pending]) -> list[Action]:
    """Write each document over the state that was seen in the target."""
    return [
        index_action(
            pending.document.doc_id,
            body_of(job, pending),
            routing=pending.document.routing,
            **replacement_options(pending.stored),
        )
        for pending in page
    ]


@dataclass
class Convoy:
    """The carriers from all other indices with vectors into one; the searched index goes first."""

    carriers: list[Carrier]

    @classmethod
    def of(
        cls,
        job: Job,
        view: Describing,
        current: IndexInfo | None,
        *,
        left_only: bool = False,
        progress: Progress = silent,
    ) -> Convoy:
        """Find the indices to carry from in a view; `current` is the one that clients search."""
        generations = destinations(view, view.index_info(job.source))
        others = [
            info for info in generations if info.name != job.destination and not (left_only and is_live(info))
        ]
        others.sort(key=lambda generation: current is None or generation.uuid != current.uuid)
        meter = Meter(progress, None, "carry clients' writes")
        return cls([Carrier(job, view, info, generations, meter) for info in others])

    def carry(self) -> Filling:
        """Copy client writes of all other indices, in passes until none is missed; return the counts."""
        total = Filling()
        for carrier in self.carriers:
            for _ in range(MAX_PASSES):
                total.add(carrier.carry_pass())
                if not carrier.missed:
                    break
        return total

    def record(self) -> None:
        """Write down how far each index was carried."""
        for carrier in self.carriers:
            carrier.record()

    @property
    def deleted(self) -> set[str]:
        """Return the documents that clients deleted elsewhere."""
        return {doc_id for carrier in self.carriers for doc_id in carrier.done.deleted}

    def counts(self) -> dict[str, int]:
        """Return how many documents were carried, deleted, and left because both sides changed them."""
        parts = [carrier.done for carrier in self.carriers]
        names = ("changed", "deleted", "conflicts")
        return {name: sum(len(getattr(part, name)) for part in parts) for name in names}


def finish(
    job: Job, todo: Plan, filling: Filling, deleted: Collection[str], view: IndexView
) -> tuple[IndexInfo, Callable[[], IndexView]]:
    """Restore the original settings, check that every document is there, and record how far the source is in.

    `deleted` were deleted by clients. Return as `begin_rewrite`. Raise ClusterError when the counts differ;
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
    return begin_rewrite(view, destination, with_event("filled", details, **changes))


def tuned_predecessor(target: IndexInfo | None, destination: str) -> str | None:
    """Name the index that has the alias now if it is another one, and was tuned or has learnt: that stays
    with it."""
    if target is None or target.name == destination:
        return None
    tuned = target.record.tuning
    return target.name if target.record.memory or (tuned and tuned.gains) else None


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
        info = rewrite_in_view(view, info.name, switched).index_info(info.name)
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
    """Return an index, before it gets the alias, the deployment of the one that has it now.

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
    """Return the command that deploys an index as a record says."""
    server = f" --server {shlex.quote(deployment.server)}" if deployment.server else ""
    boost = f" --boost {shlex.quote(deployment.boost)}" if deployment.boost else ""
    name = shlex.quote(info.record.source or info.name)
    return f"hybridr deploy {name} --way {shlex.quote(deployment.way)}{server}{boost}"
