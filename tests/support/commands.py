"""The command line as a test types it, in this process: starting Python anew takes a second or three."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import hybridr_cli
from hybridr.cluster.connection import Cluster


class Said(NamedTuple):
    """What a command printed."""

    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs commands that end with a code, on a cluster where they need one."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, cluster: Cluster | None, command: str, *more: object, code: int = 0) -> Said:
        """Run `hybridr COMMAND`; what has blanks in it stands in `more`."""
        place = ["--url", cluster.url] if cluster else []
        return self.typed([*shlex.split(command), *map(str, more), *place], code)

    def typed(self, words: Sequence[str], code: int = 0) -> Said:
        """Run `hybridr WORDS`."""
        self.capsys.readouterr()
        ended = hybridr_cli.main(list(words))
        said = Said(*self.capsys.readouterr())
        assert (ended, "Traceback" in said.err) == (code, False), said
        return said


def before_call(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, action: Callable[[], object]
) -> None:
    """Do something each time before a module calls a function of its namespace."""
    original = getattr(module, name)

    def called(*arguments: Any, **options: Any) -> Any:
        action()
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, called)
