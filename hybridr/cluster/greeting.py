"""Where a cluster is, and which product of which version answers there."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ClusterError, MissingExtra, SettingsError
from ..families import member_of
from .dialects import Dialect, Version
from .failures import shortened, understood
from .settings import ClusterSettings

if TYPE_CHECKING:
    from .embedded.state import NodeState

OLDEST: Version = (2, 19, 0)


def parse_version(number: str) -> Version:
    """Read `3.6.0` or `3.6.0-SNAPSHOT`."""
    parts = [int(part) for part in re.findall(r"\d+", number)[:3]]
    return (*parts, 0, 0, 0)[:3]  # type: ignore[return-value]


def require_opensearch(info: Any, url: str) -> None:
    """Raise ClusterError unless the server is an OpenSearch."""
    entry = info.get("version") if isinstance(info, dict) else None
    version: dict[str, Any] = entry if isinstance(entry, dict) else {}
    if version.get("distribution") != "opensearch":
        number = version.get("number")
        entry = f"version {shortened(number)} of another product" if number else "something else"
        raise ClusterError(f"{url} answers, but it is {entry}, not OpenSearch", hint="check --url")


def refuse_older(product: str, version: Version, oldest: Version, url: str) -> None:
    """Raise ClusterError for a version that is too old."""
    if version < oldest:
        needed, number = ".".join(map(str, oldest[:2])), ".".join(map(str, version))
        raise ClusterError(
            f"{product} {number} at {url}; hybridr needs {needed} or newer",
            hint="upgrade the cluster, or try it out with: hybridr node start",
        )


DEFAULT_URL = "http://localhost:9200"


def addressed(settings: ClusterSettings) -> ClusterSettings:
    """Return the settings with their url filled in; its cloud id is gone, so that this may be done twice.

    A node of hybridr's own brings its certificate and its user with it.
    """
    from .embedded.state import nodes, running_node

    if settings.cloud_id:
        if settings.url is not None:
            raise SettingsError("an address and a cloud id are given", hint="--url URL, or HYBRIDR_CLOUD_ID")
        return settings.model_copy(update={"url": cloud_address(settings.cloud_id), "cloud_id": None})
    if settings.url is None:
        if (node := running_node()) is None:
            refuse_to_choose([node_state for node_state in nodes() if node_state.running])
    else:
        node = next((node for node in nodes() if node.running and node.url == settings.url), None)
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
    """Read the address of Elasticsearch in a cloud id, `NAME:` and host, `$` and its name in base64.

    Raises SettingsError.
    """
    try:
        host, name = b64decode(cloud_id.rpartition(":")[2], validate=True).decode("ascii").split("$")[:2]
    except ValueError:
        host = name = ""
    host, _, port = host.partition(":")
    if not (host and name and re.fullmatch(r"[\w.-]+", f"{host}{name}") and (port or "443").isdigit()):
        raise SettingsError("this is no cloud id", hint="Elastic Cloud shows it with the deployment: NAME:…")
    return f"https://{name}.{host}:{port or 443}"


def refuse_to_choose(running: Sequence[NodeState]) -> None:
    """Raise SettingsError where several nodes of our own run and none is the default."""
    if running:
        choices = ", ".join(f"{node.name} at {node.url}" for node in running)
        raise SettingsError(f"several nodes run, none of them called 'default': {choices}", hint="--url URL")


NO_ANSWER = {400, 404, 405}  # to `GET /`, which the core of Elasticsearch has not
TAGLINE = "You Know, for Search"
OLDEST_OTHER: Version = (8, 12, 0)  # before, Elasticsearch has no `knn` query
OTHER = "elasticsearch"
NODES = "/_nodes/_local/none"
Ask = Callable[[], Any]


def greeted(ask: Ask, url: str, ask_other: Callable[[str], Any]) -> tuple[Any, Dialect, Any]:
    """Find out by `GET /`, which `ask` sends, who answers at a url: the answer, the dialect, and the client
    that is needed instead, None where it is the one that asked.

    `other` opens the client of a name. Raises ClusterError where neither product answers, or one too old.
    """
    info, failure = {}, None
    try:
        info = ask()
    except ClusterError as error:
        if error.status not in NO_ANSWER:
            raise
        failure = error
    if failure is None and info.get("tagline") != TAGLINE:
        require_opensearch(info, url)
        version = told_version(info, url)
        refuse_older("OpenSearch", version, OLDEST, url)
        return info, member_of("cluster.dialects", "plain")(version), None
    client = open_other(ask_other, url)
    info = client.send("GET", "/", None, None, None) if info else of_nodes(client, url)
    version = told_version(info, url)
    refuse_older("Elasticsearch", version, OLDEST_OTHER, url)
    return info, member_of("cluster.dialects", "elastic")(version), client


def open_other(ask_other: Callable[[str], Any], url: str) -> Any:
    """Open the client of Elasticsearch. Raises ClusterError where its package is missing."""
    try:
        return ask_other(OTHER)
    except MissingExtra as error:
        raise ClusterError(
            f"{url} answers, but it is not OpenSearch", hint=f"were it Elasticsearch: {error.hint}"
        ) from None


def of_nodes(client: Any, url: str) -> dict[str, Any]:
    """Ask the node that answers for its version, in the form of `GET /`."""
    nodes = client.send("GET", NODES, None, None, None)
    with understood(url, NODES):
        [node] = nodes["nodes"].values()
        return {"cluster_name": nodes["cluster_name"], "version": {"number": node["version"]}}


def told_version(info: Any, url: str) -> Version:
    """Read the version in an answer to `GET /`."""
    with understood(url, "GET /"):
        return parse_version(info["version"]["number"])
