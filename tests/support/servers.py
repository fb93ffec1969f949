"""Servers in a thread of this process, each by a handler of its own."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Quiet(BaseHTTPRequestHandler):
    """A handler that prints nothing."""

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving(handler: Any, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve requests by a class of handlers for the length of the block, and yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
