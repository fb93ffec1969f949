"""The folder between the stages: what its manifest says is what lies there, and each part has one maker."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path
from typing import TextIO

import pytest

from hybridr.errors import DataError, DownloadError
from hybridr.indexing.stages.bundle import Origin, StageFolder, claimed
from support.stages import ORIGIN, write_texts


def test_a_claim_is_held_by_one_and_clears_what_a_dead_one_left(tmp_path: Path) -> None:
    file = tmp_path / "texts" / "00000-000000.parquet"
    with claimed(file) as first, claimed(file) as second:
        assert (first, second) == (True, False)
    (file.parent / f".{file.name}.a1b2").write_bytes(b"half")
    with claimed(file) as ours:
        assert ours
        assert [path.name for path in file.parent.iterdir()] == [f".{file.name}.lock"]
    assert list(file.parent.iterdir()) == []


def test_who_opened_the_lock_of_one_that_ends_meanwhile_gets_no_part_that_another_has(tmp_path, monkeypatch):
    """The file that it opened is gone when it locks it, and a third has made and locked another."""
    file, plain = tmp_path / "00000-000000.parquet", fcntl.flock
    first, third = claimed(file), claimed(file)

    def late(stream: TextIO, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", plain)
        first.__exit__(None, None, None)
        assert third.__enter__()
        (tmp_path / f".{file.name}.half").touch()
        plain(stream, how)

    assert first.__enter__()
    monkeypatch.setattr(fcntl, "flock", late)
    with claimed(file) as second:
        assert not second
    assert (tmp_path / f".{file.name}.half").exists()
    third.__exit__(None, None, None)
    with claimed(file) as again:
        assert again


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(DownloadError, match="No locks available") as caught,
        claimed(tmp_path / "00000-000000.parquet"),
    ):
        pass
    assert "a file system that locks" in str(caught.value.hint)


def test_the_manifest_and_the_parts_must_agree(tmp_path: Path) -> None:
    texts = write_texts(tmp_path) / "texts"
    stage = StageFolder(texts, "again")
    assert stage.entry(stage.finished(), "origin", Origin) == ORIGIN
    with pytest.raises(DataError, match="its label has a wrong 'uuid'"):
        stage.entry({"origin": {**ORIGIN.model_dump(mode="json"), "uuid": 5}}, "origin", Origin)
    with pytest.raises(DataError, match="manifest.json: its label has a wrong ''"):
        stage.entry({}, "origin", Origin)
    stray = texts / "00007-000000.parquet"
    stray.write_bytes((texts / "00000-000000.parquet").read_bytes())
    with pytest.raises(DataError, match="00007-000000.parquet is not in the manifest") as found:
        stage.finished()
    assert found.value.hint == f"rm {stray}"
    stray.unlink()
    (texts / "00000-000001.parquet").unlink()
    with pytest.raises(DataError, match="lacks 00000-000001.parquet") as found:
        stage.finished()
    assert found.value.hint == "again"
    (texts / "manifest.json").write_text(json.dumps({"stage": "export-text"}))
    with pytest.raises(DataError, match="lacks its outputs"):
        stage.finished()
