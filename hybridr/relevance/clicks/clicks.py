"""Turns a click log into judgements: which documents are relevant to which queries.

A client has one vote on a query, however often it clicks. Judgements need clicks of several clients. A click
model (`evaluation/click_model.py`) estimates how far down people look, so that a document is not relevant
just because it stood first.

Searches and events are joined on disk (SQLite), so that a log may be larger than memory. The database lies in
a temporary folder readable by its owner only. Records are joined by ids, because clocks are trusted for the
day only. Of records with the same id the first counts.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ...cluster.connection import Cluster
from ...cluster.destinations import resolve
from ...errors import DataError
from ...evaluation.click_model import Views, fit_clicks, limit_query_weight, sum_by_document
from ...files.formats import fits_column, qrels_table, short_digest
from ...files.local import replacing
from ...records import Progress, Qrels, Query, Reported, silent
from .ubi import (
    EventEntry,
    LogReader,
    LogRecords,
    SearchEntry,
    fetch_ids_by_name,
    read_log_file,
    read_ubi_records,
)

WRITE_BATCH = 20_000
MAX_DAILY_SEARCHES = 500
"""Searches and events of one client on one day; a client with more is a bot."""
LONG_LIST, MANY_SHOWN, GREEDY = 5, 40, 0.5
"""A client is a bot if it clicks more than the share `GREEDY` of at least `MANY_SHOWN` documents, in lists of
`LONG_LIST` or more."""
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
ADD_FROM_EVENTS = """
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
"""Adds the searches that only events mention, and the lists that only impressions show."""
BOTS = f"""
CREATE TABLE bot AS
    SELECT client FROM (SELECT client, day FROM search UNION ALL SELECT client, day FROM event)
        WHERE client GROUP BY client, day HAVING count(*) > {MAX_DAILY_SEARCHES}
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
"""The same counts, of the searches that have teams."""


class Look(NamedTuple):
    """One search of one client: the documents shown, best first, and those that this client clicked.

    `clicks` counts all clicks, `others` those of other clients; the rest beyond `clicked` are repeated or on
    documents not shown. `teams` are those of `SearchEntry`.
    """

    shown: tuple[str, ...]
    clicked: set[str]
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
        remaining, count = iter(entries), 0
        while batch := list(islice(remaining, WRITE_BATCH)):
            searches = [entry for entry in batch if isinstance(entry, SearchEntry)]
            lists = {
                entry.shown: json.dumps(entry.shown, ensure_ascii=False) for entry in searches if entry.shown
            }
            ids = {doc_ids: self._hashed(as_json) for doc_ids, as_json in lists.items()}
            self._write("list", ((ids[doc_ids], as_json, len(doc_ids)) for doc_ids, as_json in lists.items()))
            events = [entry for entry in batch if isinstance(entry, EventEntry)]
            typed = [*(entry.text for entry in searches), *(event.text for event in events if event.text)]
            texts = {text: self._hashed(text.casefold()) for text in typed}
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
            count += len(batch)
            progress("read", count)
        self._tables.executescript(ADD_FROM_EVENTS + BOTS)

    def _write(self, table: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Insert rows into a table."""
        self._tables.executemany(INSERTS[table], rows)

    def counts(self, statements: Mapping[str, str] = COUNTS) -> dict[str, int]:
        """Return the numbers of `searches`, `clicks`, `clients` and `bots`, by SQL `statements`."""
        return {name: self.count(statement) for name, statement in statements.items()}

    def count(self, statement: str) -> int:
        """Return the single number that an SQL query gives."""
        return int(self._tables.execute(statement).fetchone()[0])

    def looks(self) -> Iterator[tuple[str, Iterator[Iterator[Look]]]]:
        """Yield each query text with the searches for it, grouped by client.

        As with `groupby`, groups are consumed when the next one is requested.
        """

        @lru_cache(10_000)
        def shown_in(number: int | None) -> tuple[str, ...]:
            """Return the documents shown in the list of this number."""
            row = self._tables.execute("SELECT shown FROM list WHERE id = ?", (number,)).fetchone()
            return tuple(json.loads(row[0])) if row else ()

        def searches_of_client(rows: Iterable[tuple[Any, ...]]) -> Iterator[Look]:
            """Yield a look (one person's view of a list) for each search in the rows."""
            for _, search_rows in groupby(rows, itemgetter(2)):  # a row for each click
                clicks = list(search_rows)
                _, client, _, number, teams, _, _ = clicks[0]
                doc_ids = shown_in(number)
                # A click of an unnamed client, or in a search of one, counts as the searching client's.
                pairs = [
                    (document, bool(client and clicker) and clicker != client)
                    for *_, document, clicker in clicks
                    if document is not None
                ]
                clicked = {document for document, is_foreign in pairs if not is_foreign}
                foreign_clicks = sum(is_foreign for _, is_foreign in pairs)
                yield Look(doc_ids, clicked.intersection(doc_ids), len(pairs), foreign_clicks, teams)

        for number, text_rows in groupby(self._tables.execute(SITTINGS), itemgetter(0)):
            text = self._tables.execute("SELECT text FROM text WHERE id = ?", (number,)).fetchone()[0]
            yield str(text), (searches_of_client(rows) for _, rows in groupby(text_rows, itemgetter(1)))

    def close(self) -> None:
        """Close the database."""
        self._tables.close()


