"""Versions of OpenSearch: how a cluster tells its own, and the oldest that is understood."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

from ..errors import ClusterError
from .failures import shortened

Version: TypeAlias = tuple[int, int, int]
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
