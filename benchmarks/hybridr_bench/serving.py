"""`hybridr serve` against the encoder alone, in turns: passages by 32, and queries one by one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from hybridr.encoders.contract import Encoder, Vectors
from hybridr.encoders.opening import load_encoder
from hybridr.records import Progress, silent

from .asking import Lane, ratio, time_requests
from .corpora import spread_queries, spread_records
from .reindexing import serving
from .searching import Sender

CLIENTS = 16


@dataclass(frozen=True)
class Load:
    """Texts of one side: `size` a request, by `clients` at once; alone, `size_alone` a call."""

    side: str
    texts: Sequence[str]
    encode: Callable[[Sequence[str]], Vectors]
    size: int
    clients: int
    size_alone: int

    def turn(self, number: int) -> list[str]:
        """Give texts that no other turn has, so that the server's cache holds none of them."""
        return [f"{text} {number}" for text in self.texts]


def loads_of(encoder: Encoder, beir: Path, passages: int, queries: int) -> tuple[Load, Load]:
    """Take passages and queries of a BEIR folder; alone, a call has as many queries as there are clients."""
    documents = [f"{one.get('title', '')} {one['text']}".strip() for one in spread_records(beir, passages)]
    return (
        Load("passage", documents, encoder.encode_documents, 32, 2, 32),
        Load("query", spread_queries(beir, queries), encoder.encode_queries, 1, CLIENTS, CLIENTS),
    )


def race_serving(
    folder: Path,
    beir: Path,
    *,
    passages: int = 640,
    queries: int = 1000,
    rounds: int = 5,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Compare texts per second of the server with those of the encoder in `folder`, each on all cores.

    Passages go in requests of 32 by two clients, and alone in calls of 32. Queries go one a request by 16
    clients, and alone in calls of 16: more cannot wait together. A first turn, not counted, warms both up.
    """
    loads = loads_of(load_encoder(folder), beir, passages, queries)
    load_before = os.getloadavg()[0]
    served: list[Lane] = []
    shares: list[dict[str, Any]] = []
    with serving(folder) as url:
        sender = Sender(url, max(load.clients for load in loads))
        for load in loads:
            lane, alone_s = race_load(load, sender, rounds, progress)
            served.append(lane)
            shares.append(share_of(load, lane, alone_s))
    return {
        "settings": {"rounds": rounds},
        "load": [round(load_before, 2), round(os.getloadavg()[0], 2)],
        "shares": shares,
        "lanes": [lane.record(load.clients) for lane, load in zip(served, loads, strict=True)],
    }


def share_of(load: Load, lane: Lane, alone_s: Sequence[float]) -> dict[str, Any]:
    """Give texts per second of both, and the server's share of the encoder's speed."""
    served_s = [turn.seconds for turn in lane.turns[load.clients]]
    texts = len(alone_s) * len(load.texts)
    return {
        "side": load.side,
        "texts": len(load.texts),
        "in_a_request": load.size,
        "served_per_second": round(texts / sum(served_s), 2),
        "alone_per_second": round(texts / sum(alone_s), 2),
        "share": ratio(alone_s, served_s),
    }


def race_load(load: Load, sender: Sender, rounds: int, progress: Progress) -> tuple[Lane, list[float]]:
    """Time server and encoder in turns; give the lane of the server and the seconds of the encoder."""
    bodies: list[bytes] = []
    lane = Lane(
        f"{load.side}, {load.size} a request", lambda number: sender.send(("/v1/embeddings", bodies[number]))
    )
    lane.turns[load.clients], alone_s = [], []
    for turn in range(rounds + 1):
        texts = load.turn(turn)
        bodies[:] = [
            orjson.dumps({"model": f"hybridr-{load.side}", "input": part, "encoding_format": "base64"})
            for part in pieces(texts, load.size)
        ]
        timing = time_requests(lane.ask, len(bodies), load.clients)
        began = time.perf_counter()
        for part in pieces(texts, load.size_alone):
            load.encode(part)
        seconds = time.perf_counter() - began
        if turn:
            lane.turns[load.clients].append(timing)
            alone_s.append(seconds)
        progress(load.side, turn, rounds)
    return lane, alone_s


def pieces(texts: Sequence[str], size: int) -> list[Sequence[str]]:
    """Cut a list into parts of `size`."""
    return [texts[start : start + size] for start in range(0, len(texts), size)]
