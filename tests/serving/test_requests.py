"""What a request may hold."""

from __future__ import annotations

import pytest

from support.asking import client_of, embed
from support.hashing import HashingEncoder


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
