"""Versions of OpenSearch: how a cluster tells its own, and the oldest that is understood."""

from __future__ import annotations

import re
from typing import Any

from ..errors import ClusterError
from .failures import told, understood

OLDEST = (2, 19, 0)


def parse_version(number: str) -> tuple[int, int, int]:
    """Read `3.6.0` or `3.6.0-SNAPSHOT`."""
    parts = [int(part) for part in re.findall(r"\d+", number)[:3]]
    return (*parts, 0, 0, 0)[:3]  # type: ignore[return-value]


def check_supported(info: Any, url: str) -> None:
    """Raise ClusterError unless the server is an OpenSearch that is new enough."""
    found = info.get("version") if isinstance(info, dict) else None
    version: dict[str, Any] = found if isinstance(found, dict) else {}
    if version.get("distribution") != "opensearch":
        number = version.get("number")
        found = f"version {told(number)} of another product" if number else "something else"
        raise ClusterError(f"{url} answers, but it is {found}, not OpenSearch", hint="check --url")
    with understood(url, "GET /"):
        number = parse_version(version["number"])
    if number < OLDEST:
        needed = ".".join(map(str, OLDEST[:2]))
        raise ClusterError(
            f"OpenSearch {told(version['number'])} at {url}; hybridr needs {needed} or newer",
            hint="upgrade the cluster, or try it out with: hybridr node start",
        )
