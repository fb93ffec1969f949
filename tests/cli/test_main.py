"""How the process of the command ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import atexit, sys, threading, time
from hybridr_cli.__main__ import command
atexit.register(print, "the end")
"""
WAITED_FOR = "threading.Thread(target=lambda: (time.sleep(0.5), print('waited for'))).start()\n"


@pytest.mark.parametrize(
    ("arguments", "code", "work", "said"),
    [(["--version"], 0, WAITED_FOR, ["waited for"]), (["no-such-verb"], 2, "", []), (["search"], 2, "", [])],
    ids=["thread", "verb", "arguments"],
)
def test_it_ends_with_its_code_and_what_was_left_to_do(arguments, code, work, said):
    program = f"{BEGIN}{work}sys.argv[1:] = {arguments}\ncommand()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (code, ["the end"])
    assert [line for line in done.stdout.splitlines() if line == "waited for"] == said
