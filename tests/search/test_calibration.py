"""The scale of an encoder's cosines: measured once, kept by fingerprint."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.dialects.plain import Native
from hybridr.files import remembered
from hybridr.search import calibration
from hybridr.search.calibration import MINILM_SPREAD, QUESTIONS, STATEMENTS, cosine_scale, scale_factor
from hybridr.search.search import Search
from support.indices import index_with_vectors

DIM = 4


class CountingEncoder:
    similarity, max_tokens, dim = "cosine", 256, DIM

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint, self.asked = fingerprint, 0

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        self.asked += 1
        made = np.random.default_rng(len(self.fingerprint)).normal(size=(len(texts), DIM))
        return (made / np.linalg.norm(made, axis=1, keepdims=True)).astype(np.float32)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        return -self.encode_queries(texts)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    monkeypatch.setattr(remembered, "_spreads", {})
    return tmp_path


def dense_scale(encoder: Any) -> float:
    cosines = encoder.encode_queries(QUESTIONS) @ encoder.encode_documents(STATEMENTS).T
    return scale_factor(float(cosines.std()), MINILM_SPREAD)


def test_an_encoder_is_asked_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = CountingEncoder("f1")
    expected = dense_scale(encoder)
    encoder.asked = 0
    assert [cosine_scale(encoder, None).factor for _ in range(3)] == [expected] * 3
    assert encoder.asked == 2, "the questions and the statements"
    assert [*json.loads((home / "state/spreads.json").read_text())] == ["f1 fp32 onnx", "f1 fp32 onnx centre"]
    monkeypatch.setattr(remembered, "_spreads", {})  # as another process
    assert cosine_scale(encoder, None).factor == expected
    assert encoder.asked == 2
    assert cosine_scale(CountingEncoder("another"), None).factor != expected


def test_searches_of_one_encoder_and_their_other_modes_measure_once() -> None:
    info = index_with_vectors(encoder="f2", dim=DIM, lexical_fields=["text"])
    runs_scripts = {"version": (3, 6, 0), "dialect": Native(), "search": lambda *_: {}}
    encoder, cluster = CountingEncoder("f2"), type("Cluster", (), runs_scripts)()
    first: Any = Search(cluster, info, encoder)
    again = first.using("hybrid"), first.using("dense").using("hybrid"), Search(cluster, info, encoder)
    for search in (first, *again):
        assert (search.fusion, search.dense_scale) == ("absolute", first.dense_scale)
    assert encoder.asked == 2


@pytest.mark.attack(104)
def test_a_search_does_not_fail_where_nothing_can_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(remembered, "write_json", refused)
    encoder = CountingEncoder("f4")
    assert cosine_scale(encoder, None).factor == cosine_scale(encoder, None).factor
    assert encoder.asked == 2
    assert len(QUESTIONS) == len(calibration.STATEMENTS)


def test_the_factor_is_bounded() -> None:
    assert scale_factor(0.0, MINILM_SPREAD) == scale_factor(1e-9, MINILM_SPREAD) == 8.0
