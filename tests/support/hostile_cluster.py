"""A server that answers as no OpenSearch does."""

from __future__ import annotations

import gzip
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from support.servers import Quiet, serving

ROOT = {"version": {"distribution": "opensearch", "number": "3.6.0"}}
DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
INDEX = {"docs": {"settings": {"index.uuid": "u", "index.number_of_shards": "1"}, "mappings": {}}}


@dataclass
class Given:
    """What one path is answered with; `endless` repeats it until nobody listens, `drips` sends it slowly."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    endless: bool = False
    drips: bool = False

    @property
    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@contextmanager
def hostile(
    answers: dict[str, Given], tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    """Serve these answers by path, `*` for others; give the url, and (path, authorization) of requests."""
    asked: list[tuple[str, str | None]] = []

    class Handler(Quiet):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.partition("?")[0]
            asked.append((path, self.headers.get("Authorization")))
            given = answers.get(path) or answers.get("*") or Given({"error": "no such thing"}, 404)
            self.send_response(given.status)
            headers = {"Content-Type": "application/json", "Connection": "close", **given.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            for place in range(len(given.data) if given.drips else 0):
                with suppress(OSError):
                    self.wfile.write(given.data[place : place + 1])
                    time.sleep(0.05)
            with suppress(OSError):
                self.wfile.write(b"" if given.drips else given.data)
                while given.endless:
                    self.wfile.write(given.data)

        do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = answer

    with serving(Handler, tls) as url:
        yield url, asked


def bomb(size: int) -> Given:
    """Pack so many blanks: a thousandth of them travels."""
    return Given(gzip.compress(b" " * size), headers={"Content-Encoding": "gzip"})
