"""What tells two hybridrs apart whose version is the same."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from hybridr.errors import SettingsError
from hybridr.files import local
from hybridr.files.local import code_digest, release
from hybridr.indexing.runners.ray import Worker


def test_the_digest_of_code_follows_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    monkeypatch.setattr(local, "__file__", str(tmp_path / "files" / "manifest.py"))
    (tmp_path / "files" / "one.py").write_text("1")
    before, wing = code_digest(), code_digest("files")
    assert (before, wing) == (code_digest(), code_digest("files"))
    (tmp_path / "two.py").write_text("2")
    assert code_digest() != before
    assert code_digest("files") == wing


def test_a_worker_of_the_same_version_and_other_code_is_refused() -> None:
    """Both say the same version while somebody works on the code: the version alone told them not apart."""
    other = f"{metadata.version('hybridr')} ({'0' * 12})"
    refusal = Worker(other, 1, []).open()
    error = refusal.error()  # type: ignore[union-attr]
    assert isinstance(error, SettingsError)
    assert f"the driver is hybridr {other}, a worker hybridr {release()}" in error.message
    assert "pip install hybridr" not in (error.hint or "")
