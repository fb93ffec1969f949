"""One small encoder, from which the hostile ones are made."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridr.encoders.export.exporting import export
from support.tiny import tiny_retriever


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Export an encoder of two small layers."""
    return export(tiny_retriever(), tmp_path_factory.mktemp("hostile") / "encoder")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Make a file that no model has a right to."""
    file = tmp_path / "secret" / "shadow"
    file.parent.mkdir()
    file.write_text("root:secret")
    return file
