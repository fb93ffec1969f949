"""The socket that a server listens on, bounded for clients who never end agreeing upon TLS."""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from contextlib import suppress
from typing import Any

from ..errors import SettingsError

MOST_SHAKING = 100


class BoundListener(socket.socket):
    """A bound socket that knows the connections which do not speak HTTP yet: TLS is being agreed upon.

    Beyond `MOST_SHAKING` of these the one that was accepted first is closed for each new one, so that clients
    who never end it neither use up files nor keep others out.
    """

    def __init__(self, family: int, kind: int, protocol: int, descriptor: int) -> None:
        super().__init__(family, kind, protocol, descriptor)
        self.shaking: OrderedDict[int, socket.socket] = OrderedDict()

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection, and close the oldest where there are too many."""
        taken, address = super().accept()
        self.shaking.pop(taken.fileno(), None)  # of one that ended in the middle of it
        self.shaking[taken.fileno()] = taken
        while len(self.shaking) > MOST_SHAKING:
            with suppress(OSError):  # it ended meanwhile
                self.shaking.popitem(last=False)[1].shutdown(socket.SHUT_RDWR)
        return taken, address

    def shaken(self, transport: asyncio.Transport) -> None:
        """Forget a connection that speaks HTTP."""
        self.shaking.pop(transport.get_extra_info("socket").fileno(), None)


def listen(host: str, port: int) -> BoundListener:
    """Bind a port; 0 takes a free one. Raises SettingsError when that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(
            f"port {port} of {host} cannot be used: {error.strerror}",
            hint="--port takes another, 0 a free one",
        ) from None
    # asyncio sends without delay only where the protocol is named; 40 ms an answer otherwise.
    return BoundListener(bound.family, bound.type, socket.IPPROTO_TCP, bound.detach())
