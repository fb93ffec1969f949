"""A tiny encoder, and a home in which no backend was tried before."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import OnnxEncoder, load_encoder
from support.tiny import tiny_retriever


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(
        tiny_retriever(query="ask ", document="balan "), tmp_path_factory.mktemp("encoder") / "tiny"
    )


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_retriever(), tmp_path_factory.mktemp("encoder") / "tiny", precision="int8")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> OnnxEncoder:
    return load_encoder(folder)


@pytest.fixture
def fresh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path / "home"))
