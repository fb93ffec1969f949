"""A folder is written as a whole, by one run at a time, whatever a killed one left."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hybridr.errors import DownloadError
from hybridr.files import staging
from hybridr.files.local import replacing
from hybridr.files.staging import claimed_folder, delete_leftovers, staged_folder


def test_a_staged_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with staged_folder(target) as staged:
        (staged / "a").write_text("1")
        assert not target.exists()
    with pytest.raises(ZeroDivisionError), staged_folder(target) as staged:
        (staged / "b").write_text(str(1 / 0))
    assert [path.name for path in target.iterdir()] == ["a"]
    with staged_folder(target) as staged:
        (staged / "c").write_text("2")
    assert [path.name for path in target.iterdir()] == ["c"]
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DownloadError, match="cannot write"), staged_folder(tmp_path / "file" / "folder"):
        pass


SECOND = """
import sys, time
from pathlib import Path
from hybridr.files.staging import claimed_folder, staged_folder
out, how = Path(sys.argv[1]), sys.argv[2]
with (staged_folder(out) if how == "staged" else claimed_folder(out, wait=how == "wait")) as folder:
    print("in", flush=True)
    sys.stdin.readline()
    if how == "staged":
        (folder / "of").write_text("the second")
"""


def second(out: Path, how: str) -> subprocess.Popen[str]:
    """Start another process that writes to a folder; it says `in`, and goes on after a line."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", SECOND, str(out), how], **pipes)  # type: ignore[call-overload, no-any-return]


def test_a_second_run_into_one_folder_says_so_or_waits(tmp_path, monkeypatch):
    out = tmp_path / "deep" / "out"
    with claimed_folder(out), claimed_folder(out), staged_folder(out) as folder:
        refused = second(out, "claim").communicate(timeout=60)
        assert refused[0] == ""
        assert "another run writes to" in refused[1]
        waiting = second(out, "staged")
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(timeout=2)
        (folder / "of").write_text("the first")
    waiting.communicate("\n", timeout=60)
    assert waiting.returncode == 0
    assert (out / "of").read_text() == "the second"
    holder = second(out, "claim")
    assert holder.stdout.readline() == "in\n"
    with pytest.raises(DownloadError, match="another run writes to") as refusal, claimed_folder(out):
        pass
    assert "--out" in str(refusal.value.hint)
    monkeypatch.setenv("RANK", "1")
    with claimed_folder(out):  # a helper of the training that has it
        pass
    monkeypatch.delenv("RANK")
    holder.kill()
    holder.communicate()
    with claimed_folder(out):
        pass
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("moment", ["written", "moved away", "replaced", "nothing there before"])
def test_the_next_run_finishes_what_a_killed_one_began(tmp_path: Path, moment: str) -> None:
    out, left, own = tmp_path / "out", tmp_path / ".out.a1b2c3d4", tmp_path / ".out.backup_1"
    for folder, text in ((left / "new", "new"), (left / "old", "old"), (own, "mine")):
        folder.mkdir(parents=True)
        (folder / "of").write_text(text)
    if moment == "written":
        (left / "old").rename(out)
    elif moment == "replaced":
        (left / "new").rename(out)
    elif moment == "nothing there before":
        shutil.rmtree(left / "old")
    with claimed_folder(out):
        there = (out / "of").read_text() if out.exists() else None
    expected = {"written": "old", "moved away": "new", "replaced": "new", "nothing there before": None}
    assert there == expected[moment]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([own.name, *(["out"] if there else [])])
    assert (own / "of").read_text() == "mine"


def test_a_failure_between_both_renames_loses_nothing(tmp_path, monkeypatch):
    out, real = tmp_path / "out", Path.rename
    out.mkdir()
    (out / "of").write_text("old")

    def interrupted(path: Path, target: Path) -> Path:
        if path.name == "new" and not failed:
            failed.append(path)
            raise KeyboardInterrupt
        return real(path, target)

    failed: list[Path] = []
    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), staged_folder(out) as folder:
        (folder / "of").write_text("new")
    assert (out / "of").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_where_nothing_can_be_locked_a_finished_result_is_still_read(tmp_path, monkeypatch):
    def read_only(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(staging, "acquire_lock", read_only)
    with claimed_folder(tmp_path / "out"):
        assert list(tmp_path.iterdir()) == []


def test_what_killed_writers_of_a_file_left_goes(tmp_path: Path) -> None:
    file = tmp_path / "training.safetensors"
    with replacing(file) as temporary:
        temporary.write_text("whole")
        shutil.copy(temporary, tmp_path / ".training.safetensors.x_1y2z3w")
    (tmp_path / ".training.safetensors.notes").write_text("mine")
    delete_leftovers(file)
    assert {path.name for path in tmp_path.iterdir()} == {file.name, ".training.safetensors.notes"}
