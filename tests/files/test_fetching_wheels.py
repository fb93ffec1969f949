"""pip fetches a pinned wheel, within bounds, whatever an index has in its place."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

from hybridr.files import fetching
from hybridr.files.fetching import run_pip
from support.waiting import within


def wheel(folder: Path, size: int) -> str:
    """Write a wheel with a file of so many bytes, and return its sha256."""
    folder.mkdir()
    file = folder / "throwaway_package-1.0-py3-none-any.whl"
    info = "throwaway_package-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("throwaway_package/data", b"x" * size)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: throwaway-package\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    return tmp_path / "links"


@pytest.mark.attack(131)
@pytest.mark.skipif(sys.platform == "win32", reason="no such limit there")
def test_pip_writes_no_file_beyond_its_bound(links: Path, tmp_path, monkeypatch) -> None:
    sha256 = wheel(links, 2_000_000)
    target = tmp_path / "target"
    arguments = ("throwaway-package==1.0", [sha256], tmp_path, ["--dest", str(target)])
    monkeypatch.setattr(fetching, "MAX_BYTES", 1_000_000)
    refused = run_pip("download", *arguments)
    assert refused.returncode
    assert "File too large" in refused.stderr
    assert all(path.stat().st_size <= 1_000_000 for path in target.glob("*"))
    monkeypatch.setattr(fetching, "MAX_BYTES", 3_000_000)
    assert run_pip("download", *arguments).returncode == 0
    assert len(list(target.glob("*.whl"))) == 1


@pytest.mark.attack(137)
def test_pip_is_left_when_its_time_is_over(links: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fetching, "BOUNDED_PIP", "import time; time.sleep(60)")
    monkeypatch.setattr(fetching, "MAX_S", 0.5)
    with within(20):
        done = run_pip("download", "throwaway-package==1.0", ["0" * 64], tmp_path, [])
    assert (done.returncode, done.stderr) == (1, "pip did not finish within 0 s")
