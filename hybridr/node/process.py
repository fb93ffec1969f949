"""Start, watch and stop the processes of embedded nodes."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ..errors import NodeError
from ..folders import state_folder
from ..progress import Progress, silent
from ..settings import NodeSettings
from .configuration import configure, launch_command
from .java import Java, find_java
from .layout import ensure_home
from .locking import locked
from .ownership import account, require_reachable
from .state import (
    NodeState, find_process, node_folder, read_state, read_states, state_file, write_state,
)  # fmt: skip

STAGE = "start"
POLL_S = 0.2
STOP_S = 30.0
LAST_LINES = 15


def start(settings: NodeSettings, *, progress: Progress = silent) -> NodeState:
    """Install what is missing and start a node, or give the running one of that name.

    It is detached: it survives this process, and `stop` ends it. Raises NodeError when it cannot be
    installed, does not start or is not ready in time, DownloadError when a file cannot be had.
    """
    with locked(state_folder() / "node" / f"{settings.name}.lock"):
        found = read_state(settings.name)
        if found is not None:
            require_same(found, settings)
        if found is None or not found.running:
            java = find_java(settings)
            home = ensure_home(settings, java, progress=progress)
            found = launch(settings, home, java, found)
        return await_ready(found, settings.start_timeout_s, progress)


def stop(name: str, *, delete_data: bool = False) -> bool:
    """End a node and its children; tell whether it was running. `delete_data` forgets it wholly.

    Raises NodeError when it does not end within 30 seconds of a kill.
    """
    with locked(state_folder() / "node" / f"{name}.lock"):
        state = read_state(name)
        process = find_process(state) if state else None
        if process is not None:
            end(process)
        if delete_data:
            shutil.rmtree(node_folder(name), ignore_errors=True)
            state_file(name).unlink(missing_ok=True)
    return process is not None


def status() -> list[NodeState]:
    """List the known nodes, by name; `running` is checked."""
    return list(read_states())


def logs(name: str, lines: int = 50) -> list[str]:
    """Give the last lines that a node logged; raises NodeError for an unknown node."""
    state = read_state(name)
    if state is None:
        raise NodeError(f"there is no node '{name}'", hint="hybridr node status   lists them")
    return last_lines(Path(state.log), lines)


def running_url(name: str | None = None) -> str | None:
    """Give the url of the running node `name`, else of "default", else of the only running one."""
    state = running_node(name)
    return state.url if state else None


def running_node(name: str | None = None) -> NodeState | None:
    """Give the running node `name`, else "default", else the only running one."""
    state = read_state(name or "default")
    if name is not None or (state is not None and state.running):
        return state if state is not None and state.running else None
    running = [state for state in read_states() if state.running]
    return running[0] if len(running) == 1 else None


def require_same(state: NodeState, settings: NodeSettings) -> None:
    """Refuse to take a running node, or old data, for one with other settings."""
    wanted = {"version": settings.version}
    if state.running:
        wanted |= {"secure": settings.secure, "with_ml": settings.with_ml, "heap": settings.heap}
        if settings.port is not None:
            wanted["port"] = settings.port
    differing = [name for name, value in wanted.items() if getattr(state, name) != value]
    if differing:
        has = ", ".join(f"{name} {getattr(state, name)}" for name in differing)
        asked = ", ".join(f"{name} {wanted[name]}" for name in differing)
        raise NodeError(
            f"node '{state.name}' has {has}; asked was {asked}",
            hint=f"hybridr node stop --name {state.name} --delete-data   or choose another --name",
        )


def launch(settings: NodeSettings, home: Path, java: Java, before: NodeState | None) -> NodeState:
    """Start the JVM, detached, and remember it before it is ready."""
    port = choose_port(settings, before)
    folder = node_folder(settings.name)
    require_reachable(folder.parent)
    configure(settings, folder, home, port)
    log = folder / "logs" / "console.log"
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    with log.open("wb") as output:
        process = subprocess.Popen(
            launch_command(settings, folder, home, java), cwd=home, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={"PATH": os.defpath, "LANG": "C.UTF-8"}, **account(),
        )  # fmt: skip
    state = NodeState(
        name=settings.name, version=settings.version, url=f"http://127.0.0.1:{port}", pid=process.pid,
        port=port, home=str(home), data=str(folder / "data"), log=str(log), secure=settings.secure,
        user=None, password_file=None, ca_certs=None, java=str(java.home),
        started=psutil.Process(process.pid).create_time(), with_ml=settings.with_ml, heap=settings.heap,
        running=True,
    )  # fmt: skip
    write_state(state)
    return state


def choose_port(settings: NodeSettings, before: NodeState | None) -> int:
    """Take the port asked for, else the one the node had before, else a free one."""
    if settings.port is not None:
        if not is_free(settings.port):
            raise NodeError(
                f"port {settings.port} is taken by another program",
                hint="leave --port out to get a free one",
            )
        return settings.port
    if before is not None and is_free(before.port):
        return before.port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_free(port: int) -> bool:
    """Tell whether nothing listens on a port of the loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def await_ready(state: NodeState, timeout_s: float, progress: Progress) -> NodeState:
    """Wait until the node's health is yellow; raises NodeError when it dies or takes too long."""
    began = time.monotonic()
    progress(STAGE, 0, 1, state.url)
    while not is_ready(state):
        if find_process(state) is None:
            raise NodeError(
                f"node '{state.name}' ended while it started; its last lines:\n" + excerpt(state),
                hint=f"hybridr node logs --name {state.name}",
            )
        if time.monotonic() - began > timeout_s:
            raise NodeError(
                f"node '{state.name}' was not ready after {timeout_s:.0f} s; its last lines:\n"
                + excerpt(state),
                hint="it still runs: wait with `hybridr node start`, or set HYBRIDR_NODE_START_TIMEOUT_S",
            )
        time.sleep(POLL_S)
    progress(STAGE, 1, 1, state.url)
    return state


def is_ready(state: NodeState) -> bool:
    """Ask the node, past any proxy, whether its health is at least yellow."""
    connection = http.client.HTTPConnection("127.0.0.1", state.port, timeout=10)
    try:
        connection.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=5s")
        answer = connection.getresponse()
        return answer.status == 200 and json.loads(answer.read())["status"] != "red"
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False
    finally:
        connection.close()


def end(process: psutil.Process) -> None:
    """Ask the process and its children to end, then kill what is left."""
    family = [process, *process.children(recursive=True)]
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.terminate()
    _, left = psutil.wait_procs(family, timeout=STOP_S)
    for member in left:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    _, left = psutil.wait_procs(left, timeout=STOP_S)
    if left:
        raise NodeError(f"process {left[0].pid} does not end", hint=f"kill -9 {left[0].pid}")


def excerpt(state: NodeState) -> str:
    """Give the end of a node's log, indented."""
    return "\n".join(f"  {line}" for line in last_lines(Path(state.log), LAST_LINES))


def last_lines(path: Path, count: int) -> list[str]:
    """Give the last `count` lines of a text file."""
    if not path.is_file():
        return []
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
