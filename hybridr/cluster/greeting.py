"""Identifies the product and version that answer at an address."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from ..errors import ClusterError
from ..families import load_member
from .dialects import Dialect, Version
from .failures import reading_answer, shortened

OLDEST: Version = (2, 19, 0)
OLDEST_OTHER: Version = (8, 12, 0)  # older versions of Elasticsearch have no `knn` query


NO_ANSWER = {400, 404, 405}  # to `GET /`, which the core of Elasticsearch lacks
TAGLINE = "You Know, for Search"
NODES = "/_nodes/_local/none"


def identify_product(
    ask: Callable[[], Any], send: Callable[[str], Any], url: str
) -> tuple[dict[str, Any], Dialect]:
    """Return the answer of `GET /` and the dialect of the product at a url.

    `ask` sends `GET /`, `send` gets another path. Raises ClusterError if neither product answers, or if its
    version is too old.
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
            description = f"version {shortened(number)} of another product" if number else "something else"
            raise ClusterError(f"{url} answers, but it is {description}, not OpenSearch", hint="check --url")
    else:
        product, oldest, dialect = "Elasticsearch", OLDEST_OTHER, "elastic"
        if not info:  # ask the node itself for its version
            try:
                answer = send(NODES)
            except ClusterError as error:
                problem = f"{url} answers, but it is not OpenSearch: {error.message}"
                raise ClusterError(problem, hint="check --url") from None
            with reading_answer(url, NODES):
                [node] = answer["nodes"].values()
                info = {"cluster_name": answer["cluster_name"], "version": {"number": node["version"]}}
    version = version_in(info, url)
    if version < oldest:
        minimum, number = ".".join(map(str, oldest[:2])), ".".join(map(str, version))
        raise ClusterError(
            f"{product} {number} at {url}; hybridr needs {minimum} or newer",
            hint="upgrade the cluster, or try it out with: hybridr node start",
        )
    return info, load_member("cluster.dialects", dialect)(version)


def version_in(info: Any, url: str) -> Version:
    """Return the version in an answer to `GET /`, such as `3.6.0` or `3.6.0-SNAPSHOT`, as three numbers."""
    with reading_answer(url, "GET /"):
        parts = [int(part) for part in re.findall(r"\d+", info["version"]["number"])[:3]]
        return (*parts, 0, 0, 0)[:3]  # type: ignore[return-value]
