"""Clients: what speaks to a server, one file each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeAlias

from ..settings import ClusterSettings

Body: TypeAlias = bytes | str | None
Params: TypeAlias = Mapping[str, Any] | None


class Client(Protocol):
    """A way to send requests to a server that speaks OpenSearch's REST API.

    It sends each request once: patience and repeats are the connection's.
    """

    name: ClassVar[str]

    def __init__(self, url: str, settings: ClusterSettings) -> None:
        """Get ready; nothing is sent yet. Raises SettingsError for an unusable address or credentials."""

    def send(self, method: str, path: str, body: Body, params: Params, timeout_s: float | None) -> Any:
        """Send one request and give the parsed answer; that of HEAD is whether there is such a thing.

        `timeout_s` is how many seconds to wait for the answer, None as the settings say. Raises Unreachable,
        AccessDenied, NotFound, or ClusterError with the server's reason; no text of theirs holds a password.
        """