MIN_CLIENTS, MIN_CLICKS = 3, 2
"""Fewest people who asked a query, and who clicked a document: fewer prove little, and are identifiable."""
WEIGHTIEST = 200
"""Number of people whose clicks on one query count in full; the clicks of more people weigh no more."""
SHOWN_RANKS = 10
SURE, UNLIKELY = 0.5, -2.2
"""Least probability of a relevant document, and highest log-odds (1 to 9) of one that is not relevant."""
ASKED_AGAIN, FOREIGN_CLICKS, NOT_SHOWN, UNLISTED, RARE, LOST, GONE, NO_LINE = (
    "searches that a client asked again",
    "clicks of another client than the one that searched",
    "clicks that came again, or chose what was not shown",
    "searches that do not tell what was shown",
    "searches that fewer than three clients asked",
    "clicks without their search",
    "documents that the index does not have",
    "documents whose ids hold a tab or a line's end",
)
IdLookup: TypeAlias = Callable[["list[str]", "Counter[str]"], "dict[str, str]"]
"""Maps the document names in a log, and the counts of their fields, to the ids of existing documents."""


@dataclass(frozen=True)
class ClickReport(Reported):
    """Counts of a click log and of the judgements made from it, and what was left out, by reason.

    `queries` are different texts. `repeated` is the share of searches whose query another client had asked
    before, `covered` the share of searches whose query is now judged. `seen` gives by rank the share of
    people who look so far down; `clicked` how often a seen document is clicked if it is not relevant, and if
    it is.
    """

    searches: int
    clicks: int
    clients: int
    bots: int
    queries: int
    repeated: float
    judged: int
    covered: float
    relevant: int
    seen: tuple[float, ...]
    clicked: tuple[float, float]
    left_out: dict[str, int]


