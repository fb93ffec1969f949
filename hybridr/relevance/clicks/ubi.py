"""User Behavior Insights: searches and events as OpenSearch keeps them, in its indices or as lines of a file.

Both the fields that the plugin writes and those that its documentation names are read. Whoever a client is
stays unknown: ids are hashed with a key that is drawn for one reading and forgotten with it.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from ...cluster.connection import Cluster
from ...cluster.reading import read_pages, whole_characters
from ...errors import DataError, NotFound
from ...files.foreign import numbered_lines, parsed_json

QUERIES, EVENTS = "ubi_queries", "ubi_events"
HITS = ("query_response_hit_ids", "query_response_objects_ids", "query_response_object_ids")
"""Where a search keeps what it found: as the plugin writes it, and as its documentation spells it."""
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
"""Attributes of a search that showed two rankings in one list: which experiment, and whose each hit is."""
NEITHER = "-"
LETTERS = re.compile(f"[ab{NEITHER}]*")
DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
MOST_FIELDS_TOLD = 100
CLICKS = frozenset(("click", "item_click", "product_click", "add_to_cart", "purchase"))
IMPRESSIONS = frozenset(("impression", "view_item"))
DEEPEST_SHOWN, LONGEST_TEXT, LONGEST_ID = 50, 1_000, 512
PAGE_OF_EVENTS = 2_000
UNREADABLE, OTHER, UNNAMED, TEXTLESS = (
    "lines that are no searches or events",
    "events that are no clicks or impressions",
    "events without a search or document",
    "searches without a text, or with a very long one",
)
LogRecords: TypeAlias = "Iterator[Mapping[str, Any] | None]"
"""Records of a log; None for one that cannot be read."""


class SearchEntry(NamedTuple):
    """A search: who asked what on which day, and the documents that were shown, best first.

    `teams` has a letter for each where an experiment is read: the ranking that it is of.
    """

    search: int
    client: int
    day: str
    text: str
    shown: tuple[str, ...]
    teams: str = ""


class EventEntry(NamedTuple):
    """Somebody clicked a document that a search showed, or only saw it; `text` where the event tells it."""

    search: int
    client: int
    day: str
    text: str
    document: str
    click: bool
    ordinal: int


class LogReader:
    """Reads records of either kind, and counts in `left_out` what it leaves out, by reason.

    `fields` counts which field of a document events name it by; ids are hashed, client 0 is nobody known.
    With an `experiment` the teams of its searches are read.
    """

    def __init__(self, experiment: str = "") -> None:
        self.experiment = experiment
        self._key = secrets.token_bytes(32)
        self.left_out: Counter[str] = Counter()
        self.fields: Counter[str] = Counter()

    def read(self, record: Mapping[str, Any] | None) -> SearchEntry | EventEntry | None:
        """Read a record, or None for what is left out."""
        if record is None:
            return self._without(UNREADABLE)
        source = record.get("_source", record)
        if not isinstance(source, Mapping) or not (name := identifier(source.get("query_id"))):
            return self._without(UNNAMED if isinstance(source, Mapping) else UNREADABLE)
        client = identifier(source.get("client_id"))
        who = self.hashed(name), self.hashed(client) if client else 0, day_of(source.get("timestamp"))
        text = text_in(source.get("user_query"))
        return self._acted(*who, text, source) if "action_name" in source else self._asked(*who, text, source)

    def hashed(self, name: str) -> int:
        """Give 64 bits of a name by which nobody else can tell it again."""
        digest = blake2b(name.encode("utf-8", "surrogatepass"), key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big", signed=True)

    def _asked(
        self, search: int, client: int, day: str, text: str, source: Mapping[str, Any]
    ) -> SearchEntry | EventEntry | None:
        if not text:
            return self._without(TEXTLESS)
        self._count_field(source)
        hits = next((value for name in HITS if isinstance(value := source.get(name), list) and value), [])
        named: dict[str, str] = {}
        teams = self._teams(source)
        for hit, team in zip(hits[:DEEPEST_SHOWN], teams.ljust(DEEPEST_SHOWN, NEITHER), strict=False):
            if doc_id := identifier(hit):
                named.setdefault(doc_id, team)
        return SearchEntry(search, client, day, text, tuple(named), "".join(named.values()) if teams else "")

    def _teams(self, source: Mapping[str, Any]) -> str:
        """Return the letters of a search of the experiment; empty for another one, and for other letters."""
        attributes = object_in(source, "query_attributes")
        letters = attributes.get(TEAMS)
        if not self.experiment or attributes.get(EXPERIMENT) != self.experiment:
            return ""
        return letters if isinstance(letters, str) and LETTERS.fullmatch(letters) else ""

    def _acted(
        self, search: int, client: int, day: str, text: str, source: Mapping[str, Any]
    ) -> SearchEntry | EventEntry | None:
        name = source["action_name"]
        if not isinstance(name, str) or name not in CLICKS | IMPRESSIONS:
            return self._without(OTHER)
        about, position = (object_in(source.get("event_attributes"), part) for part in ("object", "position"))
        document = identifier(about.get("object_id")) or identifier(about.get("internal_id"))
        if not document:
            return self._without(UNNAMED)
        self._count_field(about)
        ordinal = position.get("ordinal")
        place = ordinal if isinstance(ordinal, int) and 0 <= ordinal < 10_000 else 0
        return EventEntry(search, client, day, text, document, name in CLICKS, place)

    def _count_field(self, source: Mapping[str, Any]) -> None:
        name = identifier(source.get("object_id_field"))
        if name and (name in self.fields or len(self.fields) < MOST_FIELDS_TOLD):
            self.fields[name] += 1

    def _without(self, reason: str) -> SearchEntry | EventEntry | None:
        self.left_out[reason] += 1
        return None


def identifier(value: Any) -> str:
    """Give an id as a text, whole numbers too; empty for anything else, and for what is too long for one."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or len(value) > LONGEST_ID:
        return ""
    return value.strip() if value.isascii() else whole_characters(value.strip())


