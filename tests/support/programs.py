"""Programs that train: forked from one that has imported torch already, which takes seconds each time."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

from support.places import TESTS

PRELOADED = ["support.rem_training", "support.dam_training", "support.toy_training", "accelerate", "peft"]


@cache
def forking() -> ForkServerContext:
    """Give the context of one prepared process; it has no state of a training, so that forks start afresh."""
    context = multiprocessing.get_context("forkserver")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(TESTS)
    context.set_forkserver_preload(PRELOADED)
    context.Process(target=str).start()
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)
    return context


class Program:
    """A running program, or several of one group; `lines` are what the first one prints."""

    def __init__(self, main: Callable[[], None], *arguments: object, ranks: int = 1) -> None:
        near, far = multiprocessing.Pipe(duplex=False)
        group = group_of(ranks) if ranks > 1 else [{}]
        words = [
            main.__name__,
            *(one if isinstance(one, str) else json.dumps(one, default=str) for one in arguments),
        ]
        self.processes = [
            forking().Process(target=live, args=(main, words, environment, far)) for environment in group
        ]
        for process in self.processes:
            process.start()
        far.close()
        self._said = near

    @property
    def lines(self) -> Iterator[str]:
        """Give what the program prints, until it ends."""
        with os.fdopen(os.dup(self._said.fileno()), encoding="utf-8") as said:
            yield from (line.strip() for line in said)

    def kill(self) -> None:
        """End it as a power cut does."""
        for process in self.processes:
            os.kill(process.pid or 0, signal.SIGKILL)

    def wait(self) -> list[int | None]:
        """Give the exit codes, -9 of one that was killed."""
        for process in self.processes:
            process.join(timeout=300)
        return [process.exitcode for process in self.processes]


def group_of(ranks: int) -> list[dict[str, str]]:
    """Give the environments that torchrun gives to the processes of a group."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(found.getsockname()[1])}
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
    return [address | size | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)]


def live(main: Callable[[], None], words: list[str], environment: dict[str, str], far: Connection) -> None:
    """Be the program: its arguments, its environment, its output."""
    os.environ.update(environment, OMP_NUM_THREADS="1", ACCELERATE_USE_CPU="true")
    os.dup2(far.fileno(), 1)
    sys.argv[:] = words
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    main()
    sys.stdout.flush()


def killed_at(line: str, main: Callable[[], None], *arguments: Any) -> None:
    """Start a program, and kill it when it prints a line."""
    program = Program(main, *arguments)
    assert line in program.lines, f"it never printed {line}"
    program.kill()
    assert program.wait() == [-signal.SIGKILL]
