"""Evaluation of an index on a real node."""

from __future__ import annotations

import ir_measures
import pytest

from support.corpus import beir_folder, drop_indices, part_of, text_number


@pytest.mark.model
@pytest.mark.timeout(900)
def test_hybrid_beats_bm25_on_an_open_collection(cluster, collection, minilm, tmp_path, cli):
    folder = part_of(collection("fiqa_mini"), tmp_path / "fiqa_mini", 45, 30)
    index, on = "t-fiqa_mini", ["--url", cluster.url]
    cli.typed(["load", str(folder), "--index", index, *on])
    cli.typed(["reindex", index, "--encoder", str(minilm), *on])
    systems = ["--systems", "bm25,rm3,dense,hybrid,hybrid-plain"]
    command = ["evaluate", index, "--beir", str(folder), "--runs", str(tmp_path), "--json", *systems, *on]
    found = cli.typed(command).json
    means = {system: values["nDCG@10"] for system, values in found["systems"].items()}
    assert means["bm25"] >= 0.585
    assert means["hybrid"] >= max(means["bm25"], means["rm3"]) + 0.02
    assert means["hybrid"] >= means["hybrid-plain"] - 0.002
    best = next(c for c in found["comparisons"] if (c["system"], c["measure"]) == ("hybrid", "nDCG@10"))
    assert best["p_value"] < 0.01
    assert best["wins"] + best["ties"] + best["losses"] == found["queries"]
    # The run file, read by another program, gives the same mean.
    run = ir_measures.read_trec_run(found["runs"]["hybrid"])
    qrels = [
        ir_measures.Qrel(*line.split("\t")[:2], int(line.split("\t")[2]))
        for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]
    ]
    again = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], qrels, run)
    assert again[ir_measures.nDCG @ 10] == pytest.approx(means["hybrid"], abs=1e-4)
    drop_indices(cluster, f"{index}*")


def test_evaluate_mixes_an_index_with_run_files_and_reports(cluster, index_name, tmp_path, cli):
    folder, on = beir_folder(tmp_path / "beir"), ["--url", cluster.url]
    cli.typed(["load", str(folder), "--index", index_name, *on])
    (tmp_path / "mine.trec").write_text("q1 Q0 d4 1 2.0 x\nq1 Q0 d3 2 1.0 x\n")
    command = ["evaluate", index_name, "--beir", str(folder), "--systems", "bm25,rm3", *on, "--json"]
    report = ["--run", f"mine={tmp_path / 'mine.trec'}", "--report", str(tmp_path / "a.html")]
    found = cli.typed(
        [*command, *report, "--baseline", "mine", "--measures", "nDCG@10,R@1000,RR@10,AP,Judged@10"]
    ).json
    assert list(found["systems"]) == ["bm25", "rm3", "mine"]
    assert found["systems"]["bm25"]["RR@10"] == 1.0
    assert found["systems"]["mine"]["AP"] == 0.5
    page = (tmp_path / "a.html").read_text()
    assert f"Title 3 {text_number(3)}" in page, "the text comes from the index"
    qrels = tmp_path / "other.tsv"
    qrels.write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q1\tx{n}\t1\n" for n in range(3)) + "q1\td1\t1\n"
    )
    assert (
        f"3 of 4 relevant documents of the qrels are not in '{index_name}'"
        in cli.typed([*command, "--qrels", str(qrels)], 1).err
    )
