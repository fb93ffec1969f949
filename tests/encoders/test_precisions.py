"""The precision of documents: the fastest that stays near fp32, of what this machine has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.encoders import opening, precisions
from hybridr.encoders.machine import Cpu
from hybridr.encoders.opening import OnnxEncoder, load_encoder
from hybridr.encoders.registry import ENCODERS, KnownEncoder
from hybridr.errors import ModelError
from hybridr.files.remembered import remember_encoder

pytestmark = pytest.mark.usefixtures("fresh_home")


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

    monkeypatch.setattr(precisions, "time_encoding", told)
    monkeypatch.setattr(precisions, "read_cpu", lambda: Cpu("a processor", frozenset([features])))
    found = precisions.with_faster_precision(load_encoder(tiny, precision="fp32"), ["one", "", "two"], 10**6)
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
def test_the_fastest_of_all_installed_backends_is_taken(tiny, monkeypatch, seconds, chosen):
    pytest.importorskip("openvino")

    def timed(encoder: OnnxEncoder, texts: Any, _: Any) -> Any:
        fast = encoder.precision == "int8"
        return np.ones((len(texts), 2), dtype=np.float32), seconds[encoder.backend] if fast else 4.0

    monkeypatch.setattr(precisions, "time_encoding", timed)
    monkeypatch.setattr(precisions, "read_cpu", lambda: Cpu("a processor", frozenset(["avx512_vnni"])))
    monkeypatch.setattr(
        opening, "try_program", lambda _, folder, precision, backend: "" if precision == "int8" else "it dies"
    )
    encoder = load_encoder(tiny, precision="fp32")
    best = precisions.with_faster_precision(encoder, ["one", "two"], 1_000_000, any_backend=True)
    assert (best.precision, best.backend) == chosen
    of_openvino = " by openvino" * (chosen[1] == "openvino")
    assert best.precision_reason.startswith(f"{chosen[0]}{of_openvino}: int8 is ")
    for words in ("int8 is ", "int8 by openvino is ", "bf16 by openvino does not work here"):
        assert words in best.precision_reason
    own = precisions.with_faster_precision(encoder, ["one", "two"], 1_000_000)
    assert own.backend == "onnx", "a backend that is named stays"


def test_without_openvino_its_precisions_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "has_byte_products", lambda _: True)
    monkeypatch.setattr(precisions, "find_spec", lambda name: None if name == "openvino" else object())
    assert precisions.faster_variants("onnx", True) == [("onnx", "int8")]
    assert precisions.usable_arithmetic("int8", "openvino") == ("fp32", "onnx")
    assert precisions.usable_arithmetic("int8", "onnx") == ("int8", "onnx")
    assert precisions.usable_arithmetic(None, None) == (None, None)


def test_an_index_that_takes_minutes_stays_in_fp32(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precisions, "has_byte_products", lambda _: True)
    monkeypatch.setattr(precisions, "time_encoding", lambda encoder, texts, _: (np.ones((2, 1)), 0.2))
    monkeypatch.setattr(precisions, "MIN_SPEED_UP", 0.0)
    for vectors, precision in ((2_999, "fp32"), (3_000, "int8")):  # .1 seconds each, on one thread
        encoder = load_encoder(tiny, precision="fp32", threads=1)
        found = precisions.with_faster_precision(encoder, ["one", "two"], vectors)
        assert found.precision == precision
        assert ("2,999 vectors take less than 5 minutes" in found.precision_reason) == (precision == "fp32")


def test_bf16_that_kills_its_process_leaves_fp32(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "try_program", lambda *_: "died of SIGILL")
    found = precisions.with_faster_precision(
        load_encoder(tiny, precision="fp32", backend="torch"), ["one"], 1_000_000_000
    )
    assert (found.precision, found.backend) == ("fp32", "torch")
    assert "bf16 does not work here" in found.precision_reason
    monkeypatch.setattr(OnnxEncoder, "__init__", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ModelError, match="bf16 of the backend torch does not work on this machine: died"):
        load_encoder(tiny, precision="bf16", backend="torch")


def test_the_speed_of_a_known_encoder_is_measured_where_an_index_used_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = next(entry for entry in ENCODERS if entry.package)
    assert packaged.package
    fingerprint = load_encoder(tiny).fingerprint
    entry = replace(packaged, package=replace(packaged.package, fingerprint=fingerprint))
    assert precisions.documents_per_second(entry) is None
    remember_encoder(fingerprint, tiny)
    monkeypatch.setattr(precisions, "time_encoding", lambda encoder, *_: (None, 0.5 * encoder.threads))
    assert precisions.documents_per_second(entry) == 64
    assert precisions.documents_per_second(KnownEncoder("of-the-hub", "owner", ("en",), 8, 1)) is None
