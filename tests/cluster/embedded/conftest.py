"""Folders and processes of a test's own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support.places import above


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test folders of its own, which the account of a node may enter."""
    for folder in (tmp_path, *above(tmp_path)):
        folder.chmod(0o755)
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    monkeypatch.delenv("HYBRIDR_CACHE", raising=False)
    return tmp_path


@pytest.fixture
def spawned() -> Iterator[Callable[..., psutil.Popen]]:
    """Start processes that do not outlive the test."""
    running: list[psutil.Popen] = []

    def spawn(program: str, *arguments: str) -> psutil.Popen:
        running.append(psutil.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE))
        assert running[-1].stdout.readline()
        return running[-1]

    yield spawn
    for each in running:
        for member in [*each.children(), each] if each.is_running() else []:
            member.kill()
        each.wait()
