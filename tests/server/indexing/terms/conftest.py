"""Machines that know no term table yet, and tables in several parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hybridr.indexing.terms import storage


@pytest.fixture
def other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Go on as on a machine that has no copy of a table, neither on disk nor in memory."""

    def move() -> None:
        monkeypatch.setattr(storage, "data_folder", lambda: tmp_path / "elsewhere")
        storage._open.clear()
        storage._missing.clear()

    return move


@pytest.fixture(autouse=True)
def few_words_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep tables of the tests' size."""
    monkeypatch.setattr(storage, "MIN_TERMS", 1)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut tables of the tests' size into several parts."""
    monkeypatch.setattr(storage, "PART_BYTES", 700)