def text_in(value: Any) -> str:
    """Give what was typed, on one line; empty where that is no text, or a very long one."""
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        return ""
    return whole_characters(" ".join(value.split()))


def object_in(value: Any, name: str) -> Mapping[str, Any]:
    """Give a part of an object; an empty one where it has none."""
    part = value.get(name) if isinstance(value, Mapping) else None
    return part if isinstance(part, Mapping) else {}


def day_of(value: Any) -> str:
    """Give the day of a timestamp, in ISO 8601 or in milliseconds; clocks are believed no further."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(int(value // 86_400_000)) if abs(value) < 1e15 else ""
    return day[0] if isinstance(value, str) and (day := DAY.match(value)) else ""


def in_file(file: Path) -> LogRecords:
    """Yield the records of a file of JSON lines, plain or gzip, of both kinds. Raises DataError."""
    try:
        for number, line in numbered_lines(file, "utf-8-sig", errors="replace"):
            if number == 1 and line.lstrip().startswith("["):
                raise DataError(
                    f"the log {file} is a JSON array, a search or event a line is needed",
                    hint=f"jq -c '.[]' {file} > log.jsonl",
                )
            if line.strip():
                yield record_in(line)
    except (OSError, ValueError) as error:
        raise DataError(
            f"the log {file} cannot be read: {error}", hint="JSON lines as in ubi_queries and ubi_events"
        ) from None


def record_in(line: str) -> Mapping[str, Any] | None:
    """Read a line; None where it is no object of JSON."""
    try:
        record = parsed_json(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def in_cluster(cluster: Cluster, experiment: str = "") -> LogRecords:
    """Yield what UBI keeps in a cluster, searches first; of an experiment its searches, and all clicks.

    Raises NotFound where it keeps none.
    """
    where: dict[str, Any] = {}
    if experiment:
        where[QUERIES] = {"term": {f"query_attributes.{EXPERIMENT}": experiment}}
        where[EVENTS] = {"terms": {"action_name": sorted(CLICKS)}}
    for index, fields in FIELDS.items():
        try:
            info = cluster.index_info(index)
        except NotFound as error:
            raise NotFound(
                f"{error.message}: no clicks are collected there",
                hint="hybridr serve --ubi keeps them, POST /_plugins/ubi/initialize has the plugin do it",
                status=error.status,
            ) from None
        condition = where.get(index)
        for page in read_pages(cluster, info, page=PAGE_OF_EVENTS, where=condition, fields=fields):
            for document in page:
                yield document.source if index == QUERIES else {"action_name": None, **document.source}
