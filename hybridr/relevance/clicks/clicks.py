"""Turns a click log into judgements: which documents are relevant to which queries.

A client has one vote on a query, whatever it sends; a judgement needs the clicks of several clients. A click
model (`evaluation/click_model.py`) estimates how far down people look, so that a document is not relevant
just because it stood first.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ...cluster.connection import Cluster
from ...cluster.destinations import resolve
from ...errors import DataError
from ...evaluation.click_model import Views, fit_clicks, summed, tempered
from ...files.atomic import replacing
from ...files.formats import fits_column, qrels_table, short_digest
from ...records import Progress, Qrels, Query, Reported, silent
from .ledger import LOST_CLICKS, NO_LOOK, ClickLedger, Look
from .ubi import LogReader, LogRecords, ids_by_name, in_cluster, in_file

LEAST_CLIENTS, LEAST_CLICKS = 3, 2
"""People who asked a query, and who clicked a document: fewer say nothing, but much of themselves."""
WEIGHTIEST = 200
"""People whose clicks on one query count in full; those of more weigh no more."""
SHOWN_RANKS = 10
SURE, UNLIKELY = 0.5, -2.2
"""A judgement is `relevant` from this chance on; `not relevant` if its clicks are nine times likelier so."""
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
Known: TypeAlias = Callable[["list[str]", "Counter[str]"], "dict[str, str]"]
"""Maps the names that a log has for documents, told by these fields so often, to the ids of those there."""


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
        for name, written in {
            "queries.jsonl": texts,
            "qrels/test.tsv": qrels_table(self.qrels),
            "confidence.tsv": qrels_table(self.confidence, "confidence"),
        }.items():
            (folder / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(folder / name, private=True) as temporary:
                temporary.write_text(written, encoding="utf-8")


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
                self.left_out[NOT_SHOWN] += look.clicks - look.others - len(look.chosen)
                vote = max(vote, look, key=lambda entry: (len(entry.chosen), len(entry.shown)))
            people += 1
            lists[vote.shown] += 1
            chosen.update((document, vote.shown.index(document)) for document in vote.chosen)
        self.queries += 1
        self.voters += people
        self.left_out[UNLISTED] += lists.pop((), 0)
        if people < LEAST_CLIENTS:
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
    records = in_file(log) if log else in_cluster(cluster)
    return judged_by(records, partial(ids_by_name, cluster, info), progress)


def judged_by(records: LogRecords, judges: Known, progress: Progress = silent) -> Clicks:
    """Return judgements from the records of a log; `judges` maps the log's document names to ids. Raises
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
            left_out = reader.left_out + votes.left_out + Counter({LOST: ledger.number_of(LOST_CLICKS)})
    if not votes.documents:
        raise DataError(
            f"{counts['searches']:,} searches and {counts['clicks']:,} clicks tell nothing: "
            f"no query was asked by {LEAST_CLIENTS} clients one of whom clicked what it showed",
            hint=reasons_in(left_out) or "the log is empty",
        )
    there = judges([doc_id for _, doc_id in votes.documents], reader.fields)
    return judged_among(votes, there, counts, left_out)


def judged_among(
    votes: Votes, there: Mapping[str, str], counts: Mapping[str, int], left_out: Counter[str]
) -> Clicks:
    """Return judgements of the documents that exist; queries without a relevant one are dropped. Raises
    DataError if none is left.
    """
    views = votes.views()
    tamed = tempered(views, WEIGHTIEST)
    model = fit_clicks(tamed)
    chance, clickers = model.relevance(tamed), summed(views, views.clicked)
    relevant = (chance >= SURE) & (clickers >= LEAST_CLICKS)
    unlikely = model.odds(tamed) <= UNLIKELY
    grades: dict[int, dict[str, tuple[int, float]]] = {}
    for place, (query, name) in enumerate(votes.documents):
        left_out[GONE] += name not in there
        if name in there and not fits_column(there[name]):
            left_out[NO_LINE] += 1
        elif name in there and (relevant[place] or unlikely[place]):
            sure = float(chance[place] if relevant[place] else 1 - chance[place])
            grades.setdefault(query, {})[there[name]] = (int(relevant[place]), round(sure, 3))
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
        seen=tuple(round(float(count), 3) for count in model.seen[:SHOWN_RANKS]),
        clicked=(round(float(model.clicked[0]), 3), round(float(model.clicked[1]), 3)),
        left_out={reason: count for reason, count in sorted(left_out.items()) if count},
    )
    clicks = Clicks([], {}, {}, report)
    for query, documents in with_grades.items():
        query_id = f"{short_digest(votes.texts[query]):016x}"
        clicks.queries.append(Query(query_id, votes.texts[query]))
        clicks.qrels[query_id] = {doc_id: grade for doc_id, (grade, _) in documents.items()}
        clicks.confidence[query_id] = {doc_id: sure for doc_id, (_, sure) in documents.items()}
    return clicks


def reasons_in(left_out: Counter[str]) -> str:
    """Return the reasons why records were left out, with counts, most frequent first."""
    return "; ".join(f"{count:,} {reason}" for reason, count in left_out.most_common() if count)
