"""Servers, their clients, and an encoder that fails."""

from __future__ import annotations

import socket
from threading import Thread
from typing import Any

from fastapi.testclient import TestClient

from hybridr.serving.application import Server, create_app
from hybridr.serving.doorway import listen
from hybridr.serving.settings import ServeSettings
from support.hashing import HashingEncoder


class DeadEncoder(HashingEncoder):
    def encode_queries(self, texts, *, max_tokens=None):
        raise RuntimeError(f"no memory for {texts}")


def client_of(encoder=None, **settings) -> TestClient:
    return TestClient(create_app(encoder or HashingEncoder(), ServeSettings(**settings)))


def embed(client, text, model="x-query", **more):
    return client.post("/v1/embeddings", json={"model": model, "input": text}, **more)


def running(app: Any, settings: ServeSettings | None = None) -> Server:
    """Start a server of an app in a thread."""
    server = Server(app, listen("127.0.0.1", 0), settings or ServeSettings())
    Thread(target=server.run, daemon=True).start()
    return server


def is_closed(connection: socket.socket, wait_s: float) -> bool:
    """Whether the server closes in time, whatever it still sends: an answer may come in several pieces."""
    connection.settimeout(wait_s)
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True
