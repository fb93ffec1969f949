"""Encoder folders: what is damaged is refused, and the fastest backend that works is found by trials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from hybridr.encoders import machine, opening
from hybridr.encoders.engines import GRAPHS
from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import OnnxEncoder, load_encoder
from hybridr.errors import ModelError
from hybridr.files.local import state_folder
from hybridr.indexing.settings import ReindexSettings
from hybridr.settings import resolve_stage
from support.tiny import tiny_texts

pytestmark = pytest.mark.usefixtures("fresh_home")
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def test_a_trial_survives_a_child_that_dies_by_a_signal(tiny: Path) -> None:
    assert machine.try_program(DIES) == "killed by SIGILL"
    assert machine.try_program("import os; os.kill(os.getpid(), 40)") == "killed by signal 40"
    assert machine.try_program("raise SystemExit('no such thing')") == "no such thing"
    assert machine.try_program("raise SystemExit(3)") == "ended with 3"
    assert machine.try_program(opening.PROGRAM, str(tiny), "int8", "onnx") == ""
    strict = f"from hybridr.encoders import opening; opening.MIN_COSINE = 2; {opening.PROGRAM}"
    reason = machine.try_program(strict, str(tiny), "fp32", "onnx")
    assert reason == "its vectors have a cosine of 1.000 to fp32"


def test_a_trial_is_remembered(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for reason, found in (("died of SIGILL", "died"), ("", "died")):
        monkeypatch.setattr(opening, "try_program", lambda *_, told=reason: told)
        with pytest.raises(ModelError, match=found) as refused:
            opening.require_working(tiny, "bf16", "torch")
    file = state_folder() / opening.FILE
    assert len(json.loads(file.read_text())) == 1
    name, value = str(refused.value.hint).split()[0].split("=")  # `sync` has no option for it
    monkeypatch.setenv(name, value)
    settings, _ = resolve_stage(ReindexSettings, {})
    opening.require_backend("torch", str(settings.chosen_precision))
    opening.load_encoder(tiny, precision=settings.chosen_precision, backend="onnx")
    file.write_text("{broken")
    opening.require_working(tiny, "bf16", "torch")


def test_no_texts_give_no_vectors(encoder: OnnxEncoder) -> None:
    assert (encoder.encode_documents([]).shape, encoder.encode_queries(()).dtype) == ((0, 32), np.float32)
    assert encoder.encode_documents(["", " "]).shape == (2, 32)


def test_threads_share_one_encoder(encoder: OnnxEncoder) -> None:
    texts = tiny_texts(20)
    expected = {limit: encoder.encode_documents(texts, max_tokens=limit) for limit in (8, 16, 64)}
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            (limit, pool.submit(encoder.encode_documents, texts, max_tokens=limit))
            for limit in (8, 16, 64) * 4
        ]
        for limit, job in jobs:
            np.testing.assert_allclose(job.result(), expected[limit], atol=1e-6)


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no encoder folder") as caught:
        load_encoder(tmp_path / "none")
    assert "hybridr adapt" in str(caught.value.hint)


def test_a_foreign_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"is not an encoder of hybridr: it has no manifest\.json"):
        load_encoder(tmp_path)
    (tmp_path / "manifest.json").write_text('{"stage": "load"}')
    with pytest.raises(ModelError, match="no encoder in its manifest.json"):
        load_encoder(tmp_path)
    (tmp_path / "manifest.json").write_text("{not json")
    with pytest.raises(ModelError, match="is damaged: .* not valid JSON"):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("onnx/model.onnx", "cut", "is damaged: onnx/model.onnx is not the file"),
        ("onnx/model.onnx", "remove", "is damaged: onnx/model.onnx is missing"),
        ("tokenizer.json", "cut", "is damaged: tokenizer.json is not the file"),
    ],
)
def test_a_damaged_folder_is_a_clear_error(folder, tmp_path, name, change, message):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    content = (copy / name).read_bytes()
    (copy / name).unlink()
    if change == "cut":
        (copy / name).write_bytes(content[:-100])
    with pytest.raises(ModelError, match=message) as caught:
        load_encoder(copy)
    assert "hybridr export" in str(caught.value.hint)


def test_a_folder_without_an_int8_graph_gets_it_in_the_cache(folder: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path / "cache"))
    before = sorted(path for path in folder.rglob("*"))
    vectors = load_encoder(folder, precision="int8").encode_documents(texts := tiny_texts(20))
    (made,) = (tmp_path / "cache" / "models").glob("*-int8-*.onnx")
    stamp = made.stat().st_mtime_ns
    exported = export(folder, tmp_path / "exported", precision="int8")
    assert made.read_bytes() == (exported / GRAPHS["int8"]).read_bytes()
    np.testing.assert_array_equal(load_encoder(folder, precision="int8").encode_documents(texts), vectors)
    assert made.stat().st_mtime_ns == stamp
    assert sorted(path for path in folder.rglob("*")) == before


@pytest.mark.model
def test_onnx_runtime_reports_nothing_to_its_makers(minilm_encoder_folder: Path, tmp_path: Path) -> None:
    code = f"import hybridr; hybridr.load_encoder({str(minilm_encoder_folder)!r}).encode_queries(['a'])"
    variables = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment = {**variables, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    assert not list(tmp_path.rglob("*onnxruntime*")), "a device id or a store of events"
