"""Whatever another machine sends, and however slowly: what waits for it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from hybridr.cluster import remote_models
from hybridr.errors import Unreachable
from hybridr.files.fetching import MAX_ANSWER_BYTES, BoundedRetry, ask_web
from hybridr.serving.page import judgements
from hybridr.serving.page.judgements import grade_by_model
from hybridr.serving.settings import AssessorSettings
from support.servers import Quiet, serving
from support.waiting import within


class Slow(Quiet):
    """Answers as the first part of the path says."""

    asked: list[str]

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.asked.append(self.path)
        with suppress(OSError):
            getattr(self, self.path.split("/")[1])()

    do_GET = do_POST = answer

    def drip(self) -> None:
        for _ in range(1_000):
            self.wfile.write(b" ")
            self.wfile.flush()
            time.sleep(0.05)

    def body(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.drip()

    def chunks(self) -> None:
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(1_000):
            self.wfile.write(b"1\r\n \r\n")
            time.sleep(0.05)

    def head(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        self.drip()

    def silent(self) -> None:
        time.sleep(30)

    def busy(self) -> None:
        self.send_response(503)
        self.send_header("Retry-After", "100000" if self.path.startswith("/busy/in") else "9" * 5_000)
        self.end_headers()

    def much(self) -> None:
        self.send_response(200)
        self.end_headers()
        for _ in range(100):
            self.wfile.write(b" " * 100_000)


WAYS = ["body", "chunks", "head", "silent"]


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    handler = type("Asked", (Slow,), {"asked": []})
    with serving(handler) as url:
        yield url, handler.asked


@pytest.mark.attack(137)
@pytest.mark.parametrize("way", WAYS)
def test_a_language_model_that_sends_a_byte_now_and_then_is_left(server, way, monkeypatch):
    monkeypatch.setattr(judgements, "ANSWER_S", 1.0)
    with within(15), pytest.raises(Unreachable, match="TimeoutError|Timeout|MaxRetry"):
        grade_by_model(AssessorSettings(endpoint=f"{server[0]}/{way}", model="m"), "river", "boat")


@pytest.mark.attack(136)
@pytest.mark.parametrize("way", ["busy/in-days", "busy"])
def test_nobody_waits_as_long_as_a_busy_endpoint_says(server, way, monkeypatch):
    monkeypatch.setattr(BoundedRetry, "MAX_WAIT_S", 0.1)
    with within(20), pytest.raises(Unreachable):
        grade_by_model(AssessorSettings(endpoint=f"{server[0]}/{way}", model="m"), "river", "boat")
    assert 1 <= len(server[1]) <= 4


@pytest.mark.attack(136)
@pytest.mark.parametrize("asked", ["100000", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_the_bound_of_a_wait_is_ten_seconds(asked: str) -> None:
    assert BoundedRetry(1).parse_retry_after("7") == 7
    assert BoundedRetry(1).parse_retry_after(asked) == 10


@pytest.mark.attack(137)
def test_a_server_that_is_to_be_deployed_is_left_too(server, monkeypatch):
    monkeypatch.setattr(remote_models, "ANSWER_TIMEOUT_S", 1.0)
    with within(15), pytest.raises(Unreachable):
        remote_models.ask_embedding_server(f"{server[0]}/body", "/v1/models")


def test_an_answer_is_read_up_to_its_bound(server: tuple[str, list[str]]) -> None:
    assert len(ask_web("GET", f"{server[0]}/much", 10.0, headers={}).content) == MAX_ANSWER_BYTES
