"""What is remembered of each node: a small file per name, without secrets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from ...errors import HybridrError, NodeError
from ...files.atomic import write_json
from ...files.folders import below, data_folder, state_folder
from ...files.foreign import text_within
from ...records import Reported
from ..settings import TITLES, NodeSettings


@dataclass(frozen=True)
class NodeState(Reported):
    """One embedded node; `password_file` and `ca_certs` are paths, the password itself is nowhere here.

    `pid` is that of the last start, `started` its time in seconds since 1970, `since_boot` since the machine
    started, which no clock that is set moves; `running` says whether that process is still this node.
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
    with_ml: bool
    heap: str
    running: bool = False
    since_boot: float | None = None
    product: str = "opensearch"

    @property
    def title(self) -> str:
        """Name the product and its version for people."""
        return f"{TITLES.get(self.product, self.product)} {self.version}"


TOLERANCE_S = 5.0
READ: TypeAdapter[NodeState] = TypeAdapter(NodeState)


def node_folder(name: str) -> Path:
    """Name the folder of a node's data, configuration and logs; SettingsError when it is no name."""
    return below(data_folder() / "node", NodeSettings(name=name).name)


def state_file(name: str) -> Path:
    """Name the file that remembers a node; SettingsError when it is no name."""
    return below(state_folder() / "node", f"{NodeSettings(name=name).name}.json")


def write_state(state: NodeState) -> None:
    """Remember a node."""
    remembered = state.to_json()
    del remembered["running"]
    write_json(state_file(state.name), remembered)


def read_state(name: str) -> NodeState | None:
    """Recall a node and see whether it runs; None when there is no such node."""
    path = state_file(name)
    try:
        state = READ.validate_python(json.loads(text_within(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        why = str(error).splitlines()[0]
        raise NodeError(f"{path} cannot be used: {why}", hint=f"delete it: rm '{path}'") from error
    return replace(state, running=find_process(state) is not None)


def damaged_states() -> Iterator[HybridrError]:
    """Yield why a state file cannot be read, for each that cannot."""
    for path in (state_folder() / "node").glob("*.json"):
        try:
            read_state(path.stem)
        except HybridrError as error:
            yield error


def find_process(state: NodeState) -> psutil.Process | None:
    """Return the node's process; None when it ended, or when its number now belongs to a stranger."""
    try:
        began, process = seconds_since_boot(state.pid), psutil.Process(state.pid)
        moved = began - state.since_boot if state.since_boot else process.create_time() - state.started
        alive = process.status() != psutil.STATUS_ZOMBIE
        ours = data_argument(state.data) in process.cmdline()
    except (psutil.Error, ValueError):
        return None
    return process if abs(moved) < TOLERANCE_S and alive and ours else None


def seconds_since_boot(pid: int) -> float:
    """Return when a process began, by a clock that nobody sets. Raises psutil.Error."""
    boot = psutil.boot_time()  # before the process is asked, which counts from the last one that was read
    return float(psutil.Process(pid).create_time() - boot)


def find_strays(data: Path) -> list[psutil.Process]:
    """Find processes that hold a node's data although no state names them (a start that was killed)."""
    argument = data_argument(str(data))
    return [
        process for process in psutil.process_iter(["cmdline"]) if argument in (process.info["cmdline"] or ())
    ]


def nodes() -> list[NodeState]:
    """List the known nodes, by name, but those whose file cannot be read: see `damaged_states`."""
    states = []
    for path in sorted((state_folder() / "node").glob("*.json")):
        with suppress(HybridrError):
            states.append(read_state(path.stem))
    return [state for state in states if state is not None]


def running_node() -> NodeState | None:
    """Return the running node that is called "default", else the only running one."""
    running = [state for state in nodes() if state.running]
    default = [state for state in running if state.name == "default"]
    return default[0] if default else running[0] if len(running) == 1 else None


def data_argument(data: str) -> str:
    """Return the argument by which a node's process is known: no other program has it."""
    return f"-Epath.data={data}"
