"""Whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from hybridr.encoders.export import fetched_models
from hybridr.errors import DownloadError
from hybridr.files.local import append_private, replacing, require_space, storing


@pytest.mark.attack(75)
def test_a_full_disk_is_seen_before_and_during(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="MB free, 1,000,000,000,000 MB are needed") as caught:
        require_space(tmp_path / "cache", 10**18)
    assert "HYBRIDR_CACHE" in str(caught.value.hint)
    with pytest.raises(DownloadError, match="the disk is full"), storing(tmp_path):
        Path("/dev/full").write_bytes(b"0" * 100_000)
    assert "the disk is full" in fetched_models.pip_error("ERROR: [Errno 28] No space left on device").message


def test_replacing_is_all_or_nothing(tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    file.write_text("old")
    with pytest.raises(RuntimeError), replacing(file) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise RuntimeError
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
    with replacing(file, private=True) as temporary:
        temporary.write_text(json.dumps({"whole": True}))
    assert json.loads(file.read_text()) == {"whole": True}
    assert file.stat().st_mode & 0o777 == 0o600


def test_lines_are_appended_whole_whatever_was_left_before(tmp_path: Path) -> None:
    """A killed writer leaves half a line, which must not swallow the next one; long lines must not mix."""
    file = tmp_path / "folder" / "lines.jsonl"
    append_private(file, "first")
    with file.open("a") as lines:
        lines.write("half")
    file.chmod(0o644)
    append_private(file, "second")
    assert file.read_text() == "first\nhalf\nsecond\n"
    assert file.stat().st_mode & 0o777 == 0o600
    program = "import sys; from pathlib import Path; from hybridr.files.local import append_private\n"
    program += "for _ in range(40): append_private(Path(sys.argv[1]), sys.argv[2] * 20_000)"
    writers = [subprocess.Popen([sys.executable, "-c", program, str(file), letter]) for letter in "xy"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert Counter(file.read_text().splitlines()[3:]) == {"x" * 20_000: 40, "y" * 20_000: 40}
