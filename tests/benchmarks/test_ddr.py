from __future__ import annotations

import json
from pathlib import Path

import pytest

import run
from hybridr.exporting.model_files import write_model
from hybridr.files.formats import write_beir
from hybridr.records import Query
from support.tiny import tiny_corpus, tiny_retriever


@pytest.fixture
def collections(tmp_path: Path) -> Path:
    for seed, (name, split) in enumerate([("source", "train"), ("target", "test")]):
        documents = tiny_corpus(60, seed=seed)
        queries = [Query(f"q{i}", " ".join(documents[i].text.split()[:5])) for i in range(12)]
        qrels = {query.query_id: {documents[i].doc_id: 1} for i, query in enumerate(queries)}
        write_beir(tmp_path / name, documents, queries, qrels)
        if split == "train":
            (tmp_path / name / "qrels" / "test.tsv").rename(tmp_path / name / "qrels" / "train.tsv")
    return tmp_path


def test_dr_versus_ddr_runs_every_row_and_goes_on(
    collections: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone = tmp_path / "backbone"
    backbone.mkdir()
    write_model(tiny_retriever(), backbone)
    options = {
        "--form": "smoke",
        "--work": tmp_path / "work",
        "--backbone": backbone,
        "--json": tmp_path / "ddr.json",
    }
    for kept in (False, True, False):
        if not kept:
            (tmp_path / "ddr.json").unlink(missing_ok=True)
        assert (
            run.main(["ddr", str(collections), *(str(one) for pair in options.items() for one in pair)]) == 0
        )
    record = json.loads((tmp_path / "ddr.json").read_text())
    systems = record["targets"]["target"]["systems"]
    assert list(systems) == ["bm25", "as-is", "source", "dr", "ddr", "ddr-si", "ddr-df", "parallel", "both"]
    assert all(0 <= values["nDCG@10"] <= 1 for values in systems.values())
    assert record["targets"]["target"]["documents"] == 60
    found = capsys.readouterr()
    tables = found.out.split("| nDCG@10 | target (12 queries) |")
    assert len(tables) == 4
    assert tables[1] == tables[2] == tables[3]
    assert found.err.count("target: ddr ranked") == 2
