"""Reads UBI logs (User Behavior Insights): searches and events, from OpenSearch's indices or a file of JSON
lines; and stores them for a server, in the background.

Fields are read as the plugin writes them and as its documentation names them. Clients stay anonymous: ids are
hashed with a key that is drawn for one reading.

Records to store wait in a bounded queue in memory until a thread writes them. No search waits for that
thread: records that find no room, or that the cluster rejects, are counted and dropped.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from hashlib import blake2b
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from shlex import quote
from threading import Condition, Thread
from typing import Any, Literal, NamedTuple, TypeAlias

from ...cluster.connection import Cluster, json_bytes, make_index
from ...cluster.destinations import resolve
from ...cluster.field_values import replace_lone_surrogates
from ...cluster.mappings import TERMS_COUNT, index_limit
from ...cluster.reading import documents_in_pages, groups_of, hits_by_id, read_pages
from ...cluster.record import IndexInfo, require_not_closed
from ...cluster.writing import Action, MemoryRejects, write
from ...errors import DataError, NotFound
from ...files.local import load_asset, numbered_lines, parsed_json

QUERIES, EVENTS = "ubi_queries", "ubi_events"
HITS = ("query_response_hit_ids", "query_response_objects_ids", "query_response_object_ids")
"""Fields in which a search keeps its hits: as the plugin writes them, and as its documentation spells
them."""
FIELDS = {
    QUERIES: [
        *("query_id", "client_id", "user_query", "timestamp", "object_id_field", "query_attributes"),
        *HITS,
    ],
    EVENTS: [
        *("query_id", "client_id", "user_query", "timestamp", "action_name"),
        *("event_attributes.object", "event_attributes.position.ordinal"),
    ],
}
EXPERIMENT, TEAMS = "hybridr_experiment", "hybridr_teams"
"""Attributes of a search that showed two rankings in one list: the experiment, and each hit's ranking."""
NEITHER = "-"
LETTERS = re.compile(f"[ab{NEITHER}]*")
DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
MAX_FIELDS = 100
CLICKS = frozenset(("click", "item_click", "product_click", "add_to_cart", "purchase"))
IMPRESSIONS = frozenset(("impression", "view_item"))
MAX_SHOWN, MAX_TEXT, MAX_ID = 50, 1_000, 512
PAGE_OF_EVENTS = 2_000
NAMED_TOGETHER, OF_ONE_NAME = 500, 4
"""Names in one search, and the most documents that it may find by each name."""
EXACT: Mapping[str, range | None] = {
    "keyword": None,
    "short": range(-(2**15), 2**15),
    "integer": range(-(2**31), 2**31),
    "long": range(-(2**63), 2**63),
    "unsigned_long": range(2**64),
}
"""Types of fields that find documents by name, with the numbers that they take; None: any text."""
INTEGER = re.compile("-?[0-9]{1,20}")
UNREADABLE, OTHER, UNNAMED, TEXTLESS = (
    "lines that are no searches or events",
    "events that are no clicks or impressions",
    "events without a search or document",
    "searches without a text, or with a very long one",
)
LogRecords: TypeAlias = "Iterator[Mapping[str, Any] | None]"
"""Records of a log; None for one that cannot be read."""


class SearchEntry(NamedTuple):
    """A search in a log: client, day, text, and the documents shown, best first.

    For an experiment, `teams` has a letter a document: the ranking that it belongs to.
    """

    search: int
    client: int
    day: str
    text: str
    shown: tuple[str, ...]
    teams: str = ""


class EventEntry(NamedTuple):
    """An event in a log: a client clicked or saw a document of a search; `text` if the event has it."""

    search: int
    client: int
    day: str
    text: str
    document: str
    click: bool
    ordinal: int


