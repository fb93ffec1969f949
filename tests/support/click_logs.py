"""Logs of clicks in the form of UBI, of people who look down a list as the model says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hybridr.evaluation.click_model import Views


def asked(search: str, client: str | None, text: str, shown: Sequence[Any], **other: Any) -> dict[str, Any]:
    """A record of `ubi_queries`, as the plugin writes it."""
    told = {"query_id": search, "user_query": text, "query_response_hit_ids": list(shown)}
    return {**told, "client_id": client, "timestamp": "2026-11-02T10:00:00.000Z", **other}


def clicked(search: str, client: str | None, document: Any, **other: Any) -> dict[str, Any]:
    """A record of `ubi_events`: a click."""
    about = {"object": {"object_id": document, "object_id_field": "_id"}, "position": {"ordinal": 1}}
    event = {"query_id": search, "client_id": client, "action_name": "click", "event_attributes": about}
    return {**event, "timestamp": "2026-11-02T10:00:05.000Z", **other}


def people(
    text: str, shown: Sequence[str], relevant: Sequence[str], count: int, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield what so many people do who ask a text once each: rank r is seen by 1 in r of them.

    A relevant document that is seen is clicked by 3 of 4, any other by 1 of 14.
    """
    random = np.random.default_rng([seed, *text.encode()])
    for number in range(count):
        client = f"{text} {number}"
        yield asked(client, client, text, shown)
        for rank, document in enumerate(shown, 1):
            if random.random() < (0.75 if document in relevant else 0.07) / rank:
                yield clicked(client, client, document)


def drawn_views(
    queries: int, sessions: int, power: float, swaps: float = 0.0, seed: int = 0
) -> tuple[Views, np.ndarray, np.ndarray]:
    """Draw lists of ten whose rank r is seen by r**-power, and people's clicks; also which are relevant, and
    the true shares of those who see. `swaps` is the share of lists in which two neighbours change places."""
    random = np.random.default_rng(seed)
    relevant = random.random((queries, 10)) < np.array([0.5, 0.2, 0.12, 0.08, 0.05, 0.04, *[0.025] * 4])
    likes, errs = random.uniform(0.6, 0.9, (queries, 1)), random.uniform(0.05, 0.1, (queries, 1))
    seen = (1.0 + np.arange(10)) ** -power
    order = np.tile(np.arange(10), (queries, sessions, 1))
    first = np.where(
        random.random((queries, sessions)) < swaps, random.integers(9, size=(queries, sessions)), 10
    )
    order += (order == first[..., None]).astype(int) - (order == first[..., None] + 1)
    attracted = np.where(relevant, likes, errs)
    chance = np.take_along_axis(attracted[:, None].repeat(sessions, 1), order, axis=2) * seen
    documents = order + 10 * np.arange(queries)[:, None, None]
    keys, place = np.unique(documents * 10 + np.arange(10), return_inverse=True)
    clicks = np.bincount(place.ravel(), (random.random(chance.shape) < chance).ravel())
    shown = np.bincount(place.ravel()).astype(np.float64)
    return Views(keys // 100, keys // 10, keys % 10, shown, clicks), relevant.ravel(), seen
