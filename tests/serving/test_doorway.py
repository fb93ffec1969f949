"""What the server refuses at the door."""

from __future__ import annotations

import asyncio
from threading import Event, Thread

import pytest

from hybridr.serving import embeddings
from hybridr.serving.doorway import LARGE_AT_ONCE, LARGE_BYTES, Doorway
from hybridr.serving.settings import ServeSettings
from hybridr.serving.telemetry import Metrics
from support.asking import DeadEncoder, client_of, embed
from support.hashing import HashingEncoder
from support.waiting import wait_until


def test_a_body_over_the_limit_is_refused_by_what_it_announces():
    answer = embed(client_of(max_body_bytes=200), "x" * 300)
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "the body is larger than 200 bytes"


@pytest.mark.attack(33)
def test_a_body_over_the_limit_is_refused_when_it_announces_nothing():
    def pieces():
        yield b'{"model": "x-query", "input": "'
        for _ in range(100):
            yield b"x" * 10
        yield b'"}'

    headers = {"Content-Type": "application/json"}
    client = client_of(max_body_bytes=200)
    answer = client.post("/v1/embeddings", content=pieces(), headers=headers)
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, 413)
    assert client_of().post("/v1/embeddings", content=pieces(), headers=headers).status_code == 200


def test_a_full_queue_is_503_with_the_time_to_come_back(monkeypatch):
    class Stuck(HashingEncoder):
        entered, released = Event(), Event()

        def encode_documents(self, texts, *, max_tokens=None):
            self.entered.set()
            assert self.released.wait(10)
            return super().encode_documents(texts)

    monkeypatch.setattr(embeddings, "MAX_WAITING", 2)
    encoder = Stuck()
    answers = []
    with client_of(encoder) as client:
        threads = [Thread(target=lambda: answers.append(embed(client, "a", "x-passage"))) for _ in range(3)]
        threads[0].start()
        assert encoder.entered.wait(10)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: len(client.app.state.embedder.queue) == 2)
        refused = embed(client, "b", "x-passage")
        encoder.released.set()
        for thread in threads:
            thread.join(10)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert refused.json()["error"]["message"] == "2 texts wait for the encoder, the limit is 2"
    assert [answer.status_code for answer in answers] == [200] * 3


def test_a_dead_encoder_is_a_clear_error_without_the_text():
    answer = embed(client_of(DeadEncoder()), "secret words")
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the encoder failed")
    assert "secret" not in answer.text


def test_an_error_of_our_own_is_an_answer_too():
    class Broken(HashingEncoder):
        def counts(self, texts):
            raise RuntimeError(f"cannot count {texts}")

    answer = embed(client_of(Broken()), "secret words")
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "the server failed")
    assert "secret" not in answer.text


def test_the_openapi_page_tells_every_route():
    client = client_of()
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/embeddings", "/v1/models", "/healthz", "/metrics"} <= paths.keys()
    page = client.get("/docs").text
    assert "POST /v1/embeddings" in page
    assert "ends in -query or -passage" in page
    assert "http" not in page, "nothing is taken from elsewhere"


@pytest.mark.anyio
@pytest.mark.parametrize("rounds", range(12))
async def test_a_request_that_ends_as_its_turn_comes_gives_the_turn_back(rounds: int):
    """Whatever step of the loop it is ended at: a lost turn would shut large bodies out for good."""

    async def work(scope, receive, send):
        await asyncio.sleep(60)

    async def receive():
        return messages.pop() if messages else await asyncio.Event().wait()

    doorway = Doorway(work, ServeSettings(), Metrics(), ())
    messages = [{"type": "http.request", "body": b" " * (LARGE_BYTES + 1), "more_body": False}]
    scope = {"type": "http", "method": "POST", "path": "/v1/rank", "headers": []}
    request = asyncio.create_task(doorway(scope, receive, receive))
    for _ in range(rounds):
        await asyncio.sleep(0)
    request.cancel()
    await asyncio.gather(request, return_exceptions=True)
    await asyncio.sleep(0)
    assert doorway.large_body_turns._value == LARGE_AT_ONCE