class LogReader:
    """Parses log records, and counts in `left_out` those it drops, by reason.

    `fields` counts the fields by which events name documents. Ids are hashed; client 0 is unknown. With an
    `experiment`, the teams of its searches are read.
    """

    def __init__(self, experiment: str = "") -> None:
        self.experiment = experiment
        self._key = secrets.token_bytes(32)
        self.left_out: Counter[str] = Counter()
        self.fields: Counter[str] = Counter()

    def read(self, record: Mapping[str, Any] | None) -> SearchEntry | EventEntry | None:
        """Return a record as search or event; None if it is dropped."""
        if record is None:
            return self._without(UNREADABLE)
        source = record.get("_source", record)
        if not isinstance(source, Mapping) or not (name := identifier(source.get("query_id"))):
            return self._without(UNNAMED if isinstance(source, Mapping) else UNREADABLE)
        client, day = identifier(source.get("client_id")), source.get("timestamp")
        if isinstance(day, int | float) and not isinstance(day, bool):  # clocks are trusted for the day only
            day = str(int(day // 86_400_000)) if abs(day) < 1e15 else ""
        else:
            day = match[0] if isinstance(day, str) and (match := DAY.match(day)) else ""
        typed = source.get("user_query")
        typed = typed if isinstance(typed, str) and len(typed) <= MAX_TEXT else ""
        text = replace_lone_surrogates(" ".join(typed.split()))
        common = self.hashed(name), self.hashed(client) if client else 0, day, text
        if "action_name" not in source:
            if not text:
                return self._without(TEXTLESS)
            self._count_field(source)
            hits = next((value for name in HITS if isinstance(value := source.get(name), list) and value), [])
            attributes = object_in(source, "query_attributes")
            letters = attributes.get(TEAMS)  # only searches of the experiment have teams
            of_experiment = self.experiment and attributes.get(EXPERIMENT) == self.experiment
            has_teams = of_experiment and isinstance(letters, str) and LETTERS.fullmatch(letters)
            teams = str(letters) if has_teams else ""
            team_of: dict[str, str] = {}
            for hit, team in zip(hits[:MAX_SHOWN], teams.ljust(MAX_SHOWN, NEITHER), strict=False):
                if doc_id := identifier(hit):
                    team_of.setdefault(doc_id, team)
            return SearchEntry(*common, tuple(team_of), "".join(team_of.values()) if teams else "")
        action = source["action_name"]
        if not isinstance(action, str) or action not in CLICKS | IMPRESSIONS:
            return self._without(OTHER)
        item, position = (object_in(source.get("event_attributes"), part) for part in ("object", "position"))
        document = identifier(item.get("object_id")) or identifier(item.get("internal_id"))
        if not document:
            return self._without(UNNAMED)
        self._count_field(item)
        ordinal = position.get("ordinal")
        place = ordinal if isinstance(ordinal, int) and 0 <= ordinal < 10_000 else 0
        return EventEntry(*common, document, action in CLICKS, place)

    def hashed(self, name: str) -> int:
        """Return a keyed 64-bit hash of a name."""
        digest = blake2b(name.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _count_field(self, source: Mapping[str, Any]) -> None:
        """Count the field by which an event names its document."""
        name = identifier(source.get("object_id_field"))
        if name and (name in self.fields or len(self.fields) < MAX_FIELDS):
            self.fields[name] += 1

    def _without(self, reason: str) -> SearchEntry | EventEntry | None:
        """Count an entry that is left out for this reason, and return None."""
        self.left_out[reason] += 1
        return None


def identifier(value: Any) -> str:
    """Return an id as a text, also from an integer; empty for anything else, and for one too long."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > MAX_ID:
        return ""
    return value.strip() if value.isascii() else replace_lone_surrogates(value.strip())


def object_in(value: Any, name: str) -> Mapping[str, Any]:
    """Return the object under a name in a value; empty if there is none."""
    part = value.get(name) if isinstance(value, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def read_log_file(file: Path) -> LogRecords:
    """Yield the records in a file of JSON lines, plain or gzip. Raises DataError."""
    try:
        for number, line in numbered_lines(file, "utf-8-sig", errors="replace"):
            if number == 1 and line.lstrip().startswith("["):
                raise DataError(
                    f"the log {file} is a JSON array; one search or event per line is needed",
                    hint=f"jq -c '.[]' {quote(str(file))} > log.jsonl",
                )
            if line.strip():
                try:
                    record = parsed_json(line)
                except ValueError:
                    record = None
                yield record if isinstance(record, dict) else None
    except (OSError, ValueError) as error:
        raise DataError(
            f"the log {file} cannot be read: {error}", hint="JSON lines as in ubi_queries and ubi_events"
        ) from None


def read_ubi_records(cluster: Cluster, experiment: str = "") -> LogRecords:
    """Yield the UBI records in a cluster, searches first; of an experiment, its searches and all clicks.

    Each may be an index, an alias or a data stream. Raises NotFound if there are no UBI indices, and
    ClusterError for a closed one. An experiment needs only that of searches, because the first click creates
    that of events.
    """
    where: dict[str, Any] = {}
    if experiment:
        where[QUERIES] = {"term": {f"query_attributes.{EXPERIMENT}": experiment}}
        where[EVENTS] = {"terms": {"action_name": sorted(CLICKS)}}
    for index, fields in FIELDS.items():
        infos = cluster.indices(index)
        if not infos and experiment and index == EVENTS:
            return
        if not infos:
            raise NotFound(
                f"no index or alias '{index}' at {cluster.url}: this cluster collects no clicks",
                hint="hybridr serve --ubi collects them, or the plugin after POST /_plugins/ubi/initialize",
                status=404,
            )
        for info in infos:
            require_not_closed(info)
            pages = read_pages(cluster, info, page=PAGE_OF_EVENTS, where=where.get(index), fields=fields)
            for document in chain.from_iterable(pages):
                yield document.source if index == QUERIES else {"action_name": None, **document.source}


def fetch_ids_by_name(
    cluster: Cluster, info: IndexInfo, names: Sequence[str], fields: Counter[str]
) -> dict[str, str]:
    """Return the ids of the documents in the index's scope that a log names: name -> id.

    `fields` counts the fields by which the log names documents; if the index cannot look up any of them,
    names are taken as ids.
    """
    unique = sorted(set(names))
    if field := exact_field(info, [field for field, _ in fields.most_common()]):
        numbers = EXACT[info.types[field]]
        if numbers is not None:  # the cluster refuses a search for any other name
            unique = [name for name in unique if INTEGER.fullmatch(name) and int(name) in numbers]
        ids: dict[str, str] = {}
        batch_size = min(
            NAMED_TOGETHER, index_limit(info, TERMS_COUNT), max(1, info.result_window // OF_ONE_NAME)
        )
        queue, size = groups_of(unique, batch_size), min(batch_size * OF_ONE_NAME, info.result_window)
        while queue:
            group = queue.pop(0)
            body = {
                "size": size,
                "query": {"terms": {field: group}},
                "_source": False,
                "docvalue_fields": [field],
                "track_total_hits": True,
            }
            hits = cluster.search(info, body, every_shard=True)["hits"]
            if hits["total"]["value"] > size and len(group) > 1:  # some names have many documents
                queue[:0] = [group[: len(group) // 2], group[len(group) // 2 :]]
                continue
            for hit in hits["hits"]:
                ids |= {str(value): hit["_id"] for value in hit.get("fields", {}).get(field, ())}
        return ids
    pages = documents_in_pages(cluster, info, unique, page=NAMED_TOGETHER, with_source=False)
    return {document.doc_id: document.doc_id for page in pages for document in page}


def exact_field(info: IndexInfo, names: Sequence[str]) -> str | None:
    """Return the first of these fields, or of their `.keyword` subfields, with exact look-ups, if any."""
    types = info.types
    candidates = [candidate for name in names for candidate in (name, f"{name}.keyword")]
    return next(
        (
            candidate
            for candidate in candidates
            if types.get(candidate) in EXACT and info.mapping_of(candidate).get("doc_values", True)
        ),
        None,
    )


def fetch_names_by_id(
    cluster: Cluster, info: IndexInfo, doc_ids: Sequence[str], field: str
) -> dict[str, str]:
    """Return the value of a field of each document, by id; documents without a value are left out."""
    if (exact := exact_field(info, [field])) is None:
        return {}
    names: dict[str, str] = {}
    for group in groups_of(doc_ids, NAMED_TOGETHER):
        for hit in hits_by_id(cluster, info, list(group), {"_source": False, "docvalue_fields": [exact]}):
            if values := hit.get("fields", {}).get(exact):
                names[hit["_id"]] = str(values[0])
    return names


WAITING_BYTES = 16 * 2**20
"""Bytes of waiting records, as JSON."""
GATHERING_S = 0.5
"""Seconds that records wait for others, to be written together."""
WRITTEN_TOGETHER = 1_000
PATIENCE_S, END_S = 5.0, 10.0
CameTo: TypeAlias = Literal["written", "no_room", "failed", "refused"]
Counted: TypeAlias = Callable[[str, CameTo, int], None]
"""A function that receives the index, the outcome and the number of records."""
NEW_LINE = json_bytes({"create": {}}) + b"\n"


class Waiting(NamedTuple):
    """A queued record, and the field by which it names documents instead of their ids."""

    into: str
    record: dict[str, Any]
    field: str
    size: int


class UbiWriter:
    """Writes records into the UBI indices, creating these if missing; threads may share it, until `end`.

    Raises AccessDenied or ClusterError at once for an index that cannot be created or is closed.
    """

    def __init__(self, cluster: Cluster, place: str, counted: Counted, limit: int = WAITING_BYTES) -> None:
        self.cluster, self.shown, self.counted, self.limit = cluster, place, counted, limit
        self._waiting: deque[Waiting] = deque()
        self._queued_bytes, self._ended = 0, False
        self._time_fields = {index: ready_time_field(cluster, index) for index in FIELDS}
        self._more = Condition()
        self._thread = Thread(target=self._work, name="hybridr-ubi", daemon=True)
        self._thread.start()

    def keep(self, index: str, records: Sequence[Mapping[str, Any]], field: str = "") -> bool:
        """Queue records of one index for writing, all or none; return whether they were queued.

        False if memory is full, or after `end`. Records without a timestamp get the current time. With a
        `field`, hits are identified by its value instead of their id.
        """
        time = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        stamped = [{"timestamp": time, **record} for record in records]
        waiting = [Waiting(index, record, field, len(json_bytes(record))) for record in stamped]
        size = sum(entry.size for entry in waiting)
        with self._more:
            has_room = not self._ended and self._queued_bytes + size <= self.limit
            if has_room:
                self._queued_bytes += size
                self._waiting.extend(waiting)
                self._more.notify()
        if not has_room:
            self.counted(index, "no_room", len(records))
        return has_room

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
                self._queued_bytes -= sum(entry.size for entry in batch)
            if not batch:
                return
            for index, records in groupby(sorted(batch, key=attrgetter("into")), attrgetter("into")):
                self._write(index, list(records))

    def _write(self, index: str, waiting: list[Waiting]) -> None:
        """Write the waiting entries to an index, and count those written, refused or failed."""
        try:
            if index not in self._time_fields:
                self._time_fields[index] = ready_time_field(self.cluster, index)
            name = self._time_fields[index]
            entries = [{**entry, name: entry["timestamp"]} for entry in self._named(waiting)]
            actions = [Action("", NEW_LINE + json_bytes(entry) + b"\n") for entry in entries]
            done = write(self.cluster, index, actions, rejects=MemoryRejects(), patience_s=PATIENCE_S)
        except Exception as error:  # of any kind: later records may succeed
            if isinstance(error, NotFound):
                self._time_fields.pop(index, None)
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
            names = fetch_names_by_id(self.cluster, info, sorted(ids), field) if info else {}
            for entry in group:
                record = entry.record
                if names:  # a hit without a name keeps its id
                    hits = [names.get(doc_id, doc_id) for doc_id in record["query_response_hit_ids"]]
                    record = {**record, "query_response_hit_ids": hits}
                entries.append(record)
        return entries


def ready_time_field(cluster: Cluster, index: str) -> str:
    """Return the field that needs the time of each record in the index for UBI queries or events: that of a
    data stream, else `timestamp`. Creates a missing index.

    Raises AccessDenied, and ClusterError for a closed index or for a missing data stream.
    """
    if not (infos := cluster.indices(index)):
        settings = {"number_of_shards": 1, "auto_expand_replicas": "0-1"}
        body = {"settings": {"index": settings}, "mappings": load_asset("mappings", f"{index}.json")}
        make_index(cluster, index, body)
        return "timestamp"
    require_not_closed(infos[-1])
    stream = infos[-1].mappings.get("_data_stream_timestamp", {"timestamp_field": {"name": "timestamp"}})
    return str(stream.get("timestamp_field", {}).get("name", "@timestamp"))
