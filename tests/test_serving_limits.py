"""What the server refuses, counts and logs."""

from __future__ import annotations

import json
import logging
import time
from threading import Event, Thread

import pytest
from fastapi.testclient import TestClient

from hashing import HashingEncoder
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from hybridr.serving.telemetry import JsonLines


class DeadEncoder(HashingEncoder):
    def encode_queries(self, texts, *, max_tokens=None):
        raise RuntimeError(f"no memory for {texts}")


def client_of(encoder=None, **settings) -> TestClient:
    return TestClient(create_app(encoder or HashingEncoder(), ServeSettings(**settings)))


def embed(client, text, model="x-query", **more):
    return client.post("/v1/embeddings", json={"model": model, "input": text}, **more)


def test_a_body_over_the_limit_is_refused_by_what_it_announces():
    answer = embed(client_of(max_body_bytes=200), "x" * 300)
    assert answer.status_code == 413
    assert answer.json()["error"]["message"] == "the body is larger than 200 bytes"


def test_a_body_over_the_limit_is_refused_when_it_announces_nothing():
    def pieces():
        yield b'{"model": "x-query", "input": "'
        for _ in range(100):
            yield b"x" * 10
        yield b'"}'

    headers = {"Content-Type": "application/json"}
    client = client_of(max_body_bytes=200)
    answer = client.post("/v1/embeddings", content=pieces(), headers=headers)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == 413
    assert client_of().post("/v1/embeddings", content=pieces(), headers=headers).status_code == 200


def test_the_limits_come_from_the_settings():
    client = client_of(max_inputs=2, max_characters=5)
    assert embed(client, ["a", "b"]).status_code == 200
    many, long = embed(client, ["a", "b", "c"]), embed(client, ["a", "123456"])
    assert (many.status_code, long.status_code) == (422, 422)
    assert many.json()["error"]["message"] == "3 inputs were sent, a request takes at most 2"
    assert long.json()["error"]["message"] == "input 1 has 6 characters, at most 5 are taken"


@pytest.mark.parametrize(
    "text", ["word " * 20_000, "x" * 100_000, "飛" * 100_000, "a\x00b\x1b[31m\x7f\r\n\u2028"]
)
def test_long_and_odd_texts_are_encoded(text):
    encoder = HashingEncoder()
    assert embed(client_of(encoder), text).status_code == 200


def test_a_full_queue_is_503_with_the_time_to_come_back():
    class Stuck(HashingEncoder):
        entered, released = Event(), Event()

        def encode_documents(self, texts, *, max_tokens=None):
            self.entered.set()
            assert self.released.wait(10)
            return super().encode_documents(texts)

    encoder = Stuck()
    answers = []
    with client_of(encoder, max_waiting=2) as client:
        threads = [Thread(target=lambda: answers.append(embed(client, "a", "x-passage"))) for _ in range(3)]
        threads[0].start()
        assert encoder.entered.wait(10)
        for thread in threads[1:]:
            thread.start()
        while len(client.app.state.embedder.queue) < 2:
            time.sleep(0.01)
        refused = embed(client, "b", "x-passage")
        encoder.released.set()
        for thread in threads:
            thread.join(10)
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["message"] == "2 texts wait for the encoder, at most 2 may"
    assert [answer.status_code for answer in answers] == [200] * 3


def test_malformed_json_is_refused_in_openais_form():
    headers = {"Content-Type": "application/json"}
    answer = client_of().post("/v1/embeddings", content=b'{"input": ', headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/nowhere", 404), ("GET", "/v1/embeddings", 405)]
)
def test_unknown_routes_and_methods_have_openais_form(method, path, status):
    answer = client_of().request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == status


def test_a_dead_encoder_is_a_clear_error_without_the_text():
    answer = embed(client_of(DeadEncoder()), "secret words")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "the encoder failed"
    assert "secret" not in answer.text


def test_an_error_of_our_own_is_an_answer_too():
    class Broken(HashingEncoder):
        def count_tokens(self, texts):
            raise RuntimeError(f"cannot count {texts}")

    answer = embed(client_of(Broken()), "secret words")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "the server failed"
    assert "secret" not in answer.text


def test_metrics_count_requests_batches_and_the_queue():
    client = client_of()
    embed(client, ["a", "b", "c"], "x-passage")
    embed(client, "", "x-passage")
    client.get("/a/path/of/the/client")
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in (
        'hybridr_requests_total{route="/v1/embeddings",status="200"} 1.0',
        'hybridr_requests_total{route="/v1/embeddings",status="400"} 1.0',
        'hybridr_requests_total{route="other",status="404"} 1.0',
        'hybridr_request_seconds_count{route="/v1/embeddings"} 2.0',
        'hybridr_batch_texts_bucket{le="4.0"} 1.0',
        "hybridr_batch_texts_sum 3.0",
        "hybridr_queue_texts 0.0",
    ):
        assert line in answer.text.splitlines()
    assert "of/the/client" not in answer.text


def test_the_openapi_page_tells_every_route():
    client = client_of()
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/embeddings", "/v1/models", "/healthz", "/metrics"} <= paths.keys()
    page = client.get("/docs").text
    assert "POST /v1/embeddings" in page
    assert "ends in -query or -passage" in page
    assert "http" not in page, "nothing is taken from elsewhere"


def logged(caplog, client, **request):
    with caplog.at_level(logging.DEBUG, "hybridr.serving"):
        embed(client, **request)
    return [JsonLines().format(record) for record in caplog.records if record.name == "hybridr.serving"]


def test_the_log_is_one_json_object_per_request_without_the_text(caplog):
    [line] = logged(
        caplog,
        client_of(token="s3cret"),
        text=["secret\nwords", "b"],
        headers={"Authorization": "Bearer s3cret"},
    )
    said = json.loads(line)
    assert (
        said.items()
        >= {
            "event": "request",
            "level": "info",
            "method": "POST",
            "route": "/v1/embeddings",
            "status": 200,
            "side": "query",
            "texts": 2,
        }.items()
    )
    assert said["time"].endswith("+00:00")
    assert said["seconds"] > 0
    assert "secret" not in line
    assert "s3cret" not in line


def test_the_log_holds_the_text_when_asked(caplog):
    [line] = logged(caplog, client_of(log_queries=True), text="secret\nwords")
    assert "\n" not in line
    assert json.loads(line)["input"] == ["secret\nwords"]


def test_the_log_names_the_error_but_not_its_words(caplog):
    [line] = logged(caplog, client_of(DeadEncoder()), text="secret words")
    said = json.loads(line)
    assert (said["level"], said["status"], said["error"]) == ("error", 500, "RuntimeError")
    assert "encode_queries" in said["raised_at"][-1]
    assert "secret" not in line
