"""Joins the searches and events of a click log on disk (SQLite), so that a log may be larger than memory.

The database lies in a temporary folder readable by its owner only. Records are joined by ids, because clocks
are trusted for the day only. Of records with the same id the first counts.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ...records import Progress, silent
from .ubi import EventEntry, LogReader, SearchEntry

AT_ONCE_WRITTEN = 20_000
MOST_A_DAY = 500
"""Searches and events of one client on one day; beyond, it is a machine."""
LONG_LIST, MANY_SHOWN, GREEDY = 5, 40, 0.5
"""Who clicked more than this share of so many documents, in lists of five or more, chooses nothing."""
TABLES = """
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -65536;
CREATE TABLE search (id INTEGER, client INTEGER, day TEXT, text INTEGER, list INTEGER, teams TEXT);
CREATE TABLE text (id INTEGER PRIMARY KEY, text TEXT);
CREATE TABLE list (id INTEGER PRIMARY KEY, shown TEXT, length INTEGER);
CREATE TABLE event (search INTEGER, client INTEGER, day TEXT, text INTEGER, document TEXT, click INTEGER,
                    ordinal INTEGER);
"""
PLACES = {"search": 6, "text": 2, "list": 3, "event": 7}
INSERTS = {
    table: f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * places)})"  # noqa: S608
    for table, places in PLACES.items()
}
TOLD_BY_EVENTS = """
CREATE INDEX event_of ON event (search, click, document, ordinal, client);
CREATE INDEX search_by_id ON search (id);
DELETE FROM search WHERE rowid NOT IN (SELECT min(rowid) FROM search GROUP BY id);
INSERT INTO search SELECT search, client, day, text, NULL, '' FROM event
    WHERE text IS NOT NULL AND search NOT IN (SELECT id FROM search) GROUP BY search;
INSERT OR IGNORE INTO list SELECT search, json_group_array(document), count(*)
    FROM (SELECT search, document, min(ordinal) AS first FROM event
          WHERE NOT click AND search IN (SELECT id FROM search WHERE list IS NULL)
          GROUP BY search, document ORDER BY search, first) GROUP BY search;
UPDATE search SET list = id WHERE list IS NULL AND id IN (SELECT id FROM list);
"""
"""Searches that only events tell of, and lists that only impressions tell."""
BOTS = f"""
CREATE TABLE bot AS
    SELECT client FROM (SELECT client, day FROM search UNION ALL SELECT client, day FROM event)
        WHERE client GROUP BY client, day HAVING count(*) > {MOST_A_DAY}
    UNION SELECT client FROM
        (SELECT client, length AS shown, (SELECT count(DISTINCT document) FROM event
                WHERE event.search = search.id AND click) AS clicked
            FROM search JOIN list ON list.id = search.list WHERE client AND length >= {LONG_LIST})
        GROUP BY client HAVING sum(shown) >= {MANY_SHOWN} AND sum(clicked) > {GREEDY} * sum(shown);
CREATE INDEX search_by_text ON search (text, client, id, list, teams);
"""
SITTINGS = """
SELECT search.text, search.client, search.id, search.list, search.teams, event.document, event.client
    FROM search LEFT JOIN event ON event.search = search.id AND event.click
    WHERE search.client NOT IN (SELECT client FROM bot) ORDER BY search.text, search.client, search.id
