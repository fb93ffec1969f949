"""Long documents with a secret in one passage, and their true scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.retrievers.dense import engine_scores
from hybridr.encoders.passages import split
from hybridr.records import Windows
from support.corpus import WORDS, create, put, text_number
from support.hashing import HashingEncoder

PASSAGES = ReindexSettings(passages=True, max_tokens=22, passage_overlap=4)
WINDOWS = Windows(22, 4, 64)
COUNT = 60


def encoder() -> HashingEncoder:
    return HashingEncoder(dim=64)


def secret(number: int) -> str:
    """Words that stand in one long text only."""
    return f"zebra s{number} s{number} s{number} s{number} comet"


def long_text(number: int) -> str:
    """Some hundred words about nothing else than this number's own, in the middle something secret."""
    dice = np.random.default_rng(number)
    words = [*dice.choice(WORDS, 60 + 7 * (number % 20)), f"n{number}"]
    return " ".join([*words[:30], secret(number), *words[30:]])


def make(cluster: Cluster, index: str, count: int = COUNT, **settings: Any) -> dict[str, str]:
    """Make an index of short, long and empty documents; give their texts."""
    properties = {"text": {"type": "text"}, "tags": {"type": "keyword"}}
    create(cluster, index, properties, {"number_of_replicas": 0, **settings})
    texts = {f"d{n}": text_number(n) if n % 3 == 0 else long_text(n) for n in range(count)} | {"empty": ""}
    put(cluster, index, {one: {"text": text, "price": 1.5, "tags": ["a"]} for one, text in texts.items()})
    return texts


def true_scores(texts: dict[str, str], query: str, model: HashingEncoder) -> dict[str, float]:
    """Give every document's best passage's score, as an engine has it, computed here."""
    vector = model.encode_queries([query])[0]
    scores = {}
    for doc_id, text in texts.items():
        parts = [text[a:b] for a, b in split(text, model, WINDOWS).spans]
        if parts:
            scores[doc_id] = float(
                engine_scores(model.similarity, model.encode_queries(parts) @ vector).max()
            )
    return scores


def stored(cluster: Cluster, index: str, doc_id: str) -> list[dict[str, Any]]:
    found = cluster.request("GET", path_of(index, "_doc", doc_id))
    return list(found["_source"].get("hybridr_vector", []))
