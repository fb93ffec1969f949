"""Carries what clients wrote in other indices with vectors into the one that takes their place.

The state that a client sees afterwards is the one that a `sync` of the other index would have given: of a
document that its source changed as well, the source's state is taken, and the document is a conflict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..cluster.connection import Describing, IndexView
from ..cluster.destinations import destinations, number_of, with_room, write_record
from ..cluster.mappings import add_missing_fields
from ..cluster.reading import Share, SourceDocument, documents_by_id, read_pages, settled_position
from ..cluster.record import IndexInfo
from ..cluster.writing import Action, delete_action, index_action
from ..records import Progress, silent
from .client_writes import WRITTEN, ClientWrites, OtherIndex, content_of, is_live, own_fields
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


@dataclass
class Carried:
    """What was carried into an index: ids that were written there, deleted there, or left as conflicts."""

    changed: set[str]
    deleted: set[str]
    conflicts: set[str]

    def counts(self) -> dict[str, int]:
        """Return the numbers as JSON values."""
        return {
            "changed": len(self.changed),
            "deleted": len(self.deleted),
            "conflicts": len(self.conflicts),
        }


class Carrier(ClientWrites):
    """Carries what clients did in one index with vectors into another one of the same source.

    Each document is written only over the state that was seen there. `since` moves on with each pass.
    """

    def __init__(
        self, job: Job, view: Describing, info: IndexInfo, others: Sequence[IndexInfo], meter: Meter
    ) -> None:
        super().__init__(job.cluster, info, view)
        self.job, self.meter = job, meter
        self.others = {number_of(source): source for source in others}
        self.target = job.destination_before
        self.carried = Carried(set(), set(), set())
        self.rejected = False
        self.missed = False

    def carry(self) -> Filling:
        """Carry what happened since the last pass; return the counts."""
        if self.is_idle:
            return Filling()
        settled, self.missed = settled_position(self.cluster, self.info), False
        view = IndexView.of(self.cluster, self.info.name, self.target.name)
        here, there = (view.index_info(index.name) for index in (self.info, self.target))
        add_missing_fields(self.cluster, here, there, own_fields(self.info))
        work = Work(self.pending_pages, carrying_actions, self.settle)
        filling = fill_share(self.job, work, self.meter, Share(since=self.since, until=settled))
        filling.from_clients = filling.encoded
        self.cluster.refresh(self.target.name)
        for page in self.gone():
            self.delete(page)
        self.delete_since_carried()
        self.rejected = self.rejected or bool(filling.rejected)
        if not self.missed:
            self.since = settled
        return filling

    def pending_pages(
        self, job: Job, share: Share, filling: Filling, meter: Meter
    ) -> Iterator[list[Pending]]:
        """Read what clients wrote, and leave out what must not go over the state that the target has."""
        for page, stored in self.written_pages(share):
            if pending := self.to_carry([d for d in page if d.doc_id in stored], stored):
                yield pending

    def to_carry(self, page: list[SourceDocument], stored: dict[str, Stored]) -> list[Pending]:
        """Return those documents that the target shall hold, each with the mark that it will bear."""
        there = documents_by_id(self.cluster, self.source, [document.doc_id for document in page])
        newer = self.changed_in_source(list(there)) if not self.restored else set()
        targets, pending, contested = look_up(self.cluster, self.target.name, page), [], []
        for document in page:
            doc_id, mine = document.doc_id, stored[document.doc_id]
            original, target = there.get(doc_id), targets.get(doc_id)
            content = document._replace(source=content_of(document, self.info))
            if not self.restored and not prevails(mine, original, doc_id in newer):
                if original is not None and original.source != content.source:
                    self.carried.conflicts.add(doc_id)
                continue
            if target is not None and target.written_here and not self.is_older(document, mine, target):
                if not (mine.carried_from and target.carried_from):
                    contested.append(content)
                continue
            mark = written_here_mark(original.seq_no if original else -1, number_of(self.info))
            pending.append(Pending(content._replace(seq_no=mark), target))
        if contested:
            index = OtherIndex(self.cluster, self.target)
            self.carried.conflicts |= {document.doc_id for document in index.without(contested)}
        self.carried.changed |= {entry.document.doc_id for entry in pending}
        self.carried.conflicts -= {entry.document.doc_id for entry in pending}
        return pending

    def is_older(self, document: SourceDocument, mine: Stored, target: Stored) -> bool:
        """Tell whether the target's document was carried there and no client wrote it since.

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

    def settle(self, job: Job, page: list[Pending], filling: Filling) -> None:
        """Leave what somebody wrote first to the next pass."""
        self.missed = True

    def delete(self, gone: Sequence[SourceDocument]) -> None:
        """Delete from the target what clients deleted here, unless somebody wrote it there."""
        there = look_up(self.cluster, self.target.name, gone)
        self.carried.deleted |= {document.doc_id for document in gone if document.doc_id not in there}
        number = number_of(self.info)
        chosen = [
            (document, there[document.doc_id])
            for document in gone
            if document.doc_id in there
            and (not there[document.doc_id].written_here or there[document.doc_id].carried_from == number)
        ]
        actions = [
            delete_action(document.doc_id, routing=document.routing, **replacement_options(state))
            for document, state in chosen
        ]
        if deliver(self.job, actions).conflicts:
            self.missed = True
        else:
            self.carried.deleted |= {document.doc_id for document, _ in chosen}

    def delete_since_carried(self) -> None:
        """Delete from the target what was carried from here and is no longer here."""
        for page in read_pages(self.cluster, self.target.name, where=WRITTEN, fields=()):
            there, here = (look_up(self.cluster, index.name, page) for index in (self.target, self.info))
            carried = [document for document in page if document.doc_id not in here]
            number = number_of(self.info)
            self.delete([d for d in carried if d.doc_id in there and there[d.doc_id].carried_from == number])

    def record(self) -> None:
        """Write down how far this index was carried, unless something was refused or has no room."""
        contested = with_room(self.carried.conflicts)
        if self.since is None or self.rejected or len(contested) < len(self.carried.conflicts):
            return
        changes = {
            "carried": self.since.seq_no,
            "carried_into": self.target.uuid,
            "not_carried": contested,
        }
        record = self.cluster.index_info(self.info.name).record
        if any(getattr(record, name) != value for name, value in changes.items()):
            write_record(self.cluster, self.info.name, **changes)


def prevails(stored: Stored, original: SourceDocument | None, newer: bool) -> bool:
    """Tell whether a client's document stays although the source has another, as in `is_current`.

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
        """Carry until a pass meets nobody who writes at the same moment."""
        total = Filling()
        for carrier in self.carriers:
            for _ in range(MAX_PASSES):
                total.add(carrier.carry())
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
        return {doc_id for carrier in self.carriers for doc_id in carrier.carried.deleted}

    def counts(self) -> dict[str, int]:
        """Return how many documents were carried, deleted, and left because both sides changed them."""
        parts = [carrier.carried.counts() for carrier in self.carriers]
        return {name: sum(part[name] for part in parts) for name in ("changed", "deleted", "conflicts")}