"""
LOST_CLICKS = "SELECT count(*) FROM event WHERE click AND search NOT IN (SELECT id FROM search)"
COUNTS = {
    "searches": "SELECT count(*) FROM search",
    "clicks": "SELECT count(*) FROM event WHERE click",
    "clients": "SELECT count(DISTINCT client) FROM search WHERE client",
    "bots": "SELECT count(*) FROM bot",
}
DRAFTED = "SELECT id FROM search WHERE teams != ''"
COUNTS_OF_EXPERIMENT = {
    **COUNTS,
    "searches": f"SELECT count(*) FROM ({DRAFTED})",
    "clicks": f"SELECT count(*) FROM event WHERE click AND search IN ({DRAFTED})",
    "clients": "SELECT count(DISTINCT client) FROM search WHERE client AND teams != ''",
}
"""The same of the searches that have teams."""


class Look(NamedTuple):
    """One search of one client: the documents shown, best first, and those that this client clicked.

    `clicks` counts all clicks, `others` those of other clients; the rest beyond `chosen` are repeated or on
    documents not shown. `teams` are those of `SearchEntry`.
    """

    shown: tuple[str, ...]
    chosen: set[str]
    clicks: int
    others: int
    teams: str = ""


NO_LOOK = Look((), set(), 0, 0)


class ClickLedger:
    """A temporary database of one click log, below `folder`."""

    def __init__(self, folder: Path, reader: LogReader) -> None:
        self._tables = sqlite3.connect(folder / "ledger.sqlite")
        self._tables.executescript(TABLES)
        self._hashed = reader.hashed

    def fill(self, entries: Iterable[SearchEntry | EventEntry], progress: Progress = silent) -> None:
        """Insert all entries, and link events to searches."""
        rest, done = iter(entries), 0
        while batch := list(islice(rest, AT_ONCE_WRITTEN)):
            searches = [entry for entry in batch if isinstance(entry, SearchEntry)]
            lists = {
                entry.shown: json.dumps(entry.shown, ensure_ascii=False) for entry in searches if entry.shown
            }
            ids = {doc_ids: self._hashed(written) for doc_ids, written in lists.items()}
            self._write("list", ((ids[doc_ids], written, len(doc_ids)) for doc_ids, written in lists.items()))
            events = [entry for entry in batch if isinstance(entry, EventEntry)]
            written = [*(entry.text for entry in searches), *(event.text for event in events if event.text)]
            texts = {text: self._hashed(text.casefold()) for text in written}
            self._write("text", ((number, text) for text, number in texts.items()))
            self._write(
                "search",
                ((*entry[:3], texts[entry.text], ids.get(entry.shown), entry.teams) for entry in searches),
            )
            self._write(
                "event",
                (
                    (*event[:3], texts.get(event.text), event.document, event.click, event.ordinal)
                    for event in events
                ),
            )
            done += len(batch)
            progress("read", done)
        self._tables.executescript(TOLD_BY_EVENTS + BOTS)

    def _write(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows into a table."""
        self._tables.executemany(INSERTS[table], rows)

    def counts(self, texts: Mapping[str, str] = COUNTS) -> dict[str, int]:
        """Return the numbers of `searches`, `clicks`, `clients` and `bots`, by the SQL in `texts`."""
        return {name: self.number_of(text) for name, text in texts.items()}

    def number_of(self, text: str) -> int:
        """Return the single number that an SQL query gives."""
        return int(self._tables.execute(text).fetchone()[0])

    def looks(self) -> Iterator[tuple[str, Iterator[Iterator[Look]]]]:
        """Yield each query text with the searches for it, grouped by client.

        As with `groupby`, groups are consumed when the next one is requested.
        """

        @lru_cache(10_000)
        def shown_in(number: int | None) -> tuple[str, ...]:
            """Return the documents shown in the list of this number."""
            row = self._tables.execute("SELECT shown FROM list WHERE id = ?", (number,)).fetchone()
            return tuple(json.loads(row[0])) if row else ()

        def of_client(rows: Iterable[tuple[Any, ...]]) -> Iterator[Look]:
            """Yield a look (one person's view of a list) for each search in the rows."""
            for _, of_search in groupby(rows, itemgetter(2)):  # a row for each click
                clicks = list(of_search)
                _, client, _, number, teams, _, _ = clicks[0]
                doc_ids = shown_in(number)
                pairs = [(document, whose) for *_, document, whose in clicks if document is not None]
                own = {document for document, whose in pairs if not (client and whose) or whose == client}
                others = sum(bool(client and whose) and whose != client for _, whose in pairs)
                yield Look(doc_ids, own.intersection(doc_ids), len(pairs), others, teams)

        for number, of_text in groupby(self._tables.execute(SITTINGS), itemgetter(0)):
            text = self._tables.execute("SELECT text FROM text WHERE id = ?", (number,)).fetchone()[0]
            yield str(text), (of_client(rows) for _, rows in groupby(of_text, itemgetter(1)))

    def close(self) -> None:
        """Close the database."""
        self._tables.close()
