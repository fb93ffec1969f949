"""Encoder folders: what is damaged is refused, and the fastest backend that works is found by trials."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.encoders import opening
from hybridr.encoders.engines import GRAPHS
from hybridr.encoders.export.exporting import export
from hybridr.encoders.machine import Cpu
from hybridr.encoders.opening import OnnxEncoder, load_encoder
from hybridr.errors import ModelError
from hybridr.files.local import state_folder
from support.tiny import tiny_texts

pytestmark = pytest.mark.usefixtures("fresh_home")
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def test_a_trial_survives_a_child_that_dies_by_a_signal(tiny: Path) -> None:
    assert opening.try_backend(tiny, "fp32", "onnx", program=DIES) == "killed by SIGILL"
    nameless = "import os; os.kill(os.getpid(), 40)"
    assert opening.try_backend(tiny, "fp32", "onnx", program=nameless) == "killed by signal 40"
    failed = opening.try_backend(tiny, "fp32", "onnx", program="raise SystemExit('no such thing')")
    assert failed == "no such thing"
    assert opening.try_backend(tiny, "fp32", "onnx", program="print(0.3)").endswith("0.300 to fp32")
    assert opening.try_backend(tiny, "int8", "onnx") == ""


@pytest.mark.parametrize(
    ("seconds", "turned", "features", "chosen"),
    [
        ((2.0, 1.0), 0.05, "avx512_vnni", "int8: int8 is 2.0 times as fast as fp32 here, cosine 0.99"),
        ((1.0, 1.0), 0.0, "avx512_vnni", "fp32: int8 is 1.0 times as fast"),
        ((2.0, 1.0), 0.5, "avx512_vnni", "fp32: int8 is 2.0 times as fast as fp32 here, cosine 0.87"),
        ((2.0, 1.0), 0.0, "avx2", "fp32: int8 is not faster on this processor"),
    ],
)
def test_documents_are_encoded_in_what_is_faster_and_faithful(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, seconds: Any, turned: float, features: str, chosen: str
) -> None:
    def told(encoder: OnnxEncoder, texts: Any, _: Any) -> Any:
        angle, took = (turned, seconds[1]) if encoder.precision == "int8" else (0.0, seconds[0])
        return np.array([[np.cos(angle), np.sin(angle)]] * len(texts), dtype=np.float32), took

    monkeypatch.setattr(opening, "time_encoding", told)
    monkeypatch.setattr(opening, "read_cpu", lambda: Cpu("a processor", frozenset([features])))
    found = opening.with_faster_precision(load_encoder(tiny, precision="fp32"), ["one", "", "two"], 1_000_000)
    assert found.precision == chosen[:4]
    assert found.precision_reason.startswith(chosen)
    assert found.offers.precision_reason == found.precision_reason


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"onnx": 2.0, "openvino": 1.0}, ("int8", "openvino")),
        ({"onnx": 1.0, "openvino": 2.0}, ("int8", "onnx")),
        ({"onnx": 4.0, "openvino": 4.0}, ("fp32", "onnx")),
    ],
)
def test_the_fastest_of_all_installed_backends_is_taken(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], chosen: tuple[str, str]
) -> None:
    pytest.importorskip("openvino")

    def timed(encoder: OnnxEncoder, texts: Any, _: Any) -> Any:
        fast = encoder.precision == "int8"
        return np.ones((len(texts), 2), dtype=np.float32), seconds[encoder.backend] if fast else 4.0

    monkeypatch.setattr(opening, "time_encoding", timed)
    monkeypatch.setattr(opening, "read_cpu", lambda: Cpu("a processor", frozenset(["avx512_vnni"])))
    monkeypatch.setattr(
        opening, "try_backend", lambda folder, precision, backend: "" if precision == "int8" else "it dies"
    )
    encoder = load_encoder(tiny, precision="fp32")
    best = opening.with_faster_precision(encoder, ["one", "two"], 1_000_000, any_backend=True)
    assert (best.precision, best.backend) == chosen
    for words in ("int8 is ", "int8 by openvino is ", "bf16 by openvino does not work here"):
        assert words in best.precision_reason
    own = opening.with_faster_precision(encoder, ["one", "two"], 1_000_000)
    assert own.backend == "onnx", "a backend that is named stays"


def test_without_openvino_its_precisions_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "has_byte_products", lambda _: True)
    monkeypatch.setattr(opening, "find_spec", lambda name: None if name == "openvino" else object())
    assert opening.faster_variants("onnx", True) == [("onnx", "int8")]
    assert opening.usable_arithmetic("int8", "openvino") == ("fp32", "onnx")
    assert opening.usable_arithmetic("int8", "onnx") == ("int8", "onnx")
    assert opening.usable_arithmetic(None, None) == (None, None)


def test_an_index_that_takes_minutes_stays_in_fp32(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "has_byte_products", lambda _: True)
    monkeypatch.setattr(opening, "time_encoding", lambda encoder, texts, _: (np.ones((2, 1)), 0.2))
    monkeypatch.setattr(opening, "MIN_SPEED_UP", 0.0)
    for vectors, precision in ((2_999, "fp32"), (3_000, "int8")):  # .1 seconds each, on one thread
        encoder = load_encoder(tiny, precision="fp32", threads=1)
        found = opening.with_faster_precision(encoder, ["one", "two"], vectors)
        assert found.precision == precision
        assert ("2,999 vectors take less than 5 minutes" in found.precision_reason) == (precision == "fp32")


def test_bf16_that_kills_its_process_leaves_fp32(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "try_backend", lambda *_: "died of SIGILL")
    found = opening.with_faster_precision(
        load_encoder(tiny, precision="fp32", backend="torch"), ["one"], 1_000_000_000
    )
    assert (found.precision, found.backend) == ("fp32", "torch")
    assert "bf16 does not work here" in found.precision_reason
    monkeypatch.setattr(OnnxEncoder, "__init__", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ModelError, match="bf16 of the backend torch does not work on this machine: died"):
        load_encoder(tiny, precision="bf16", backend="torch")


def test_a_trial_is_remembered(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for reason, found in (("died of SIGILL", "died"), ("", "died")):
        monkeypatch.setattr(opening, "try_backend", lambda *_, told=reason: told)
        with pytest.raises(ModelError, match=found):
            opening.require_working(tiny, "bf16", "torch")
    file = state_folder() / opening.FILE
    assert len(json.loads(file.read_text())) == 1
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
