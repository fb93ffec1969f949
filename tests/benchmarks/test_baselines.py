"""The formula and the explanations of the study `baselines`, and the section made of its result."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest

from hybridr.records import Query
from rankings import Formula, byte_length, explain
from run import main
from studies import baselines
from support.places import ROOT

QRELS = {"q1": {"a": 1, "z": 0}, "q2": {"c": 2}}
QUERIES = [Query("q1", "one"), Query("q2", "two")]


# Lengths and what SmallFloat.byte4ToInt(intToByte4(length)) of Lucene 9 gives for them.
LENGTHS = {0: 0, 7: 7, 23: 23, 24: 24, 39: 39, 40: 40, 41: 40, 42: 42, 57: 56, 100: 96, 129: 128, 1000: 984}


def test_lengths_in_one_byte() -> None:
    assert {length: byte_length(length) for length in LENGTHS} == LENGTHS


def test_a_byte_holds_every_length() -> None:
    read = {byte_length(length) for length in range(100_000)}
    assert len(read) <= 256
    assert all(byte_length(length) == length for length in read)


def test_the_formula_by_hand() -> None:
    # N 3 (the empty document does not count), mean length 4; idf of b: ln(1 + 1.5 / 2.5)
    documents = [{"a": 1, "b": 2}, {"b": 1, "c": 3}, {"a": 5}, {}]
    scores = Formula(documents, 1.2, 0.75, in_bytes=True).scores({"b": 2, "unseen": 1})
    idf = math.log(1.6)
    shorter = idf * 2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 4))
    longer = idf * 1 / (1 + 1.2 * (0.25 + 0.75 * 4 / 4))
    assert scores == pytest.approx([2 * shorter, 2 * longer, 0, 0])


def test_what_runs_differ_in() -> None:
    ours = {"q1": {"a": 4.0, "b": 2.0, "c": 2.0}, "q2": {"a": 2.0, "b": 1.0}, "q3": {"a": 1.0}}
    theirs = {"q1": {"a": 8.0, "b": 4.0001, "c": 4.0}, "q2": {"a": 3.0, "b": 3.1}, "q3": {"a": 2.0}}
    found = explain(ours, theirs)
    assert found["scale"] == pytest.approx(0.5)
    assert (found["changed"], found["ties"]) == (2, 1)
    assert found["largest"] == pytest.approx(abs(1 / 3.1 / 0.5 - 1))
    assert found["typical"] < 1e-4


def test_runs_are_held_against_ours() -> None:
    ours = {"bm25": {"q1": {"a": 2.0}, "q2": {"c": 1.0}}}
    theirs = {"runs": {"formula": ours["bm25"], baselines.EXACT: {"q1": {"z": 1.0}, "q2": {"c": 1.0}}}}
    found = baselines.held_against(ours, theirs, "formula", QUERIES, QRELS, theirs["runs"][baselines.EXACT])
    assert (found["runs"]["formula"]["difference"], found["runs"]["formula"]["ours"]) == (0, "bm25")
    assert found["runs"][baselines.EXACT]["difference"] == pytest.approx(0.5)
    assert found["runs"][baselines.EXACT]["with_exact_lengths"]["changed"] == 0


def record(rm3: float) -> dict[str, Any]:
    """A result with two collections, of which one was measured with Pyserini only."""
    told = {"scale": 1.0, "typical": 2e-8, "largest": 1e-4, "changed": 3, "ties": 2}
    runs = {
        name: {
            "nDCG@10": 0.4,
            "ours": ours,
            "difference": {"pyserini rm3": rm3}.get(name, -0.0015),
            "explained": told,
        }
        for name, ours in baselines.PEERS["pyserini"].items()
    }
    found = {
        "documents": 1398,
        "queries": 1000,
        "of_queries": 9885,
        "ours": {"bm25": {"nDCG@10": 0.3985}, "rm3": {"nDCG@10": 0.4 + rm3}},
        "peers": {"pyserini": {"runs": runs, "terms": {"documents": 0, "queries": 7}}},
    }
    return {
        "machine": {"cpu": "x", "cores": 2},
        "opensearch": "3.6.0",
        "versions": {"pyserini": "1.6.0"},
        "settings": {"k1": 1.2, "b": 0.75, "depth": 100, "queries": 1000, "seed": 0, "rm3": [10, 10, 0.5]},
        "sets": {"shop": found, "none": {"peers": {}}},
    }


def test_the_section_says_whether_the_bars_are_held() -> None:
    page = baselines.render(record(0.0051))
    assert "BM25 is within 0.002 of Pyserini on 1 collections: 0.0015 at most (shop)." in page
    assert "RM3 is NOT within 0.004 of Pyserini on 1 collections: 0.0051 at most (shop)." in page
    assert "RM3 is within 0.004" in baselines.render(record(-0.004))
    assert "| shop | 0.3985 | 0.4000 (-0.0015) | not run | not run | 0.4051 | 0.4000 (+0.0051) |" in page
    assert "| shop | 1,398 | 1,000 | 0 documents, 7 queries | not run | 2e-08 / 3 / 2 |" in page
    assert "1,000 random queries (seed 0) of shop." in page
    assert "Dense and fusion" not in page
    assert "none" not in page


def test_the_committed_result_holds_the_bars() -> None:
    file = ROOT / "benchmarks" / "results" / f"{baselines.SECTIONS[0].result}.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    for run, (_, bar) in baselines.BARS.items():
        for name, one in found["sets"].items():
            assert abs(baselines.runs_of(one)[run]["difference"]) <= bar, name


def test_a_peer_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)bm25s ended with 1: .*settings\.json"):
        baselines.rank_by_peer("bm25s", sys.executable, tmp_path)
    with pytest.raises(SystemExit, match="0"):
        main(["baselines", "--help"])
