"""The race of encoders: contenders in processes of their own, in turns; what cannot run says why."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import run
from hybridr.encoders.export.exporting import export
from hybridr.files.formats import write_beir
from hybridr.records import Query
from hybridr_bench import contender, encoding
from support.tiny import tiny_corpus, tiny_retriever, tiny_texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_retriever(), tmp_path_factory.mktemp("encoder") / "tiny", precision="int8")


NAMES = ("sentence-transformers", "hybridr onnx fp32", "hybridr onnx int8")


def test_contenders_encode_the_same_texts_in_turns(folder: Path) -> None:
    """Those on a GPU run wherever torch finds one; without it ours runs on the processor, the peer says why
    it does not."""
    names = (*NAMES, *contender.ON_GPU)
    texts = [text for text in tiny_texts(40) if text]
    found = encoding.compare_encoders(folder, {"some": texts}, names=names, rounds=2)[0].record()
    assert (found["name"], found["documents"]) == ("some", len(texts))
    assert 40 < found["tokens"] <= 64 * len(texts)
    rows = {row["name"]: row for row in found["contenders"]}
    assert list(rows) == list(names)
    assert ("not_run" in rows["sentence-transformers gpu"]) is not torch.cuda.is_available()
    assert rows["hybridr torch fp32"]["cosine"]["least"] > 0.9999
    assert rows["sentence-transformers"]["ratio_by_round"] == [1.0, 1.0]
    for row in (row for row in rows.values() if "not_run" not in row):
        assert len(row["ratio_by_round"]) == 2
        assert row["cpu_s"] > 0
        assert row["peak_mb"] > 20
        assert row["documents_per_s"] == pytest.approx(len(texts) / row["wall_s"], rel=0.1)
    assert rows["sentence-transformers"]["cosine"]["least"] > 0.9999
    assert 0.98 < rows["hybridr onnx int8"]["cosine"]["least"] < rows["hybridr onnx int8"]["cosine"]["mean"]
    assert rows["sentence-transformers"]["peak_mb"] > 1.5 * rows["hybridr onnx int8"]["peak_mb"]
    assert "torch" in rows["sentence-transformers"]["versions"]
    assert "torch" not in rows["hybridr onnx int8"]["versions"]


def test_what_cannot_run_is_told_with_its_reason_and_never_filled_in(folder, tmp_path, monkeypatch):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without any installed package
    bare.chmod(0o755)
    names = ("sentence-transformers", "fastembed", "hybridr onnx fp32")
    rows = encoding.compare_encoders(folder, {"some": tiny_texts(5)}, names=names, rounds=1, peers=bare)[
        0
    ].record()["contenders"]
    assert rows[0] == {
        "name": "sentence-transformers",
        "not_run": "ModuleNotFoundError: No module named 'sentence_transformers'",
    }
    assert rows[1]["not_run"].endswith("No module named 'fastembed'")
    assert rows[2]["ratio"] == 1.0


def test_a_contender_that_dies_is_a_result_too(folder: Path, tmp_path: Path) -> None:
    dying = tmp_path / "python"
    dying.write_text("#!/bin/sh\nkill -ILL $$\n")
    dying.chmod(0o755)
    names = ("fastembed", "hybridr onnx fp32")
    rows = encoding.compare_encoders(folder, {"some": tiny_texts(5)}, names=names, rounds=1, peers=dying)[
        0
    ].record()["contenders"]
    assert rows[0] == {"name": "fastembed", "not_run": "its process ended with -4"}


def test_the_command(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = tiny_corpus(30)
    query = Query("q", "kolan")
    write_beir(tmp_path / "beir", documents, [query], {"q": {documents[0].doc_id: 1}})
    file = tmp_path / "encode.json"
    command = ["speed", "encode", "--beir", str(tmp_path / "beir"), "--encoder", str(folder)]
    command += ["--documents", "10", "--rounds", "1", "--contenders", "hybridr onnx fp32,hybridr onnx int8"]
    assert run.main([*command, "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert (found["sets"][0]["name"], found["sets"][0]["documents"]) == ("beir", 10)
    assert found["settings"] == {"documents": 10, "rounds": 1, "encoder": "tiny"}
    assert {"cpu", "features", "versions"} <= found["machine"].keys()
    assert "| hybridr onnx int8 |" in capsys.readouterr().out


def test_without_a_folder_pythons_documentation_is_encoded() -> None:
    found = encoding.read_texts([], 50)
    assert {name: len(texts) for name, texts in found.items()} == {"pydocs": 50, "pydocs lines": 50}
    assert np.mean([len(text) for text in found["pydocs"]]) > np.mean(
        [len(text) for text in found["pydocs lines"]]
    )
