"""The command line as a test types it, in this process: starting Python anew takes a second or three."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from copy import copy
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
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType | type,
    name: str,
    action: Callable[[], object],
    *,
    once: bool = False,
) -> None:
    """Do something each time before a module calls a function of its namespace, or before the first time."""
    original = getattr(module, name)

    def called(*arguments: Any, **options: Any) -> Any:
        if once:
            monkeypatch.setattr(module, name, original)
        action()
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, called)


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the run comes after it."""


def kill(*_: object) -> None:
    raise Killed


def with_interruption(
    cluster: Cluster,
    chosen: Callable[[str, str], bool],
    act: Callable[[Any], object],
    *,
    number: int = 0,
    after: bool = False,
) -> Cluster:
    """Return a connection that calls `act` once, with the body: before, or after, the request of this number
    of those that are chosen by method and path.
    """
    interrupted, left = copy(cluster), iter(range(number + 1))

    def request(method: str, path: str, body: Any = None, *rest: Any, **options: Any) -> Any:
        due = chosen(method, path) and next(left, None) == number
        if due and not after:
            act(body)
        response = cluster.request(method, path, body, *rest, **options)
        if due and after:
            act(body)
        return response

    interrupted.request = request  # type: ignore[method-assign]
    return interrupted
