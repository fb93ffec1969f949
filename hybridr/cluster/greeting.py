"""Greeting: which product answers at an address, found out once when a connection opens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ClusterError, MissingExtra
from ..families import member_of
from .dialects import Dialect
from .failures import understood
from .versions import OLDEST, Version, parse_version, refuse_older, require_opensearch

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
