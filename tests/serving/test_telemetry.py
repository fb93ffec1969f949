"""What the server counts and logs."""

from __future__ import annotations

import json
import logging

import pytest

from hybridr.serving.telemetry import JsonLines
from support.asking import DeadEncoder, client_of, embed


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


def logged(caplog, client, **request):
    with caplog.at_level(logging.DEBUG, "hybridr.serving"):
        embed(client, **request)
    return [JsonLines().format(record) for record in caplog.records if record.name == "hybridr.serving"]


@pytest.mark.attack(38)
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
