"""A server's client, and an encoder that fails."""

from __future__ import annotations

from fastapi.testclient import TestClient

from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.hashing import HashingEncoder


class DeadEncoder(HashingEncoder):
    def encode_queries(self, texts, *, max_tokens=None):
        raise RuntimeError(f"no memory for {texts}")


def client_of(encoder=None, **settings) -> TestClient:
    return TestClient(create_app(encoder or HashingEncoder(), ServeSettings(**settings)))


def embed(client, text, model="x-query", **more):
    return client.post("/v1/embeddings", json={"model": model, "input": text}, **more)
