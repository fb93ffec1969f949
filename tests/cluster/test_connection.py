"""How bodies are written, and how long a request waits."""

from __future__ import annotations

import json
from threading import Event
from typing import Any

import pytest

from hybridr.cluster import connection
from hybridr.cluster.connection import Cluster, json_bytes
from hybridr.cluster.failures import error_from_answer
from hybridr.errors import NotFound, Unreachable


@pytest.mark.parametrize(
    "body",
    [
        {"vector": [0.1, -3e-8, 1.0], "k": 10},
        {"query": "Größe, 日本語 and 🎉, \x00 and \u2028"},
        {"query": "half of a pair \ud800"},
        {"query": {"bool": {"should": []}}, "size": 0, "none": None},
    ],
)
def test_a_body_is_read_back_as_it_was(body: dict[str, Any]) -> None:
    assert json.loads(json_bytes(body)) == body


def test_keys_that_are_numbers_become_text() -> None:
    assert json.loads(json_bytes({1: "one"})) == {"1": "one"}


class Away:
    """A client whose cluster does not answer, and that is told to stop at the second try."""

    def __init__(self, stop: Event) -> None:
        self.tries, self.stop = 0, stop

    def send(self, *given: Any) -> Any:
        self.tries += 1
        if self.tries == 2:
            self.stop.set()
        raise Unreachable("nothing answers")


def test_patience_ends_when_the_work_is_to_stop() -> None:
    stop = Event()
    client = Away(stop)
    patient = Cluster(client, "http://away", patience_s=3600)  # type: ignore[arg-type]
    with pytest.raises(Unreachable):
        patient.with_patience(patient.patience_s, stop).request("GET", "/")
    assert client.tries == 2
    assert not patient.stop.is_set(), "others are as patient as before"


SHOP = {"shop": {"settings": {"index.uuid": "u"}, "mappings": {}, "aliases": {}}}


class Recovering:
    """A node as OpenSearch 3.6.0 is until it knows its state again: no index is there, aliases are blocked.

    Seen with `gateway.recover_after_data_nodes`. It knows it after so many questions for aliases.
    """

    def __init__(self, blocked: int, held: dict[str, Any]) -> None:
        self.blocked, self.held = blocked, held
        self.asked: list[str] = []

    def send(self, method: str, path: str, *given: Any) -> Any:
        self.asked.append(f"{method} {path}")
        if path == "/_alias/hybridr":
            self.blocked -= 1
            if self.blocked >= 0:
                raise error_from_answer(503, {"type": "cluster_block_exception", "reason": "not recovered"})
            raise error_from_answer(404, "alias [hybridr] missing")
        if path == "/_all/_alias":
            return {name: {"aliases": {}} for name in SHOP}
        found = self.held if self.blocked <= 0 else {}
        if method == "HEAD":
            return bool(found)
        if not found:
            raise error_from_answer(404, {"type": "index_not_found_exception", "reason": "no index [shop]"})
        return found


def recovering(blocked: int, held: dict[str, Any], patience_s: float = 60.0) -> tuple[Recovering, Cluster]:
    client = Recovering(blocked, held)
    return client, Cluster(client, "http://shop", patience_s=patience_s)  # type: ignore[arg-type]


def test_an_index_of_a_node_that_recovers_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_WAIT_S", (0.001, 0.001))
    for blocked in (0, 1, 3):
        client, cluster = recovering(blocked, SHOP)
        assert cluster.index_info("shop").uuid == "u"
        client, cluster = recovering(blocked, SHOP)
        assert cluster.exists("shop")
    for name in ("index_info", "exists", "indices"):
        _, cluster = recovering(1, SHOP, patience_s=0.0)
        with pytest.raises(Unreachable, match="not ready yet"):
            getattr(cluster, name)("shop")


def test_what_is_missing_is_asked_for_twice_and_is_never_its_own_suggestion() -> None:
    client, cluster = recovering(0, {})
    with pytest.raises(NotFound, match="no index or alias 'shop'") as missing:
        cluster.index_info("shop")
    assert "did you mean" not in str(missing.value.hint)
    assert client.asked == ["GET /shop", "GET /_alias/hybridr", "GET /shop", "GET /_all/_alias"]
    with pytest.raises(NotFound) as missing:
        cluster.index_info("shopp")
    assert missing.value.hint == "did you mean shop?"
