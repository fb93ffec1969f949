"""A cluster that writes down what it is asked, and answers as it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple

from support.servers import Quiet, serving


class Heard(NamedTuple):
    """A request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Recorder:
    """What was heard; `answers` are a status and a body each, the last one for ever, with these `headers`."""

    answers: list[tuple[int, bytes]] = field(default_factory=lambda: [(200, b'{"hits":{"hits":[]}}')])
    heard: list[Heard] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    url: str = ""

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        self.heard.append(Heard(handler.requestline.removesuffix(" HTTP/1.1"), headers, body))
        status, answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        handler.send_response(status)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("X-elastic-product", "Elasticsearch")
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)


@contextmanager
def recording() -> Iterator[Recorder]:
    """Run one."""
    recorder = Recorder()

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            recorder.handle(self)

        do_POST = do_OPTIONS = do_GET

    with serving(Handler) as recorder.url:
        yield recorder
