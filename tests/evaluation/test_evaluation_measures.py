"""Measures equal trec_eval's own code (through pytrec_eval), ties, gaps and grades included."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridr.errors import DataError, SettingsError
from hybridr.evaluation.evaluation import (
    checked_qrels,
    needed_depth,
    parse_measure,
    query_values,
    tie_free_scores,
)
from hybridr.files.formats import read_qrels, read_run, trec_order, write_qrels, write_run

NAMES = {"nDCG@10": "ndcg_cut_10", "R@100": "recall_100", "AP": "map", "RR": "recip_rank", "P@5": "P_5"}

ids = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S")), min_size=1, max_size=3)
# Ties and neighbours in single precision, and what differs in double precision only.
scores = st.one_of(
    st.sampled_from(
        [0.0, 1.0, 1.0 + 1e-9, 1.0 - 1e-9, 1.0 + 2**-23, -2.0, 16777216.0, 16777217.0, 16777218.0]
    ),
    st.floats(-1e6, 1e6, allow_nan=False, width=64),
)
runs = st.dictionaries(
    st.sampled_from(["q1", "q2", "q3", "q4"]), st.dictionaries(ids, scores, max_size=15), min_size=1
)
grades = st.dictionaries(ids, st.integers(0, 3), min_size=1, max_size=6)


@st.composite
def judged_runs(draw: st.DrawFn) -> tuple[dict, dict]:
    """A run and qrels that share documents; some topics are only in one of them."""
    run = draw(runs)
    qrels = draw(st.dictionaries(st.sampled_from(["q1", "q2", "q3"]), grades, min_size=1))
    for query in qrels.keys() & run.keys():
        if run[query]:
            found = draw(st.lists(st.sampled_from(sorted(run[query])), max_size=6))
            qrels[query] |= {doc: draw(st.integers(0, 3)) for doc in found}
    return run, qrels


@given(judged_runs())
@settings(max_examples=50, deadline=None)
def test_values_are_trec_evals(case: tuple[dict, dict]) -> None:
    run, qrels = case
    measures = [parse_measure(name) for name in (*NAMES, "RR@10", "Judged@10")]
    values = query_values(run, qrels, measures, list(qrels))
    expected = pytrec_eval.RelevanceEvaluator(qrels, set(NAMES.values())).evaluate(
        {query: found for query, found in run.items() if found}
    )
    for query in qrels:
        theirs = expected.get(query, {})
        for ours, name in NAMES.items():
            assert values[ours][query] == pytest.approx(theirs.get(name, 0.0), abs=1e-12)
        reciprocal = theirs.get("recip_rank", 0.0)
        assert values["RR@10"][query] == pytest.approx(reciprocal if reciprocal >= 0.1 else 0.0)
        top = [doc for doc, _ in trec_order(run.get(query, {}))[:10]]
        judged = sum(doc in qrels[query] for doc in top) / max(len(top), 1)
        assert values["Judged@10"][query] == pytest.approx(judged)


@given(judged_runs())
@settings(max_examples=25, deadline=None)
def test_written_ranks_and_values_are_trec_evals(case: tuple[dict, dict]) -> None:
    run, qrels = case
    with TemporaryDirectory() as folder:
        file = Path(folder) / "a.trec"
        write_run(file, run, "a tag")
        write_qrels(Path(folder) / "qrels", qrels)
        assert read_qrels(Path(folder) / "qrels") == qrels
        lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
        again = read_run(file) if lines else {}
    for query, _, doc, rank, score, tag in lines:
        evaluator = pytrec_eval.RelevanceEvaluator({query: {doc: 1}}, {"recip_rank"})
        found = evaluator.evaluate({query: run[query]})[query]["recip_rank"]
        assert int(rank) == round(1 / found), "the rank that trec_eval gives this document"
        assert (np.float32(score), tag) == (dict(trec_order(run[query]))[doc], "a-tag")
    measures = [parse_measure(name) for name in NAMES]
    assert query_values(again, qrels, measures, [*qrels]) == query_values(run, qrels, measures, [*qrels])


@given(judged_runs())
@settings(max_examples=40, deadline=None, print_blob=True)
def test_written_files_are_worth_the_same_in_trec_eval(case: tuple[dict, dict]) -> None:
    """trec_eval's readers and ir-measures' read the files; the values are ours of the run in memory."""
    run, qrels = case
    measures = [parse_measure(name) for name in NAMES]
    values = query_values(run, qrels, measures, list(qrels))
    with TemporaryDirectory() as folder:
        file, judged = Path(folder) / "a.trec", Path(folder) / "qrels"
        write_run(file, run, "ours")
        write_qrels(judged, qrels)
        with file.open(encoding="utf-8") as found, judged.open(encoding="utf-8") as grades:
            evaluator = pytrec_eval.RelevanceEvaluator(pytrec_eval.parse_qrel(grades), set(NAMES.values()))
            theirs = evaluator.evaluate(pytrec_eval.parse_run(found))
        placed = list(ir_measures.read_trec_run(str(file)))
        read = list(ir_measures.read_trec_qrels(str(judged)))
        by_ir_measures = {
            (str(one.measure), one.query_id): one.value
            for one in ir_measures.pytrec_eval.iter_calc(measures, read, placed)
        }
    for query in qrels:
        for name, theirs_name in NAMES.items():
            value = pytest.approx(values[name][query], abs=1e-12)
            assert theirs.get(query, {}).get(theirs_name, 0.0) == value
            assert by_ir_measures.get((name, query), 0.0) == value


def test_ties_are_broken_by_descending_id() -> None:
    assert [doc for doc, _ in trec_order({"a": 1.0, "c": 1.0, "b": 1.0 + 1e-9, "d": 0.5})] == [*"cbad"]
    assert tie_free_scores({"a": 1.0, "c": 1.0, "d": 2.0}) == {"d": 3.0, "c": 2.0, "a": 1.0}


@pytest.mark.parametrize("score", [float("nan"), float("inf"), 1e39])
def test_scores_that_cannot_be_ranked(score: float) -> None:
    with pytest.raises(DataError, match="the score of document 'b' is"):
        trec_order({"a": 1.0, "b": score})


def test_depth_follows_the_cutoffs() -> None:
    def depth(*names: str) -> int:
        return needed_depth([parse_measure(name) for name in names])

    assert depth("nDCG@10") == 100
    assert depth("nDCG@10", "R@1000") == 1000
    assert depth("AP") == 1000
    assert depth("AP", "R@2000") == 2000


@pytest.mark.parametrize("name", ["nope", "nDCG@@3", "", "__import__('os')", "alpha_nDCG@banana"])
def test_unknown_measures(name: str) -> None:
    with pytest.raises(SettingsError, match="measure"):
        parse_measure(name)


def test_grades_are_whole_and_not_negative() -> None:
    assert checked_qrels({"q": {"a": -1, "b": 2}}) == {"q": {"a": 0, "b": 2}}
    with pytest.raises(DataError, match=r"gives document 'a' the grade 0.5"):
        checked_qrels({"q": {"a": 0.5}})  # type: ignore[dict-item]
