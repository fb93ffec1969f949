"""Judged queries: with texts or without, from a folder or a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridr.errors import SettingsError
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.records import Query


@pytest.fixture
def qrels(tmp_path: Path) -> Path:
    file = tmp_path / "some.tsv"
    file.write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\n")
    return file


def test_a_folder_gives_the_texts_of_the_queries_that_a_file_judges(tmp_path: Path, qrels: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "sea"}\n{"_id": "q2", "text": "tide"}\n')
    judged = JudgedQueries(tmp_path, qrels=qrels)
    assert judged.read_if_given() == ([Query("q1", "sea")], {"q1": {"d1": 2}})


def test_a_file_alone_measures_runs_and_no_searches(qrels: Path) -> None:
    judged = JudgedQueries(qrels=qrels)
    assert judged.read() == ([Query("q1", "")], {"q1": {"d1": 2}})
    with pytest.raises(SettingsError, match="without queries"):
        judged.read_if_given()


def test_nothing_named_is_nothing_read() -> None:
    assert JudgedQueries().read_if_given() is None
    with pytest.raises(SettingsError, match="no judgements"):
        JudgedQueries().read()
