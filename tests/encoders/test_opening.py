"""The fastest backend that works is found by trials in a process of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.encoders import opening
from hybridr.encoders.machine import Cpu
from hybridr.encoders.opening import OnnxEncoder, load_encoder
from hybridr.errors import ModelError
from hybridr.files.folders import state_folder

pytestmark = pytest.mark.usefixtures("fresh_home")
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def test_a_trial_survives_a_child_that_dies_by_a_signal(tiny: Path) -> None:
    assert opening.trouble_with(tiny, "fp32", "onnx", program=DIES) == "died of SIGILL"
    failed = opening.trouble_with(tiny, "fp32", "onnx", program="raise SystemExit('no such thing')")
    assert failed == "no such thing"
    assert opening.trouble_with(tiny, "fp32", "onnx", program="print(0.3)").endswith("0.300 to fp32")
    assert opening.trouble_with(tiny, "int8", "onnx") == ""


@pytest.mark.parametrize(
    ("seconds", "turned", "features", "chosen"),
    [
        ((2.0, 1.0), 0.05, "avx512_vnni", "int8: int8 is 2.0 times as fast as fp32 here, cosine 0.99"),
        ((1.0, 1.0), 0.0, "avx512_vnni", "fp32: int8 is 1.0 times as fast"),
        ((2.0, 1.0), 0.5, "avx512_vnni", "fp32: int8 is 2.0 times as fast as fp32 here, cosine 0.87"),
        ((2.0, 1.0), 0.0, "avx2", "fp32: this processor gains nothing by int8"),
    ],
)
def test_documents_are_encoded_in_what_is_faster_and_faithful(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, seconds: Any, turned: float, features: str, chosen: str
) -> None:
    def told(encoder: OnnxEncoder, texts: Any, _: Any) -> Any:
        angle, took = (turned, seconds[1]) if encoder.precision == "int8" else (0.0, seconds[0])
        return np.array([[np.cos(angle), np.sin(angle)]] * len(texts), dtype=np.float32), took

    monkeypatch.setattr(opening, "timed", told)
    monkeypatch.setattr(opening, "read_cpu", lambda: Cpu("a processor", frozenset([features])))
    found = opening.suited(load_encoder(tiny, precision="fp32"), ["one", "", "two"], 1_000_000)
    assert found.precision == chosen[:4]
    assert found.chosen.startswith(chosen)
    assert found.offers.chosen == found.chosen


def test_an_index_that_takes_minutes_stays_in_fp32(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "multiplies_bytes", lambda _: True)
    monkeypatch.setattr(opening, "timed", lambda encoder, texts, _: (np.ones((2, 1)), 0.2))
    monkeypatch.setattr(opening, "LEAST_GAIN", 0.0)
    for vectors, precision in ((2_999, "fp32"), (3_000, "int8")):  # .1 seconds each, on one thread
        encoder = load_encoder(tiny, precision="fp32", threads=1)
        found = opening.suited(encoder, ["one", "two"], vectors)
        assert found.precision == precision
        assert ("2,999 vectors take less than 5 minutes" in found.chosen) == (precision == "fp32")


def test_bf16_that_kills_its_process_leaves_fp32(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "trouble_with", lambda *_: "died of SIGILL")
    found = opening.suited(load_encoder(tiny, precision="fp32", backend="torch"), ["one"], 1_000_000_000)
    assert (found.precision, found.backend) == ("fp32", "torch")
    assert "bf16 does not work here" in found.chosen
    monkeypatch.setattr(OnnxEncoder, "__init__", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ModelError, match="bf16 of the backend torch does not work on this machine: died"):
        load_encoder(tiny, precision="bf16", backend="torch")


def test_a_trial_is_remembered(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for reason, found in (("died of SIGILL", "died"), ("", "died")):
        monkeypatch.setattr(opening, "trouble_with", lambda *_, told=reason: told)
        with pytest.raises(ModelError, match=found):
            opening.require_working(tiny, "bf16", "torch")
    file = state_folder() / opening.FILE
    assert len(json.loads(file.read_text())) == 1
    file.write_text("{broken")
    opening.require_working(tiny, "bf16", "torch")
