"""Starts, watches and stops the server processes of embedded nodes."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

import psutil
import urllib3

from ...errors import NodeError, SettingsError
from ...files.local import MAX_SETTINGS_BYTES, delete_child, require_regular, text_within
from ...files.programs import locked, make_reachable, node_account, storing_programs
from ...records import Progress, silent
from ..settings import NodeSettings
from .configuration import LOOPBACK, SECURITY, configure, launch_command, make_credentials, node_settings
from .layout import ENGINES, Java, ensure_home, find_java, has_engines
from .state import (
    NodeState,
    find_process,
    find_strays,
    node_folder,
    read_state,
    seconds_since_boot,
    state_file,
    write_state,
)

START = "start"
POLL_S = 0.2
START_S, STOP_S = 180.0, 30.0
LAST_LINES = 15
STORED_SETTINGS = ("name", "product", "secure", "with_ml", "heap")
"""Settings that the state of a node stores."""
TIMEOUT_S = 10
HEALTH = "/_cluster/health?wait_for_status=yellow&timeout=5s"


def start(settings: NodeSettings, *, progress: Progress = silent) -> NodeState:
    """Install what is missing and start a node, or return the running one of that name.

    The node outlives this process, until `stop` ends it. Raises SettingsError for settings that exclude each
    other, NodeError if the node cannot be installed, does not start or is not ready in time, and
    DownloadError.
    """
    require_possible(settings)
    with locked(state_file(settings.name).with_suffix(".lock")):
        state = read_state(settings.name)
        if state is not None:
            require_same(state, settings)
        if state is None or not state.running:
            port = free_port(settings.port or (state.port if state else 0))
            if port is None and settings.port is None:
                port = free_port()
            if port is None:
                raise NodeError(
                    f"port {settings.port} is taken by another program",
                    hint="omit --port to get a free one",
                )
            java = find_java(settings, progress=progress)
            home = ensure_home(settings, java, progress=progress)
            with storing_programs(node_folder(settings.name)):
                state = launch(settings, home, java, port)
        return await_ready(state, progress)


def stop(name: str, *, delete_data: bool = False) -> bool:
    """End a node's process and its children; return whether it ran. `delete_data` deletes data and state too.

    Raises NodeError if a process does not end although it was killed.
    """
    with locked(state_file(name).with_suffix(".lock")):
        state = read_state(name)
        process = find_process(state) if state else None
        if process is not None:
            end_process(process)
        if delete_data:
            folder = node_folder(name)
            delete_child(folder.parent, folder.name)
            state_file(name).unlink(missing_ok=True)
    return process is not None


def read_logs(name: str) -> list[str]:
    """Return the last 200 lines of a node's log. Raises NodeError for an unknown node."""
    if (state := read_state(name)) is None:
        raise NodeError(f"there is no node '{name}'", hint="hybridr node status   lists them")
    return last_lines(Path(state.log), 200)


def require_possible(settings: NodeSettings) -> None:
    """Raise SettingsError for a plugin that this version lacks, or for more heap than memory."""
    if settings.is_elasticsearch and (settings.secure or settings.with_ml):
        raise SettingsError(
            "[node] product: Elasticsearch is available as core only, without security and models",
            hint="omit --secure and --with-ml, or use --product opensearch",
        )
    if settings.secure and settings.version != "2.19.1":
        raise SettingsError(
            f"[node] secure: the security plugin is available for 2.19.1 only, not for {settings.version}",
            hint="hybridr node start --version 2.19.1 --secure",
        )
    if settings.with_ml and settings.version != "3.6.0":
        raise SettingsError(
            f"[node] with_ml: ml-commons is available for 3.6.0 only, not for {settings.version}",
            hint="hybridr node start --version 3.6.0 --with-ml",
        )
    available = psutil.virtual_memory().total
    heap_bytes = int(settings.heap[:-1]) << (30 if settings.heap[-1] == "g" else 20)
    if heap_bytes > available:
        raise SettingsError(
            f"[node] heap: {settings.heap} is more than this machine's {available / 2**30:.1f} GiB of memory",
            hint="give at most half of it, or omit --heap",
        )


def require_same(state: NodeState, settings: NodeSettings) -> None:
    """Raise NodeError if a running node, or a node's data, has settings that differ from these."""
    needs: dict[str, Any] = {"version": settings.release, "secure": settings.secure}
    if state.running:
        needs |= {"with_ml": settings.with_ml, "heap": settings.heap, "port": settings.port or state.port}
    differing = [name for name, value in needs.items() if getattr(state, name) != value]
    if not differing:
        return
    present = ", ".join(f"{name} {getattr(state, name)}" for name in differing)
    requested = ", ".join(f"{name} {needs[name]}" for name in differing)
    harmless = set(differing) <= {"with_ml", "heap", "port"}
    raise NodeError(
        f"node '{state.name}' {'runs' if state.running else 'has data'} with {present}, not {requested}",
        hint=f"hybridr node stop --name {quote(state.name)}{'' if harmless else ' --delete-data'}"
        "   or choose another --name",
    )


