"""Stores searches and events in the form of UBI for a server, in the background.

Records wait in a bounded queue in memory until a thread writes them. Nobody waits for that thread: records
without room, or that the cluster rejects, are counted and dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from itertools import groupby
from operator import attrgetter
from threading import Condition, Thread
from typing import Any, Literal, NamedTuple, TypeAlias

from ...cluster.connection import Cluster, as_json
from ...cluster.default_pipeline import make_index
from ...cluster.destinations import resolve
from ...cluster.writing import Action, HeldRejects, write
from ...errors import NotFound
from ...files.folders import load_asset
from .ubi import names_by_id

WAITING_BYTES = 16 * 2**20
"""Of records that wait, as JSON."""
GATHERING_S = 0.5
"""How long records wait for others that are written with them."""
WRITTEN_TOGETHER = 1_000
PATIENCE_S, END_S = 5.0, 10.0
CameTo: TypeAlias = Literal["written", "no_room", "failed", "refused"]
Counted: TypeAlias = Callable[[str, CameTo, int], None]
"""Is told of which index how many records came to what."""
NEW_LINE = as_json({"create": {}}) + b"\n"


class Waiting(NamedTuple):
    """A queued record, and the field by which it names documents instead of their ids."""

    into: str
    record: dict[str, Any]
    field: str
    size: int


class Keeper:
    """Writes records into the UBI indices, creating these if missing; used by any number of threads, until
    `end`.
    """

    def __init__(self, cluster: Cluster, place: str, counted: Counted, limit: int = WAITING_BYTES) -> None:
        self.cluster, self.shown, self.counted, self.most = cluster, place, counted, limit
        self._waiting: deque[Waiting] = deque()
        self._held, self._ended, self._there = 0, False, set[str]()
        self._more = Condition()
        self._thread = Thread(target=self._work, name="hybridr-ubi", daemon=True)
        self._thread.start()

    def keep(self, index: str, records: Sequence[Mapping[str, Any]], field: str = "") -> bool:
        """Queue records of one index for writing, all or none; return whether they were queued.

        False if memory is full, or after `end`. Records without a time get the present. With a `field`, hits
        are identified by its value instead of their id.
        """
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        whole = [{"timestamp": now, **record} for record in records]
        waiting = [Waiting(index, record, field, len(as_json(record))) for record in whole]
        size = sum(entry.size for entry in waiting)
        with self._more:
            room = not self._ended and self._held + size <= self.most
            if room:
                self._held += size
                self._waiting.extend(waiting)
                self._more.notify()
        if not room:
            self.counted(index, "no_room", len(records))
        return room

    def end(self) -> None:
        """Write what waits, within some seconds, and accept no more records."""
        with self._more:
            self._ended = True
            self._more.notify()
        self._thread.join(END_S)

    def _work(self) -> None:
        """Wait for records and write them in batches, oldest first, until none is left at the end."""
        while True:
            with self._more:
                self._more.wait_for(lambda: self._waiting or self._ended)
                if not self._ended:
                    self._more.wait_for(
                        lambda: self._ended or len(self._waiting) >= WRITTEN_TOGETHER, GATHERING_S
                    )
                count = min(WRITTEN_TOGETHER, len(self._waiting))
                batch = [self._waiting.popleft() for _ in range(count)]
                self._held -= sum(entry.size for entry in batch)
            if not batch:
                return
            for index, records in groupby(sorted(batch, key=attrgetter("into")), attrgetter("into")):
                self._write(index, list(records))

    def _write(self, index: str, waiting: list[Waiting]) -> None:
        """Write the waiting entries to an index, and count those written, refused or failed."""
        try:
            if index not in self._there:
                make_where_missing(self.cluster, index)
                self._there.add(index)
            actions = [Action("", NEW_LINE + as_json(entry) + b"\n") for entry in self._named(waiting)]
            done = write(self.cluster, index, actions, rejects=HeldRejects(), patience_s=PATIENCE_S)
        except Exception as error:  # of whatever kind: those that come later may be written
            if isinstance(error, NotFound):
                self._there.discard(index)
            return self.counted(index, "failed", len(waiting))
        self.counted(index, "written", done.written)
        self.counted(index, "refused", done.rejected)

    def _named(self, waiting: Iterable[Waiting]) -> list[dict[str, Any]]:
        """Return the records as JSON values, with hits named by the field that the client uses."""
        entries = []
        for field, of_field in groupby(sorted(waiting, key=attrgetter("field")), attrgetter("field")):
            group = list(of_field)
            ids = {doc_id for entry in group for doc_id in entry.record.get("query_response_hit_ids", ())}
            info = resolve(self.cluster, self.shown) if field and ids else None
            names = names_by_id(self.cluster, info, sorted(ids), field) if info else {}
            for entry in group:
                record = entry.record
                if names:  # a hit without a name goes by its id
                    hits = [names.get(doc_id, doc_id) for doc_id in record["query_response_hit_ids"]]
                    record = {**record, "query_response_hit_ids": hits}
                entries.append(record)
        return entries


def make_where_missing(cluster: Cluster, index: str) -> None:
    """Create the index for UBI queries or events unless it exists. Raises AccessDenied."""
    if cluster.exists(index):
        return
    settings = {"number_of_shards": 1, "auto_expand_replicas": "0-1"}
    body = {"settings": {"index": settings}, "mappings": load_asset("mappings", f"{index}.json")}
    make_index(cluster, index, body)
