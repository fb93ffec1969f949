"""What no model has a right to."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import hostile


@pytest.fixture(scope="session")
def encoder(tiny: Path) -> Path:
    """Name the small encoder from which the hostile ones are made."""
    return tiny


@pytest.fixture
def folder(encoder: Path, tmp_path: Path) -> Path:
    """Copy the small encoder as others publish a model."""
    return hostile.model(encoder, tmp_path / "model")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Make a file that no model has a right to."""
    file = tmp_path / "secret" / "shadow"
    file.parent.mkdir()
    file.write_text("root:secret")
    return file