def launch(settings: NodeSettings, home: Path, java: Java, port: int) -> NodeState:
    """Write the configuration, start the node's JVM as a detached process, and write and return its state."""
    folder = node_folder(settings.name)
    make_reachable(folder)
    for stray in find_strays(folder / "data"):
        end_process(stray)
    values = node_settings(settings, folder, port) | {
        "node.attr.hybridr_faiss": str(has_engines(home)).lower()
    }
    access: dict[str, Any] = dict.fromkeys(("user", "password_file", "ca_certs"))
    if settings.secure:
        access, values = make_credentials(folder, home, java), values | SECURITY
    configure(settings, folder, home, java, values)
    log = folder / "logs" / "console.log"
    process = spawn(launch_command(settings, folder, home, java), home, log)
    state = NodeState(
        **{name: getattr(settings, name) for name in STORED_SETTINGS},
        version=settings.release,
        url=f"{'https' if settings.secure else 'http'}://{LOOPBACK}:{port}",
        pid=process.pid,
        port=port,
        home=str(home),
        data=str(folder / "data"),
        log=str(log),
        **access,
        java=str(java.home),
        started=process.create_time(),
        since_boot=seconds_since_boot(process.pid),
        running=True,
    )
    write_state(state)
    return state


def spawn(command: list[str], home: Path, log: Path) -> psutil.Popen:
    """Start a detached process that writes to `log`; the previous log is kept as `.1`."""
    if log.exists():
        log.replace(log.with_name(f"{log.name}.1"))
    with log.open("wb") as output:
        return psutil.Popen(
            command,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "LD_LIBRARY_PATH": str(home / ENGINES)}
            | {"ES_TMPDIR": str(log.parents[1] / "temporary")},  # read by the core of Elasticsearch only
            **node_account(),
        )


def free_port(port: int = 0) -> int | None:
    """Return the port if nothing listens on it, else None; for 0 return any free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])


def await_ready(state: NodeState, progress: Progress) -> NodeState:
    """Wait for yellow health and return the node's state. Raises NodeError if it ends or takes too long."""
    deadline = time.monotonic() + START_S
    progress(START, 0, 1, state.url)
    while not is_ready(state):
        is_gone = find_process(state) is None
        time.sleep(POLL_S)
        # During exec a process has no arguments for a moment, so a second look follows.
        is_gone = is_gone and find_process(state) is None
        if is_gone or time.monotonic() > deadline:
            problem, hint = "ended while it started", f"hybridr node logs --name {quote(state.name)}"
            if not is_gone:
                problem = f"was not ready after {START_S:g} s"
                hint = "it still runs: `hybridr node start` waits again"
            lines = [line for line in last_lines(Path(state.log), 500) if not line.lstrip().startswith("at ")]
            excerpt = "\n".join(f"  {line[:300]}" for line in lines[-LAST_LINES:])
            raise NodeError(f"node '{state.name}' {problem}; its last lines:\n{excerpt}", hint=hint)
    progress(START, 1, 1, state.url)
    return state


def end_process(process: psutil.Process) -> None:
    """Terminate a process and its children; kill those that do not end."""
    with suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        for signal in ("terminate", "kill"):
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    getattr(member, signal)()
            _, family = psutil.wait_procs(family, timeout=STOP_S)
        if family:
            raise NodeError(f"process {family[0].pid} does not end", hint=f"kill -9 {family[0].pid}")


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last `count` lines of a text file."""
    if not path.is_file():
        return []
    with require_regular(path).open(encoding="utf-8", errors="replace") as lines:
        return [line.rstrip("\n") for line in deque(lines, count)]


def is_ready(state: NodeState) -> bool:
    """Return whether the node's health is at least yellow. Raises NodeError if it refuses the password."""
    headers = {}
    if state.password_file is not None:
        password = text_within(Path(state.password_file), MAX_SETTINGS_BYTES).strip()
        headers = dict(urllib3.make_headers(basic_auth=f"{state.user}:{password}"))
    try:
        with urllib3.PoolManager(ca_certs=state.ca_certs, retries=False, timeout=TIMEOUT_S) as pool:
            answer = pool.request("GET", f"{state.url}{HEALTH}", headers=headers)
    except urllib3.exceptions.HTTPError:
        return False
    if answer.status == 401:
        raise NodeError(
            f"node '{state.name}' refuses the password in {state.password_file}",
            hint=f"put the right one there, or hybridr node stop --name {quote(state.name)} --delete-data",
        )
    return answer.status == 200 and answer.json()["status"] != "red"
