"""Evaluation on a hand-worked example, and its tests of significance."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from scipy import stats

from hybridr.errors import DataError, SettingsError
from hybridr.evaluation import compare, evaluate
from hybridr.formats import read_beir, write_beir, write_run
from hybridr.records import Document, Query

QUERIES = [Query("q1", "one"), Query("q2", "two"), Query("q3", "three")]
QRELS = {"q1": {"a": 1, "b": 0, "c": 2}, "q2": {"d": 1}, "q3": {"z": 1}}
RUN = {"q1": {"a": 3.0, "b": 2.0, "c": 1.0}, "q2": {"e": 1.0, "d": 0.5}}


def test_means_and_per_query_values() -> None:
    found = evaluate({"mine": RUN}, QUERIES, QRELS, ["nDCG@10", "R@100", "RR@10"])
    gain = 1 / math.log2(2) + 2 / math.log2(4)
    ideal = 2 / math.log2(2) + 1 / math.log2(3)
    values = found.per_query["mine"]
    assert values["nDCG@10"]["q1"] == pytest.approx(gain / ideal)
    assert values["nDCG@10"]["q2"] == pytest.approx(1 / math.log2(3))
    assert values["nDCG@10"]["q3"] == 0.0, "a query without results counts"
    assert found.systems["mine"]["nDCG@10"] == pytest.approx((gain / ideal + 1 / math.log2(3)) / 3)
    assert found.systems["mine"]["R@100"] == pytest.approx((1 + 1 + 0) / 3)
    assert values["RR@10"]["q2"] == pytest.approx(1 / 2)
    assert found.queries == 3


def test_paired_test_equals_scipys() -> None:
    ours, theirs = {"1": 0.5, "2": 0.7, "3": 0.4, "4": 0.2}, {"1": 0.4, "2": 0.5, "3": 0.4, "4": 0.3}
    found = compare("new", "old", "nDCG@10", ours, theirs)
    assert found.p_value == pytest.approx(stats.ttest_rel(list(ours.values()), list(theirs.values())).pvalue)
    assert found.difference == pytest.approx((0.1 + 0.2 + 0.0 - 0.1) / 4)
    assert (found.wins, found.ties, found.losses) == (2, 1, 1)
    assert compare("same", "old", "nDCG@10", theirs, theirs).p_value == 1.0


def test_table_compares_with_the_first_system() -> None:
    other = {**RUN, "q2": {"d": 1.0}}
    columns, rows = evaluate({"bm25": RUN, "hybrid": other}, QUERIES, QRELS).table()
    assert columns == ["system", "nDCG@10", "R@100", "nDCG@10 against bm25"]
    assert rows[0][-1] == ""
    assert rows[1][-1].startswith("+0.1230 (p ")


def test_refusals() -> None:
    with pytest.raises(DataError, match="no judged document was found"):
        evaluate({"mine": {"q1": {"elsewhere": 1.0}}}, QUERIES, QRELS)
    with pytest.raises(SettingsError, match="unknown measure 'nope'"):
        evaluate({"mine": RUN}, QUERIES, QRELS, ["nope"])
    with pytest.raises(SettingsError, match="no system"):
        evaluate({}, QUERIES, QRELS)


def test_run_file_is_trec(tmp_path: Path) -> None:
    write_run(tmp_path / "mine.trec", RUN, "mine")
    assert (tmp_path / "mine.trec").read_text().splitlines()[:2] == ["q1 Q0 a 1 3 mine", "q1 Q0 b 2 2 mine"]


def test_beir_folder_round_trip(tmp_path: Path) -> None:
    corpus = [Document("a", "text of a", "title"), Document("b", "b\nlines")]
    write_beir(tmp_path, corpus, QUERIES[:1], {"q1": {"a": 1}})
    assert read_beir(tmp_path) == (corpus, QUERIES[:1], {"q1": {"a": 1}})
    with pytest.raises(DataError, match="no qrels for split 'dev'") as caught:
        read_beir(tmp_path, "dev")
    assert caught.value.hint == "splits there: test"
