"""Stores judgements made on the page: a BEIR folder without documents, on this machine, one for each index.

Each judge has a file below `judges/`; `qrels/test.tsv` combines them. Files are readable by their owner only
and written atomically.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from threading import RLock
from typing import Any

from ...cluster.record import IndexInfo
from ...errors import DataError
from ...files.atomic import replacing
from ...files.folders import below, data_folder
from ...files.formats import fits_column, qrels_table, read_jsonl, read_qrels
from ...records import Qrels, Query
from ...relevance.settings import LEAST_JUDGED

WANTED = 30
"""Judged queries from which `tune` gains about .004 nDCG@10 in the mean (docs/ranking.md)."""
MOST_QUERIES, MOST_JUDGES = 20_000, 100
FILES = ("judges/*.tsv", "qrels/test.tsv", "queries.jsonl")


class Judgements:
    """The judgements of one index; safe to use from several threads of one process."""

    _lock = RLock()  # of all folders: two objects may write the same one

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, info: IndexInfo) -> Judgements:
        """Return the judgements of an index, shared by all indices with vectors of its source.

        The folder is named by the source's name and uuid. Raises DataError for a name that would lead outside
        of the data folder.
        """
        name = info.record.source or info.name
        uuid = info.record.source_uuid or info.uuid
        return cls(below(data_folder() / "judgements", f"{name}-{uuid}"))

    def queries(self) -> list[Query]:
        """Return all queries in the order in which they were added."""
        file = self.folder / "queries.jsonl"
        if not file.is_file():
            return []
        return [Query(record["_id"], record["text"]) for _, record in read_jsonl(file)]

    def add_queries(self, texts: Sequence[str]) -> int:
        """Store the texts that are no query yet, and return how many these are.

        Raises DataError if there were more queries than the page takes.
        """
        with self._lock:
            queries = {query.query_id: query for query in self.queries()}
            before = len(queries)
            for text in (" ".join(text.split()) for text in texts):
                if text:
                    queries.setdefault(id_of(text), Query(id_of(text), text))
            if len(queries) > MOST_QUERIES:
                raise DataError(
                    f"{len(queries):,} queries, and {MOST_QUERIES:,} can be judged here",
                    hint="fewer; hybridr tune --beir takes any number of judged ones",
                )
            records = [{"_id": query.query_id, "text": query.text} for query in queries.values()]
            lines = (f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)
            self._write(self.folder / "queries.jsonl", "".join(lines))
            return len(queries) - before

    def judges(self) -> list[str]:
        """Return the names of all judges."""
        return sorted(file.stem for file in self.folder.glob("judges/*.tsv"))

    def of_judge(self, judge: str) -> Qrels:
        """Return the grades of one judge. Raises DataError for a name that cannot be a file name."""
        file = self._file_of(judge)
        return read_qrels(file) if file.is_file() else {}

    def judge(self, judge: str, query_id: str, grades: Mapping[str, int]) -> None:
        """Store a judge's grades of a query, replacing earlier ones. Raises DataError for an unknown
        query.
        """
        if bad := [doc_id for doc_id in grades if not fits_column(doc_id)]:
            raise DataError(f"the document id {bad[0]!a} has a tab or a line's end: qrels cannot hold it")
        if judge not in (judges := self.judges()) and len(judges) >= MOST_JUDGES:
            raise DataError(
                f"{MOST_JUDGES} people judge already", hint="more by the command line: tune --beir"
            )
        with self._lock:
            if query_id not in {query.query_id for query in self.queries()}:
                raise DataError(f"there is no query '{query_id[:40]}'")
            all_grades = {**self.of_judge(judge), query_id: dict(grades)}
            self._write(self._file_of(judge), qrels_table(all_grades))
            self._write(self.folder / "qrels" / "test.tsv", qrels_table(self.together()))

    def together(self) -> Qrels:
        """Return the combined grades: a document is relevant if more than half of its judges say so."""
        by_query: dict[str, dict[str, list[int]]] = {}
        for judge in self.judges():
            for query_id, grades in self.of_judge(judge).items():
                for doc_id, grade in grades.items():
                    by_query.setdefault(query_id, {}).setdefault(doc_id, []).append(grade)
        return {
            query_id: {doc_id: int(2 * sum(votes) > len(votes)) for doc_id, votes in documents.items()}
            for query_id, documents in by_query.items()
        }

    def standing(self) -> dict[str, Any]:
        """Return progress and agreement of the judges; a query counts if it has a relevant document."""
        judges = {judge: self.of_judge(judge) for judge in self.judges()}
        relevant = [query_id for query_id, grades in self.together().items() if any(grades.values())]
        return {
            "wanted": WANTED,
            "least": LEAST_JUDGED,
            "queries": len(self.queries()),
            "judged": len(relevant),
            "judges": {judge: len(said) for judge, said in judges.items()},
            "agreement": [
                {"judges": [judge, second], **agreement}
                for judge, second in combinations(judges, 2)
                if (agreement := agreement_of(judges[judge], judges[second]))
            ],
        }

    def exported(self) -> bytes:
        """Return the judgements as the bytes of a ZIP file."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in (file for pattern in FILES for file in sorted(self.folder.glob(pattern))):
                archive.write(file, file.relative_to(self.folder))
        return packed.getvalue()

    def _file_of(self, judge: str) -> Path:
        """Return the file of a judge's judgements."""
        return below(self.folder / "judges", f"{judge}.tsv")

    def _write(self, file: Path, text: str) -> None:
        """Write a file atomically, readable by its owner only."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(file, private=True) as temporary:
            temporary.write_text(text, encoding="utf-8")


def id_of(text: str) -> str:
    """Return the id of a query, a digest of its text, so that equal queries are stored once."""
    return blake2b(text.encode(), digest_size=6).hexdigest()


def agreement_of(left: Qrels, right: Qrels) -> dict[str, Any] | None:
    """Return the agreement of two judges: `documents` that both judged, the `same` share, and Cohen's
    `kappa`.

    Kappa is 1 for full agreement, 0 for that of chance, None if both always gave the same single grade. None
    if they judged nothing in common.
    """
    pairs = [
        (grade, right[query_id][doc_id])
        for query_id, grades in left.items()
        for doc_id, grade in grades.items()
        if doc_id in right.get(query_id, {})
    ]
    if not pairs:
        return None
    same = sum(left == right for left, right in pairs) / len(pairs)
    first, second = (sum(pair[side] for pair in pairs) / len(pairs) for side in (0, 1))
    chance = first * second + (1 - first) * (1 - second)
    kappa = None if chance == 1 else (same - chance) / (1 - chance)
    return {"documents": len(pairs), "same": same, "kappa": kappa}
