"""How bodies are written, and how long a request waits."""

from __future__ import annotations

import json
from threading import Event
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster, as_json
from hybridr.errors import Unreachable


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
    assert json.loads(as_json(body)) == body


def test_keys_that_are_numbers_become_text() -> None:
    assert json.loads(as_json({1: "one"})) == {"1": "one"}


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
        patient.until(stop).request("GET", "/")
    assert client.tries == 2
    assert not patient.stop.is_set(), "others are as patient as before"