@dataclass(frozen=True)
class Clicks:
    """Judgements made from clicks: 1 relevant, 0 not; the `confidence` in each, and a report."""

    queries: list[Query]
    qrels: Qrels
    confidence: dict[str, dict[str, float]]
    report: ClickReport

    def write(self, folder: Path) -> None:
        """Write a folder for `--beir` of `tune`, `evaluate` and `learn`: queries.jsonl and qrels/test.tsv.

        `confidence.tsv` has the confidence in each judgement. All files are readable by their owner only.
        """
        texts = "".join(json.dumps({"_id": query, "text": text}) + "\n" for query, text in self.queries)
        for name, content in {
            "queries.jsonl": texts,
            "qrels/test.tsv": qrels_table(self.qrels),
            "confidence.tsv": qrels_table(self.confidence, "confidence"),
        }.items():
            (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(folder / name, private=True) as temporary:
                temporary.write_text(content, encoding="utf-8")


@dataclass
class Votes:
    """The votes of a click log, query by query, as columns of a table: see `Views`."""

    texts: list[str] = field(default_factory=list)
    people: list[int] = field(default_factory=list)
    documents: list[tuple[int, str]] = field(default_factory=list)
    rows: tuple[array[int], ...] = field(default_factory=lambda: tuple(array("q") for _ in range(5)))
    queries: int = 0
    voters: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def gather(self, text: str, clients: Iterable[Iterable[Look]]) -> None:
        """Add one vote for each client that asked a query: the search with the most clicks."""
        people, lists, chosen = 0, Counter[tuple[str, ...]](), Counter[tuple[str, int]]()
        for looks in clients:
            vote = NO_LOOK
            self.left_out[ASKED_AGAIN] -= 1
            for look in looks:
                self.left_out[ASKED_AGAIN] += 1
                self.left_out[FOREIGN_CLICKS] += look.others
                self.left_out[NOT_SHOWN] += look.clicks - look.others - len(look.clicked)
                vote = max(vote, look, key=lambda entry: (len(entry.clicked), len(entry.shown)))
            people += 1
            lists[vote.shown] += 1
            chosen.update((document, vote.shown.index(document)) for document in vote.clicked)
        self.queries += 1
        self.voters += people
        self.left_out[UNLISTED] += lists.pop((), 0)
        if people < MIN_CLIENTS:
            self.left_out[RARE] += people
        elif chosen:
            positions = Counter[tuple[str, int]]()
            for names, times in lists.items():
                for rank, name in enumerate(names):
                    positions[name, rank] += times
            query, first = len(self.texts), len(self.documents)
            numbers = {
                name: first + place for place, name in enumerate(dict.fromkeys(name for name, _ in positions))
            }
            self.texts.append(text)
            self.people.append(people)
            self.documents += [(query, name) for name in numbers]
            for (name, rank), times in positions.items():
                row = (query, numbers[name], rank, times, chosen[name, rank])
                for column, value in zip(self.rows, row, strict=True):
                    column.append(value)

    def views(self) -> Views:
        """Return the votes as arrays."""
        query, document, rank, views, clicked = (np.array(column, dtype=np.int64) for column in self.rows)
        return Views(query, document, rank, views.astype(np.float64), clicked.astype(np.float64))


def read_clicks(
    cluster: Cluster, name: str, log: Path | None = None, *, progress: Progress = silent
) -> Clicks:
    """Read clicks on the documents of an index, from UBI in its cluster or from a file; return judgements.

    The log streams through a temporary file on this disk; only queries that several people asked are used.
    Raises NotFound if UBI keeps nothing, DataError for an unreadable file, or a log without usable clicks.
    """
    info = resolve(cluster, name)
    records = read_log_file(log) if log else read_ubi_records(cluster)
    return judge_clicks(records, partial(fetch_ids_by_name, cluster, info), progress)


def judge_clicks(records: LogRecords, look_up_ids: IdLookup, progress: Progress = silent) -> Clicks:
    """Return judgements from the records of a log; `look_up_ids` maps the log's document names to ids. Raises
    DataError as `read_clicks`.
    """
    reader, votes = LogReader(), Votes()
    with tempfile.TemporaryDirectory(prefix="hybridr-clicks-") as folder:
        with closing(ClickLedger(Path(folder), reader)) as ledger:
            entries = (entry for entry in map(reader.read, records) if entry is not None)
            ledger.fill(entries, progress)
            for text, clients in ledger.looks():
                votes.gather(text, clients)
            counts = ledger.counts()
            left_out = reader.left_out + votes.left_out + Counter({LOST: ledger.count(LOST_CLICKS)})
    if not votes.documents:
        raise DataError(
            f"{counts['searches']:,} searches and {counts['clicks']:,} clicks give no judgement: "
            f"no query was asked by {MIN_CLIENTS} clients of whom one clicked a document that it showed",
            hint=reasons_in(left_out) or "the log is empty",
        )
    existing = look_up_ids([doc_id for _, doc_id in votes.documents], reader.fields)
    return judgements_from_votes(votes, existing, counts, left_out)


def judgements_from_votes(
    votes: Votes, existing: Mapping[str, str], counts: Mapping[str, int], left_out: Counter[str]
) -> Clicks:
    """Return judgements of the documents that exist; queries without a relevant one are dropped. Raises
    DataError if none is left.
    """
    views = votes.views()
    limited = limit_query_weight(views, WEIGHTIEST)
    model = fit_clicks(limited)
    probability, clickers = model.relevance(limited), sum_by_document(views, views.clicked)
    relevant = (probability >= SURE) & (clickers >= MIN_CLICKS)
    unlikely = model.odds(limited) <= UNLIKELY
    grades: dict[int, dict[str, tuple[int, float]]] = {}
    for place, (query, name) in enumerate(votes.documents):
        left_out[GONE] += name not in existing
        if name in existing and not fits_column(existing[name]):
            left_out[NO_LINE] += 1
        elif name in existing and (relevant[place] or unlikely[place]):
            certainty = float(probability[place] if relevant[place] else 1 - probability[place])
            grades.setdefault(query, {})[existing[name]] = (int(relevant[place]), round(certainty, 3))
    with_grades = {
        query: documents
        for query, documents in grades.items()
        if any(grade for grade, _ in documents.values())
    }
    if not with_grades:
        raise DataError("the clicks make no document of the index relevant", hint=reasons_in(left_out))
    report = ClickReport(
        **counts,
        queries=votes.queries,
        repeated=1 - votes.queries / votes.voters,
        judged=len(with_grades),
        covered=sum(votes.people[query] for query in with_grades) / votes.voters,
        relevant=sum(grade for documents in with_grades.values() for grade, _ in documents.values()),
        seen=tuple(round(float(count), 3) for count in model.examined[:SHOWN_RANKS]),
        clicked=(round(float(model.clicked[0]), 3), round(float(model.clicked[1]), 3)),
        left_out={reason: count for reason, count in sorted(left_out.items()) if count},
    )
    clicks = Clicks([], {}, {}, report)
    for query, documents in with_grades.items():
        query_id = f"{short_digest(votes.texts[query]):016x}"
        clicks.queries.append(Query(query_id, votes.texts[query]))
        clicks.qrels[query_id] = {doc_id: grade for doc_id, (grade, _) in documents.items()}
        clicks.confidence[query_id] = {doc_id: certainty for doc_id, (_, certainty) in documents.items()}
    return clicks


def reasons_in(left_out: Counter[str]) -> str:
    """Return the reasons why records were left out, with counts, most frequent first."""
    return "; ".join(f"{count:,} {reason}" for reason, count in left_out.most_common() if count)
