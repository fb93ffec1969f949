from __future__ import annotations

import base64
import json
import signal
import socket
import ssl
import subprocess
import sys

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient

from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import load_encoder
from hybridr.errors import SettingsError
from hybridr.serving.application import Server, create_app, require_guard
from hybridr.serving.doorway import MAX_HANDSHAKES, listen
from hybridr.serving.settings import ServeSettings
from hybridr_cli import main
from support.asking import is_closed, running
from support.certificates import certificate
from support.hashing import HashingEncoder
from support.tiny import tiny_retriever, tiny_texts

DIM = 8


class SidedEncoder(HashingEncoder):
    """Queries and documents differ, and tokens are counted."""

    def encode_queries(self, texts, *, max_tokens=None):
        return super().encode_queries([f"asked {text}" for text in texts])

    def counts(self, texts):
        return [len(text.split()) + 2 for text in texts]


@pytest.fixture
def encoder():
    return SidedEncoder(DIM)


@pytest.fixture
def client(encoder):
    return TestClient(create_app(encoder))


def embed(client, **body):
    return client.post("/v1/embeddings", json={"model": "hybridr-passage", **body})


def vectors(answer):
    return np.array([entry["embedding"] for entry in answer.json()["data"]], dtype=np.float32)


def test_a_list_gives_one_vector_per_text_in_order(client, encoder):
    texts = ["a cat", "ein Hund", "über 飛 🙂"]
    answer = embed(client, input=texts)
    assert answer.status_code == 200
    np.testing.assert_array_equal(vectors(answer), encoder.encode_documents(texts))
    body = answer.json()
    assert [entry["index"] for entry in body["data"]] == [0, 1, 2]
    assert body["usage"] == {"prompt_tokens": 4 + 4 + 5, "total_tokens": 4 + 4 + 5}


@pytest.mark.parametrize("model", ["hybridr-query", "minilm-adapted-QUERY"])
def test_the_name_of_the_model_chooses_the_side(client, encoder, model):
    answer = embed(client, input=["a cat"], model=model)
    np.testing.assert_array_equal(vectors(answer), encoder.encode_queries(["a cat"]))
    assert answer.json()["model"] == model


def test_a_single_string_is_one_text_and_base64_holds_the_same_float32(client, encoder):
    answer = embed(client, input="a cat", encoding_format="base64").json()
    raw = base64.b64decode(answer["data"][0]["embedding"])
    np.testing.assert_array_equal(np.frombuffer(raw, dtype="<f4"), encoder.encode_documents(["a cat"])[0])


def test_models_are_listed(client):
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert names == ["hybridr-query", "hybridr-passage"]


def test_health_tells_which_encoder_answers(client, encoder):
    assert client.get("/healthz").json() == {
        "status": "ok",
        "encoder": encoder.fingerprint,
        "dim": DIM,
        "similarity": "cosine",
        "max_tokens": 256,
        "index": None,
    }


def test_without_an_index_there_is_no_search(client):
    assert client.post("/search", json={"query": "a cat"}).status_code == 404


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"input": "x", "model": "text-embedding-3-small"}, 404, "does not end in -query or -passage"),
        ({"input": ["a cat", " \n"]}, 400, "input 1 is empty"),
        ({"input": ""}, 400, "input 0 is empty"),
        ({"input": []}, 400, "at least 1 item"),
        ({"input": ["x"] * 2049}, 422, "2049 inputs were sent, a request takes at most 2048"),
        ({"input": ["x", "\x00\x07\u200b"]}, 400, "input 1 is empty"),
        ({"input": ["x", "y" * 1_000_001]}, 422, "input 1 has 1000001 characters, the limit is 1000000"),
        ({"input": [[1, 2, 3]]}, 400, "valid string"),
        ({}, 400, "input: Field required"),
        ({"input": "x", "dimensions": 3}, 400, "gives 8 dimensions, 3 were asked for"),
        ({"input": "x", "encoding_format": "int8"}, 400, "encoding_format"),
    ],
)
def test_a_request_that_cannot_be_answered_says_why(client, body, status, said):
    answer = embed(client, **body)
    assert answer.status_code == status
    assert said in answer.json()["error"]["message"]


def test_an_encoder_that_cannot_count_tokens_gives_no_usage():
    answer = embed(TestClient(create_app(HashingEncoder())), input="a cat")
    assert answer.status_code == 200
    assert "usage" not in answer.json()


def test_an_error_does_not_repeat_the_text(client):
    answer = embed(client, input={"secret words": 1})
    assert answer.status_code == 400
    assert "secret" not in answer.text


