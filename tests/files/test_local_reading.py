"""Files that others made are read within bounds."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from hybridr.files.local import read_within


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text("{}")
    tracemalloc.start()
    try:
        assert read_within(tmp_path / "settings.json") == b"{}"
        assert tracemalloc.get_traced_memory()[1] < 4e6, "as much as a file may have was 134 MB"
    finally:
        tracemalloc.stop()


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1" * 600_000)
    assert len(read_within(tmp_path / "file", 600_000)) == 600_000
    with pytest.raises(ValueError, match="file has more than 1 MB"):
        read_within(tmp_path / "file", 599_999)
