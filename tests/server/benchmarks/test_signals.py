"""The study of signals on a real node: the whole way from a folder to a result, and nothing done twice."""

from __future__ import annotations

import json

import run
from conditions import Condition
from hybridr.cluster.destinations import resolve
from hybridr.files.formats import write_beir
from hybridr.indexing.terms import storage
from hybridr.records import Document, Query
from studies import signals
from support.corpus import text_number

SYSTEMS = ["bm25", "hybrid-stock", "hybrid-plain", "phrases", "soft_terms", "hybrid"]


def test_a_collection_is_measured_once(cluster, index_name, tmp_path, monkeypatch, own_home):
    corpus = [Document(f"d{i}", text_number(i)) for i in range(40)]
    queries = [Query(f"q{i}", " ".join(text_number(i).split()[:4])) for i in range(12)]
    write_beir(tmp_path / index_name, corpus, queries, {f"q{i}": {f"d{i}": 1} for i in range(12)})
    measures = ["nDCG@10", "R@100"]
    conditions = {index_name: Condition(index_name, "twelve", "test", 10, 13, measures, ["bm25"], 0.01)}
    monkeypatch.setattr(signals, "read_conditions", lambda: conditions)
    monkeypatch.setattr(storage, "MIN_TERMS", 1)
    results = tmp_path / "results"
    places = ["--url", cluster.url, "--runs", str(tmp_path / "runs"), "--results", str(results)]
    assert run.main(["signals", str(tmp_path), "--sets", index_name, *places]) == 0

    file = results / "signals" / f"{index_name}.json"
    found = json.loads(file.read_text())
    assert set(SYSTEMS) <= found["systems"].keys()
    assert (found["documents"], found["queries"]) == (40, 10)
    compared = {one["system"] for one in found["comparisons"]["hybrid-plain"]}
    assert compared == found["systems"].keys() - {"hybrid-plain"}
    kept = resolve(cluster, f"{index_name}-hybridr").record.term_table
    assert (kept.fingerprint, kept.terms) == (
        found["term_table"]["fingerprint"],
        found["term_table"]["terms"],
    )
    assert found["index_bytes"] > 40 * 384 * 4
    written = file.stat().st_mtime_ns
    assert run.main(["signals", str(tmp_path), "--sets", index_name, *places]) == 0
    assert file.stat().st_mtime_ns == written
