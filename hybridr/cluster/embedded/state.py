"""The state file of each embedded node: a small JSON file per name, without secrets.

Also fills in the address of the cluster: by default that of a running node.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
from pydantic import TypeAdapter

from ...errors import HybridrError, NodeError, SettingsError
from ...files.local import child_path, data_folder, state_folder, text_within, write_json
from ...records import Reported
from ..settings import TITLES, ClusterSettings, NodeSettings


@dataclass(frozen=True)
class NodeState(Reported):
    """The state of one embedded node; `password_file` and `ca_certs` are paths, it has no password.

    `pid` is the process of the last start. `started` is its start in seconds since 1970, `since_boot` in
    seconds since the machine's start, independent of clock changes. `running` says whether that process still
    is this node.
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
        """Return product and version as people read them, such as "OpenSearch 3.6.0"."""
        return f"{TITLES.get(self.product, self.product)} {self.version}"


DEFAULT_URL = "http://localhost:9200"
TOLERANCE_S = 5.0
READ: TypeAdapter[NodeState] = TypeAdapter(NodeState)


def node_folder(name: str) -> Path:
    """Return the folder of a node's data, configuration and logs. Raises SettingsError for a bad name."""
    return child_path(data_folder() / "node", NodeSettings(name=name).name)


def state_file(name: str) -> Path:
    """Return the path of a node's state file. Raises SettingsError for an invalid name."""
    return child_path(state_folder() / "node", f"{NodeSettings(name=name).name}.json")


def write_state(state: NodeState) -> None:
    """Write a node's state file."""
    values = state.to_json()
    del values["running"]
    write_json(state_file(state.name), values)


def read_state(name: str) -> NodeState | None:
    """Read a node's state file and check whether the node runs; None if there is no such node."""
    path = state_file(name)
    try:
        state = READ.validate_python(json.loads(text_within(path)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = str(error).splitlines()[0]
        raise NodeError(f"{path} cannot be used: {reason}", hint=f"delete it: rm '{path}'") from error
    return replace(state, running=find_process(state) is not None)


def damaged_states() -> Iterator[HybridrError]:
    """Yield the error of each state file that cannot be read."""
    for path in (state_folder() / "node").glob("*.json"):
        try:
            read_state(path.stem)
        except HybridrError as error:
            yield error


def find_process(state: NodeState) -> psutil.Process | None:
    """Return the process of a node; None if it ended, or if its pid now belongs to another program."""
    try:
        start, process = seconds_since_boot(state.pid), psutil.Process(state.pid)
        deviation = start - state.since_boot if state.since_boot else process.create_time() - state.started
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        is_node = data_argument(state.data) in process.cmdline()
    except (psutil.Error, ValueError):
        return None
    return process if abs(deviation) < TOLERANCE_S and is_alive and is_node else None


def seconds_since_boot(pid: int) -> float:
    """Return how many seconds after the machine's start a process began. Raises psutil.Error."""
    boot = psutil.boot_time()  # read first: psutil counts a process from the last boot time that was read
    return float(psutil.Process(pid).create_time() - boot)


def find_strays(data: Path) -> list[psutil.Process]:
    """Return the processes that use a node's data folder although no state file names them."""
    argument = data_argument(str(data))
    return [
        process for process in psutil.process_iter(["cmdline"]) if argument in (process.info["cmdline"] or ())
    ]


def node_states() -> list[NodeState]:
    """Return the states of all nodes whose state file can be read, by name (the others: `damaged_states`)."""
    states = []
    for path in sorted((state_folder() / "node").glob("*.json")):
        with suppress(HybridrError):
            states.append(read_state(path.stem))
    return [state for state in states if state is not None]


def running_node() -> NodeState | None:
    """Return the running node named "default", else the only running node, else None."""
    running = [state for state in node_states() if state.running]
    default = [state for state in running if state.name == "default"]
    return default[0] if default else running[0] if len(running) == 1 else None


def data_argument(data: str) -> str:
    """Return the command-line argument by which a node's process is recognised."""
    return f"-Epath.data={data}"


def with_address(settings: ClusterSettings) -> ClusterSettings:
    """Return the settings with their `url` filled in: the address that is given or encoded in a cloud id,
    else a running embedded node, else the default address.

    An embedded node also gives its certificate and user. A second call changes nothing.
    """
    if settings.cloud_id:
        if settings.url is not None:
            raise SettingsError("an address and a cloud id are given", hint="--url URL, or HYBRIDR_CLOUD_ID")
        return settings.model_copy(update={"url": cloud_address(settings.cloud_id), "cloud_id": None})
    if settings.url is None:
        if (node := running_node()) is None:
            running = ", ".join(f"{state.name} at {state.url}" for state in node_states() if state.running)
            if running:
                problem = f"several nodes run, none of them called 'default': {running}"
                raise SettingsError(problem, hint="--url URL")
    else:
        node = next((node for node in node_states() if node.running and node.url == settings.url), None)
    if node is None:
        hosts = (address.strip().rstrip("/") for address in (settings.url or DEFAULT_URL).split(","))
        return settings.model_copy(update={"url": ",".join(hosts)})
    parameters: dict[str, Any] = {"url": node.url}
    if node.ca_certs and settings.ca_certs is None:
        parameters["ca_certs"] = Path(node.ca_certs)
    if node.user and node.password_file and settings.user is None and settings.api_key is None:
        parameters |= {"user": node.user, "password_file": Path(node.password_file)}
    return settings.model_copy(update=parameters)


def cloud_address(cloud_id: str) -> str:
    """Return the URL of Elasticsearch that an Elastic cloud id encodes. Raises SettingsError."""
    try:
        host, name = b64decode(cloud_id.rpartition(":")[2], validate=True).decode("ascii").split("$")[:2]
    except ValueError:
        host = name = ""
    host, _, port = host.partition(":")
    if not (host and name and re.fullmatch(r"[\w.-]+", f"{host}{name}") and (port or "443").isdigit()):
        raise SettingsError(
            "this is not a cloud id", hint="Elastic Cloud shows it with the deployment: NAME:…"
        )
    return f"https://{name}.{host}:{port or 443}"