@pytest.mark.attack(30)
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "search.example"])
def test_other_machines_need_a_token(host):
    with pytest.raises(SettingsError, match="the server has no token") as caught:
        require_guard(ServeSettings(host=host))
    assert "HYBRIDR_SERVE_TOKEN" in caught.value.hint
    require_guard(ServeSettings(host=host, token="s3cret"))
    require_guard(ServeSettings(host=host, insecure=True))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_machine_needs_none(host):
    require_guard(ServeSettings(host=host))


@pytest.mark.attack(30)
def test_a_server_with_a_certificate_speaks_tls(encoder, tmp_path):
    settings = ServeSettings(**certificate(tmp_path))
    require_guard(settings)
    server = running(create_app(encoder, settings), settings)
    assert server.url.startswith("https://127.0.0.1:")
    trusted = ssl.create_default_context(cafile=settings.tls_cert)
    assert httpx.get(f"{server.url}/healthz", verify=trusted).json()["status"] == "ok"
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{server.url.replace('https', 'http')}/healthz")


@pytest.mark.attack(86)
def test_handshakes_that_never_end_keep_nobody_out(encoder, tmp_path):
    settings = ServeSettings(**certificate(tmp_path))
    server = running(create_app(encoder, settings), settings)
    trusted = ssl.create_default_context(cafile=settings.tls_cert)
    httpx.get(f"{server.url}/healthz", verify=trusted)
    address = server.listener.getsockname()
    silent = [socket.create_connection(address[:2]) for _ in range(3 * MAX_HANDSHAKES)]
    try:
        for one in silent[::2]:
            one.sendall(b"\x16\x03\x01")
        for _ in range(5):
            assert httpx.get(f"{server.url}/healthz", verify=trusted, timeout=10).status_code == 200
        assert len(server.listener.handshakes) <= MAX_HANDSHAKES
        closed = sum(is_closed(one, 5.0) for one in silent[: MAX_HANDSHAKES // 2])
        assert closed == MAX_HANDSHAKES // 2, "the first ones made room"
    finally:
        for one in silent:
            one.close()


@pytest.mark.attack(86)
def test_an_installed_uvloop_is_not_used(encoder, monkeypatch):
    loops = []
    monkeypatch.setattr("uvicorn.Server.run", lambda server, sockets: loops.append(server.config.loop))
    listener = listen("127.0.0.1", 0)
    Server(create_app(encoder), listener).run()
    listener.close()
    assert loops == ["asyncio"]  # uvloop would pass by the limit of handshakes


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path):
    (tmp_path / "broken.pem").write_text("nothing")
    for settings in (ServeSettings(tls_cert=tmp_path / name) for name in ("none.pem", "broken.pem")):
        with pytest.raises(SettingsError, match="cannot be used"):
            require_guard(settings)
    with pytest.raises(SettingsError, match="needs --tls-cert"):
        require_guard(ServeSettings(tls_key=tmp_path / "broken.pem"))


def test_an_unknown_host_is_refused():
    with pytest.raises(SettingsError, match=r"port 0 of no\.such\.host\.invalid cannot be used"):
        listen("no.such.host.invalid", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export(tiny_retriever(), tmp_path_factory.mktemp("served") / "encoder")


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_an_encoder_folder_until_it_is_told_to_stop(folder, ending):
    command = [sys.executable, *"-m hybridr_cli serve --port 0 --json --encoder".split(), str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = json.loads(process.stdout.readline())["url"]
        texts = tiny_texts(5, seed=3)[1:]
        with httpx.Client(base_url=url, timeout=30) as client:
            found = vectors(embed(client, input=texts, model="hybridr-query"))
        np.testing.assert_allclose(found, load_encoder(folder).encode_queries(texts), atol=1e-6)
    finally:
        process.send_signal(ending)
        _, said = process.communicate(timeout=30)
    assert process.returncode == (0 if ending == signal.SIGINT else -signal.SIGTERM)
    assert "Traceback" not in said
    assert json.loads(said)["route"] == "/v1/embeddings"
    assert texts[0] not in said


def test_serve_refuses_a_damaged_encoder(folder, tmp_path, capsys):
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main(["serve", "--encoder", str(tmp_path), "--port", "0"]) == 1
    assert "is not an encoder of hybridr" in capsys.readouterr().err


def test_serve_refuses_a_taken_port(folder, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", "--encoder", str(folder), "--port", port]) == 2
    said = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 cannot be used: Address already in use" in said
    assert "--port" in said


def test_serve_without_its_extra_says_what_to_install():
    script = "import sys, hybridr_cli; sys.modules['fastapi'] = None; sys.exit(hybridr_cli.main(['serve']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "error: hybridr serve needs the package 'fastapi', which is not installed\n"
        'hint: in a clone of hybridr: pip install ".[serve]"\n'
    )
