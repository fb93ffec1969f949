"""Where the result goes: closed, full, a pipe that ended, or one that takes ASCII only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hybridr.errors import printable

HYBRIDR = [sys.executable, "-m", "hybridr_cli", "models"]


def shell(redirect: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command that writes a table, as a shell would with this redirection."""
    return subprocess.run(
        ["bash", "-c", f'"$@" {redirect}', "bash", *HYBRIDR],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


@pytest.mark.attack(101)
@pytest.mark.parametrize("redirect", [">&-", ">&- 2>&-"])
def test_a_closed_stdout_is_no_error(redirect: str) -> None:
    done = shell(redirect)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.attack(102)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_stdout_does_not_take_is_written_as_an_escape(encoding: str) -> None:
    code = (
        "import sys; from hybridr_cli.session import prepare_streams; from hybridr_cli.output import Output; "
    )
    code += "prepare_streams(); Output().line('日本 …')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, rb"\u65e5\u672c \u2026" + b"\n"), done.stderr


@pytest.mark.attack(103)
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_said_in_one_line(unbuffered: str) -> None:
    done = shell("> /dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (done.returncode, done.stderr) == (
        1,
        "error: the result cannot be written: No space left on device\n",
    )


@pytest.mark.attack(99)
@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (r"d1\u200b", "d1\u200b"),
        (r"d\u200d1\u200c", "d\u200d1\u200c"),
        (r"d1\udb40\udc41", "d1\U000e0041"),
        (r"\u00adx\u2060\u3164", "\xadx\u2060\u3164"),
        ("می\u200cخواهم", "می\u200cخواهم"),  # as Persian is written
        ("क्\u200dष", "क्\u200dष"),
        ("👩\u200d🚒", "👩\u200d🚒"),
        ("é e\u0301 ŠČ", "é e\u0301 ŠČ"),
    ],
)
def test_what_has_no_width_is_shown(shown: str, text: str) -> None:
    assert printable(text) == shown
