"""What is remembered of each node: a small file per name, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from ..errors import NodeError
from ..folders import data_folder, state_folder
from ..manifest import write_json

CLOCK_TOLERANCE_S = 5.0


@dataclass(frozen=True)
class NodeState:
    """One embedded node; `password_file` and `ca_certs` are paths, the password itself is nowhere here.

    `started` is the process's start in seconds since 1970; `pid` is that of the last start, and
    `running` says whether it is still this node.
    """

    name: str
    version: str
    url: str
    pid: int
    port: int
    home: str
    data: str
    log: str
    secure: bool
    user: str | None
    password_file: str | None
    ca_certs: str | None
    java: str
    started: float
    with_ml: bool = False
    heap: str = "1g"
    running: bool = False

    def record(self) -> dict[str, Any]:
        """Give the state as JSON."""
        return asdict(self)


def node_folder(name: str) -> Path:
    """Name the folder of a node's data, configuration and logs."""
    return data_folder() / "node" / name


def state_file(name: str) -> Path:
    """Name the file that remembers a node."""
    return state_folder() / "node" / f"{name}.json"


def write_state(state: NodeState) -> None:
    """Remember a node."""
    write_json(state_file(state.name), {**state.record(), "running": None})


def read_state(name: str) -> NodeState | None:
    """Recall a node and see whether it runs; None when there is no such node."""
    path = state_file(name)
    try:
        state = NodeState(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise NodeError(f"{path} is damaged: {error}", hint=f"delete it: rm {path}") from error
    return replace(state, running=find_process(state) is not None)


def read_states() -> Iterator[NodeState]:
    """Recall every node, by name."""
    for path in sorted((state_folder() / "node").glob("*.json")):
        state = read_state(path.stem)
        if state is not None:
            yield state


def find_process(state: NodeState) -> psutil.Process | None:
    """Give the node's process; None when it ended, or when its number now belongs to a stranger."""
    try:
        process = psutil.Process(state.pid)
        same_start = abs(process.create_time() - state.started) < CLOCK_TOLERANCE_S
        ours = any(state.data in argument for argument in process.cmdline())
        alive = process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return None
    return process if same_start and ours and alive else None
