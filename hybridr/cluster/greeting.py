"""Finds the address of the cluster, and checks which product of which version answers there."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ClusterError, SettingsError
from ..families import member_of
from .dialects import Dialect, Version
from .failures import shortened, understood
from .settings import ClusterSettings

OLDEST: Version = (2, 19, 0)
OLDEST_OTHER: Version = (8, 12, 0)  # before, Elasticsearch has no `knn` query
DEFAULT_URL = "http://localhost:9200"


def addressed(settings: ClusterSettings) -> ClusterSettings:
    """Return the settings with `url` filled in: from a cloud id, a running embedded node, or the default
    address.

    For an embedded node, its certificate and user are filled in too. Applying this twice changes nothing
    more.
    """
    from .embedded.state import nodes, running_node

    if settings.cloud_id:
        if settings.url is not None:
            raise SettingsError("an address and a cloud id are given", hint="--url URL, or HYBRIDR_CLOUD_ID")
        return settings.model_copy(update={"url": cloud_address(settings.cloud_id), "cloud_id": None})
    if settings.url is None:
        if (node := running_node()) is None:
            running = ", ".join(f"{state.name} at {state.url}" for state in nodes() if state.running)
            if running:
                problem = f"several nodes run, none of them called 'default': {running}"
                raise SettingsError(problem, hint="--url URL")
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
    """Return the URL of Elasticsearch that an Elastic cloud id encodes. Raises SettingsError."""
    try:
        host, name = b64decode(cloud_id.rpartition(":")[2], validate=True).decode("ascii").split("$")[:2]
    except ValueError:
        host = name = ""
    host, _, port = host.partition(":")
    if not (host and name and re.fullmatch(r"[\w.-]+", f"{host}{name}") and (port or "443").isdigit()):
        raise SettingsError("this is no cloud id", hint="Elastic Cloud shows it with the deployment: NAME:…")
    return f"https://{name}.{host}:{port or 443}"


NO_ANSWER = {400, 404, 405}  # to `GET /`, which the core of Elasticsearch has not
TAGLINE = "You Know, for Search"
NODES = "/_nodes/_local/none"


def greeted(ask: Callable[[], Any], send: Callable[[str], Any], url: str) -> tuple[dict[str, Any], Dialect]:
    """Return the answer of `GET /` and the dialect of the product at a url.

    `ask` sends `GET /`, `send` gets another path. Raises ClusterError if neither product answers, or one that
    is too old.
    """
    info: dict[str, Any] = {}
    try:
        info = ask()
    except ClusterError as error:
        if error.status not in NO_ANSWER:
            raise
    if info and info.get("tagline") != TAGLINE:
        product, oldest, dialect = "OpenSearch", OLDEST, "plain"
        entry = info.get("version") if isinstance(info, dict) else None
        entry = entry if isinstance(entry, dict) else {}
        if entry.get("distribution") != "opensearch":
            number = entry.get("number")
            what = f"version {shortened(number)} of another product" if number else "something else"
            raise ClusterError(f"{url} answers, but it is {what}, not OpenSearch", hint="check --url")
    else:
        product, oldest, dialect = "Elasticsearch", OLDEST_OTHER, "elastic"
        if not info:  # the node that answers tells its version
            try:
                answer = send(NODES)
            except ClusterError as error:
                problem = f"{url} answers, but it is not OpenSearch: {error.message}"
                raise ClusterError(problem, hint="check --url") from None
            with understood(url, NODES):
                [node] = answer["nodes"].values()
                info = {"cluster_name": answer["cluster_name"], "version": {"number": node["version"]}}
    version = version_in(info, url)
    if version < oldest:
        needed, number = ".".join(map(str, oldest[:2])), ".".join(map(str, version))
        raise ClusterError(
            f"{product} {number} at {url}; hybridr needs {needed} or newer",
            hint="upgrade the cluster, or try it out with: hybridr node start",
        )
    return info, member_of("cluster.dialects", dialect)(version)


def version_in(info: Any, url: str) -> Version:
    """Return the version in an answer to `GET /`, such as `3.6.0` or `3.6.0-SNAPSHOT`, as three numbers."""
    with understood(url, "GET /"):
        parts = [int(part) for part in re.findall(r"\d+", info["version"]["number"])[:3]]
        return (*parts, 0, 0, 0)[:3]  # type: ignore[return-value]
