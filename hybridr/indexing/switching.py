"""Completes a filled index: carries over writes of clients, records it as complete, and moves the alias to
it.

A deployment that only clients use is copied to the new index; what `tune` and `learn` found stays with the
old one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from ..cluster.aliases import companion_aliases, switch_alias
from ..cluster.connection import Cluster, IndexLookup, IndexView, path_of
from ..cluster.default_pipeline import (
    DEFAULT,
    default_pipeline_settings,
    earlier_cache_setting,
    pipeline_path,
    stored_pipeline,
)
from ..cluster.destinations import (
    begin_rewrite,
    destinations,
    event_change,
    generation_number,
    is_destination_of,
    is_unlisted,
    register_destination,
    rewrite,
    rewrite_in_view,
    write_record,
)
from ..cluster.mappings import add_missing_fields, extend_copy_mapping
from ..cluster.reading import Key, Share, SourceDocument, counterparts, read_pages, settled_position
from ..cluster.record import IndexInfo
from ..cluster.record_parts import Deployment
from ..cluster.rule_versions import with_newest_rules
from ..cluster.writing import Action, bulk_action, cut_to_room, refusal_changes
from ..errors import ClusterError
from ..records import Progress, silent
from .beside_index import check_alias
from .client_writes import (
    CLIENT_WRITES,
    NOTHING_CARRIED,
    ClientWrites,
    expected_count,
    is_live,
    lacked_documents,
    own_fields,
    require_nothing_lost,
)
from .filling import MAX_PASSES, Work, fill_share, send_in_bulk
from .job import (
    Filling,
    Job,
    Meter,
    Pending,
    Stored,
    document_body,
    replacement_options,
    stored_states,
    write_over,
    written_here_mark,
)
from .planning import Plan
from .reindexing import catch_up
from .targets import Ending, Succession


class Carrier(ClientWrites):
    """Carries writes of clients from one index with vectors ("here") into another one of the same source, the
    `target`.

    Each document is written only over the state that was seen in the target. `carried_until` advances with
    each pass; `tally` collects what was carried. `incomplete` says that another pass is needed.
    """

    def __init__(
        self, job: Job, view: IndexLookup, info: IndexInfo, others: Sequence[IndexInfo], meter: Meter
    ) -> None:
        super().__init__(job.cluster, info, view)
        self.job, self.meter = job, meter
        self.others = {generation_number(source): source for source in others}
        self.target = job.destination_before
        self.rejected = False
        self.incomplete = False

    def carry_pass(self) -> Filling:
        """Copy the writes and deletes of clients since the last pass to the target; return the counts.

        Writes during the pass may be left out: then `incomplete` is True.
        """
        if self.is_idle:
            return Filling()
        settled, self.incomplete = settled_position(self.cluster, self.info), False
        view = IndexView.of(self.cluster, self.info.name, self.target.name)
        own_info, target_info = (view.index_info(index.name) for index in (self.info, self.target))
        if not is_live(target_info):  # another reindex may have moved the alias
            self.info = own_info
        add_missing_fields(self.cluster, own_info, target_info, own_fields(own_info))
        work = Work(self.pending_pages, carrying_actions, self.leave_to_next_pass)
        filling = fill_share(self.job, work, self.meter, Share(since=self.carried_until, until=settled))
        filling.from_clients = filling.encoded
        self.cluster.refresh(self.target.name)
        for page in self.deleted_pages():
            self.delete(page)
        number = generation_number(self.info)
        for page in read_pages(self.cluster, self.target.name, where=CLIENT_WRITES, fields=()):
            # A document carried from this index and no longer in it was deleted here since.
            copies = stored_states(self.cluster, self.target.name, page)
            originals = stored_states(self.cluster, self.info.name, page)
            deleted = [document for document in page if document.key not in originals]
            self.delete([d for d in deleted if d.key in copies and copies[d.key].carried_from == number])
        self.rejected = self.rejected or bool(filling.rejected)
        if not self.incomplete:
            self.carried_until = settled
        return filling

    def pending_pages(
        self, job: Job, share: Share, filling: Filling, meter: Meter
    ) -> Iterator[list[Pending]]:
        """Yield pages of documents that clients wrote here and that should replace the target's state.

        Their `seq_no` is the number that `written_here_mark` makes. Documents that the source or the target
        changed too are counted as conflicts.
        """
        for page, stored in self.written_pages(share):
            documents = [document for document in page if document.key in stored]
            originals = counterparts(self.cluster, self.source_info, documents)
            changed_keys = set[Key]()
            if not self.source_restored:
                changed_keys = self.changed_in_source([d for d in documents if d.key in originals])
            targets, pending, contested = stored_states(self.cluster, self.target.name, documents), [], []
            for document in documents:
                key, state = document.key, stored[document.key]
                original, target = originals.get(key), targets.get(key)
                content = document._replace(source=self.content_of(document))
                is_changed = key in changed_keys if self.synced else None
                if not self.source_restored and not client_wins(state, original, is_changed):
                    if original is not None and original.source != content.source:
                        self.tally.conflicts.add(key)
                    continue
                if target is not None and target.written_here and not self.is_older(document, state, target):
                    if not (state.carried_from and target.carried_from):
                        contested.append(content)
                    continue
                mark = written_here_mark(original.seq_no if original else -1, generation_number(self.info))
                pending.append(Pending(content._replace(seq_no=mark), target))
            if contested:
                contested = lacked_documents(self.cluster, self.target, contested)
                self.tally.conflicts |= {document.key for document in contested}
            self.tally.changed |= {entry.document.key for entry in pending}
            self.tally.conflicts -= {entry.document.key for entry in pending}
            if pending:
                yield pending

    def is_older(self, document: SourceDocument, own_state: Stored, target: Stored) -> bool:
        """Return whether the target's document is an earlier state of this one: it was carried there from
        this index, directly or through others, and no client changed it there since.
        """
        if not target.carried_from:
            return False
        if is_live(self.info):
            return (
                own_state.carried_from in (0, generation_number(self.info))
                or target.carried_from != own_state.carried_from
            )
        number, visited = target.carried_from, {generation_number(self.target)}
        while number not in visited:
            if number == generation_number(self.info):
                return True
            visited.add(number)
            if number not in self.others:
                return False
            state = stored_states(self.cluster, self.others[number].name, [document]).get(document.key)
            number = state.carried_from if state else 0
        return False

    def leave_to_next_pass(self, job: Job, page: list[Pending], filling: Filling) -> None:
        """Leave documents that another writer changed first to the next pass."""
        self.incomplete = True

    def delete(self, gone: Sequence[SourceDocument]) -> None:
        """Delete documents that clients deleted here from the target, unless clients wrote them there."""
        states = stored_states(self.cluster, self.target.name, gone)
        self.tally.deleted |= {document.key for document in gone if document.key not in states}
        number = generation_number(self.info)
        copies = [
            document
            for document in gone
            if (copy := states.get(document.key)) and (not copy.written_here or copy.carried_from == number)
        ]
        actions = [
            bulk_action("delete", d.doc_id, routing=d.routing, **replacement_options(states[d.key]))
            for d in copies
        ]
        if send_in_bulk(self.job, actions).conflicts:
            self.incomplete = True
        else:
            self.tally.deleted |= {document.key for document in copies}

    def record(self) -> None:
        """Write the last carried operation into this index's record, unless documents were rejected or the
        record cannot hold all conflicts.
        """
        ids = {doc_id for doc_id, _ in self.tally.conflicts}
        contested = cut_to_room(ids)
        if self.carried_until is None or self.rejected or len(contested) < len(ids):
            return
        carried = {"carried": self.carried_until.seq_no, "carried_into": self.target.uuid}
        changes = carried | {"not_carried": contested}
        record = self.cluster.index_info(self.info.name).record
        if any(getattr(record, name) != value for name, value in changes.items()):
            write_record(self.cluster, self.info.name, **changes)


def client_wins(stored: Stored, original: SourceDocument | None, source_changed: bool | None) -> bool:
    """Return whether a client's document wins over the source's document `original`.

    It wins if the source did not change its document since hybridr saw it, or since the last round where
    hybridr has not seen it yet (`source_changed`; None if unknown: then the higher version wins). A document
    that the source deleted loses; one that the source never had wins.
    """
    if original is None:
        return not stored.came_from_source
    if stored.source_seq_no is not None:
        return stored.source_seq_no >= original.seq_no
    if source_changed is None:
        return stored.version > original.version
    return not source_changed


def carrying_actions(job: Job, page: list[Pending]) -> list[Action]:
    """Return bulk actions that write each document over the state that was seen in the target."""
    return [write_over(pending.document, document_body(job, pending), pending.stored) for pending in page]


@dataclass
class Convoy:
    """The carriers from all other indices with vectors into the new one, that of the searched one first."""

    carriers: list[Carrier]
    meter: Meter

    @classmethod
    def of(
        cls,
        job: Job,
        view: IndexLookup,
        current: IndexInfo | None,
        *,
        left_only: bool = False,
        progress: Progress = silent,
    ) -> Convoy:
        """Return a carrier of clients' writes for every index with vectors of the job's source.

        `current` is the index that clients search. With `left_only`, only indices that clients do not search
        are carried.
        """
        generations = destinations(view, view.index_info(job.source))
        others = [
            info for info in generations if info.name != job.destination and not (left_only and is_live(info))
        ]
        others.sort(key=lambda generation: current is None or generation.uuid != current.uuid)
        meter = Meter(progress, None, "carry clients' writes")
        return cls([Carrier(job, view, info, generations, meter) for info in others], meter)

    def add_carriers(self, job: Job, view: IndexLookup) -> bool:
        """Add carriers for indices with vectors that were made meanwhile; return whether there were any."""
        carried = {job.destination, *(carrier.info.name for carrier in self.carriers)}
        generations = destinations(view, view.index_info(job.source))
        new = [info for info in generations if info.name not in carried]
        self.carriers += [Carrier(job, view, info, generations, self.meter) for info in new]
        for carrier in self.carriers:
            carrier.others = {generation_number(info): info for info in generations}
        return bool(new)

    def carry(self) -> Filling:
        """Copy writes of clients from all other indices, in passes until complete; return the counts."""
        total = Filling()
        for carrier in self.carriers:
            for _ in range(MAX_PASSES):
                total.add(carrier.carry_pass())
                if not carrier.incomplete:
                    break
        return total

    def record(self) -> None:
        """Write the last carried operation into the record of each index."""
        for carrier in self.carriers:
            carrier.record()

    @property
    def deleted(self) -> set[str]:
        """Return the ids of documents that clients deleted in the other indices."""
        return {doc_id for carrier in self.carriers for doc_id, _ in carrier.tally.deleted}

    def counts(self) -> dict[str, int]:
        """Return how many documents were carried, deleted, and left because both sides changed them."""
        tallies = [carrier.tally for carrier in self.carriers]
        names = ("changed", "deleted", "conflicts")
        return {name: sum(len(getattr(tally, name)) for tally in tallies) for name in names}


def prepare_completion(
    job: Job, todo: Plan, filling: Filling, deleted: Collection[str], view: IndexView
) -> tuple[IndexInfo, Callable[[], IndexView]]:
    """Restore the settings of a filled index, check its count of documents, and begin to record it as
    complete.

    `deleted` are ids that clients deleted. Returns the new description and the function of `begin_rewrite`,
    which ends the write. Raises ClusterError if the counts differ. An index that clients search, or whose
    source was written meanwhile, is not counted; its ids are compared later.
    """
    info = view.index_info(todo.destination)
    cluster, destination = job.cluster, todo.destination
    if not todo.live:
        restoring = todo.requests[-2]
        cluster.request(restoring["method"], restoring["path"], restoring["body"])
    cluster.refresh(destination)
    count, refused = cluster.count(destination), job.rejects.ids()
    expected = expected_count(cluster, info, {*refused, *deleted})
    is_changing = is_live(info) or (
        filling.settled and settled_position(cluster, job.source_before, filling.until) != filling.until
    )
    if count != expected and not is_changing:
        raise ClusterError(
            f"'{destination}' holds {count} documents, {expected} are expected from '{job.source}' "
            f"({len(refused)} were refused, {len(deleted)} deleted by clients): the alias was not switched",
            hint="run the same command again",
        )
    changes = refusal_changes(info, refused, refused if job.settings.accept_rejects else ()) | {
        "state": "complete",
        "synced": filling.until.seq_no if filling.settled else None,
    }
    changes |= {"taken": {}} if info.record.taken else {}
    details = {"documents": count, "encoded": filling.encoded, "deleted": filling.deleted}
    return begin_rewrite(view, destination, event_change("filled", details, **changes))


def tuned_predecessor(target: IndexInfo | None, destination: str) -> str | None:
    """Return the name of the index that has the alias, if it is another index and was tuned, has learnt or
    has a running experiment; else None.
    """
    if target is None or target.name == destination:
        return None
    tuned, experiment = target.record.tuning, target.record.experiment
    is_tuned = target.record.memory or (tuned and tuned.gains) or (experiment and not experiment.ended)
    return target.name if is_tuned else None


def move_alias(job: Job, todo: Plan, filling: Filling, convoy: Convoy, view: IndexView) -> Ending:
    """Move the alias and the deployment to the new index, and record that.

    `view` is a fresh snapshot, because the alias or the source's record may have changed during the fill. A
    last pass copies writes right before the alias moves, and another one right after it those that were under
    way. Raises ClusterError as `check_alias` does.
    """
    cluster, alias = job.cluster, todo.record.alias
    source, info = view.index_info(job.source), view.index_info(todo.destination)
    target = check_alias(view, alias, source, discard=job.settings.discard)
    alias_moves = target is not None and target.name != todo.destination
    deployment = None
    earlier = target if target is not None and is_unlisted(target, source) else None
    if earlier is not None and (former_deployment := earlier.record.deployment):
        deployment = Succession(former_deployment.way, None, deploy_command(info, former_deployment))
    if target is not None and alias_moves and is_destination_of(target, source):
        deployment = copy_deployment(cluster, target, info)
        if target.record.rules or info.record.rules:  # rules belong to the source: the newest ones hold
            rewrite(cluster, info.name, with_newest_rules(cluster, info, target.record.rules), settled=True)
        view = view.fetch_again()  # the snapshot is old by now
        info = view.index_info(info.name)
    register_destination(cluster, info, view)
    extend_copy_mapping(cluster, source, info)  # the source's mapping may have changed without a new document
    convoy.add_carriers(job, view)
    info = final_pass(job, filling, convoy, info)
    companions = companion_aliases(alias, target, info.name, source)
    switch_alias(cluster, alias, target, info.name, source)
    info = final_pass(job, filling, convoy, info)
    if target is None or alias_moves:
        origin = target.name if target else None
        event = {"alias": alias, "from": origin, "back_to": todo.record.previous}
        event |= {"along": ", ".join(companions)} if companions else {}
        if info.record != view.index_info(info.name).record:  # the last pass wrote it
            view = view.fetch_again()
        switched = event_change("switched", event, **NOTHING_CARRIED)
        view = rewrite_in_view(view, info.name, switched)
        info = view.index_info(info.name)
        if convoy.add_carriers(job, view):  # another run had made the alias meanwhile
            info = final_pass(job, filling, convoy, info)
    if earlier is not None and not job.settings.discard:
        require_nothing_lost(
            cluster, earlier, source, f"leaves them in '{earlier.name}'"
        )  # written meanwhile
    tuned_before = tuned_predecessor(target, info.name)
    return Ending(filling.rejected, True, deployment, tuned_before, companions, convoy.counts(), info)


def final_pass(job: Job, filling: Filling, convoy: Convoy, info: IndexInfo) -> IndexInfo:
    """Copy what the source and clients wrote since the last pass into `info`; return its new description."""
    if filling.settled:
        more, info = catch_up(job, info)
        filling.add(more)
    filling.add(convoy.carry())
    convoy.record()
    return info


def copy_deployment(cluster: Cluster, old: IndexInfo, new: IndexInfo) -> Succession | None:
    """Copy the deployment of the old index, which has the alias, to the new one; return what became of it.

    Only a deployment of the way `client` can be copied: models make vectors of the old index's encoder. For
    others the result holds the command to run. The old index keeps its own deployment for a rollback. Returns
    None if the old index is not deployed, or the new one already is.
    """
    deployment, pipeline = old.record.deployment, f"hybridr-{new.name}"
    default = new.settings.get(DEFAULT, "_none")
    if not deployment or (new.record.deployment and default == pipeline):
        return None
    body, has_other = stored_pipeline(cluster, deployment.pipeline), default not in ("_none", pipeline)
    if deployment.way != "client" or body is None or has_other:
        return Succession(deployment.way, None, deploy_command(new, deployment))
    copied = {"pipeline": pipeline, "cache_before": earlier_cache_setting(new)}
    write_record(cluster, new.name, deployment=deployment.model_copy(update=copied))
    cluster.request("PUT", pipeline_path(pipeline), body)
    cluster.request("PUT", path_of(new.name, "_settings"), default_pipeline_settings(pipeline))
    return Succession(deployment.way, pipeline, None)


def deploy_command(info: IndexInfo, deployment: Deployment) -> str:
    """Return the command line that deploys an index as in the given deployment."""
    server = f" --server {shlex.quote(deployment.server)}" if deployment.server else ""
    boost = f" --boost {shlex.quote(deployment.boost)}" if deployment.boost else ""
    recall = f" --recall {shlex.quote(deployment.recall)}" if deployment.recall else ""
    name = info.record.source or info.name
    return f"hybridr deploy {shlex.quote(name)} --way {shlex.quote(deployment.way)}{server}{recall}{boost}"
