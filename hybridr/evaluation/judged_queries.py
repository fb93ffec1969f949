"""Judged queries: where they and their judgements lie, read in one place for all who ask."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ..errors import SettingsError
from ..files.formats import qrels_file, read_qrels, read_queries
from ..records import Qrels, Query


class JudgedQueries(NamedTuple):
    """Queries with judgements: of a split of a BEIR folder, or with `qrels` those of that file.

    Without the folder queries have no text, which is enough to measure runs.
    """

    beir: Path | None = None
    split: str = "test"
    qrels: Path | None = None

    def read(self, *, with_texts: bool = False) -> tuple[list[Query], Qrels]:
        """Read them. Raises SettingsError where there are no judgements, or no texts and these are needed,
        DataError with file and line for what is wrong."""
        if self.qrels is None and self.beir is None:
            raise SettingsError("no judgements", hint="--qrels FILE, or --beir FOLDER")
        if with_texts and self.beir is None:
            raise SettingsError("judgements without queries", hint="--beir FOLDER has the queries' texts")
        judgements = read_qrels(self.qrels or qrels_file(self.beir or Path(), self.split))
        if self.beir is None:
            return [Query(one, "") for one in judgements], judgements
        return read_queries(self.beir, judgements), judgements

    def read_if_given(self) -> tuple[list[Query], Qrels] | None:
        """Read them with their texts; None where neither folder nor file was named."""
        return self.read(with_texts=True) if self.beir or self.qrels else None
