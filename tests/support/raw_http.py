"""Requests written byte by byte, as no client library sends them."""

from __future__ import annotations

import socket

JSON = ("content-type: application/json",)


def exchange(
    port: int, target: str, body: bytes = b"{}", headers: tuple[str, ...] = JSON, method: str = "POST"
) -> bytes:
    """Send one request with just this target to this machine, and return the whole answer."""
    lines = (
        f"{method} {target} HTTP/1.1",
        "host: localhost",
        "connection: close",
        f"content-length: {len(body)}",
        *headers,
    )
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall("\r\n".join((*lines, "", "")).encode("latin-1") + body)
        received = b""
        while part := connection.recv(65536):
            received += part
    return received


def status_of(answer: bytes) -> int:
    """Return the status of an answer."""
    return int(answer.split(b" ", 2)[1])
