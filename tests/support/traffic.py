"""What goes on beside a reindex: a source of odd documents, two writers, a reader."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hybridr import connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError, NotFound
from support.chaos_node import LONGEST_S, ChaosNode
from support.tiny import WORDS

ODD_IDS = ["a b", "ü/ö?#", "%2F", "1,2", "_under", "x" * 512, "\U0001f600"]
WRITES_A_SECOND = 50  # of each writer
WRITTEN_IDS = 600
MALFORMED = 0.01
MAY_BE_REFUSED = (409, 429)  # the other writer was at the same document, the queue was full


@dataclass
class Corpus:
    """The documents of a source: some never touched, some malformed, some of the writers."""

    index: str
    untouched: dict[str, dict[str, Any]] = field(default_factory=dict)
    malformed: set[str] = field(default_factory=set)


def some_text(dice: random.Random) -> str:
    """A text of toy words; one in fifteen is empty."""
    return "" if dice.random() < 1 / 15 else " ".join(dice.choices(WORDS, k=dice.randint(1, 60)))


def routing_of(number: int) -> str | None:
    """Route every fifth document of the writers by hand, always the same way."""
    return f"r{number % 3}" if number % 5 == 0 else None


def poison(number: int) -> str:
    """Give a text that is valid in OpenSearch and made to hurt what reads it."""
    kinds = (
        "half a pair \ud800 bala",
        "\x1b]52;c;AAAA\x07\x1b[2J \x00 \u202e bala",
        "${parameters.input} ${credential.token} {{{0}}} %s bala",
        "bala " * 100_000,
        "x" * 200_000,
        "\u0301" * 5_000 + " bala",
        "<script>alert(1)</script> `rm -rf` $(id) bala",
    )
    return kinds[number % len(kinds)]


def make_source(
    cluster: Cluster, index: str, count: int, dice: random.Random, poisoned: float = 0.0
) -> Corpus:
    """Make an index of three shards that took documents which no copy of it will take.

    A share of `poisoned` others holds texts that are made to hurt.
    """
    price = {"type": "float", "ignore_malformed": True}
    mappings = {"properties": {"text": {"type": "text"}, "price": price, "tag": {"type": "keyword"}}}
    settings = {"number_of_shards": 3, "number_of_replicas": 0}
    cluster.request("PUT", path_of(index), {"settings": settings, "mappings": mappings})
    corpus = Corpus(index)
    documents: list[tuple[str, dict[str, Any], str | None]] = []
    for number in range(count):
        doc_id = ODD_IDS[number] if number < len(ODD_IDS) else f"d{number}"
        source = {"text": some_text(dice), "price": number / 8, "tag": f"t{dice.randrange(9)}"}
        corpus.untouched[doc_id] = source
        documents.append((doc_id, source, routing_of(number) if number >= len(ODD_IDS) else None))
    for number in range(round(count * MALFORMED)):
        corpus.malformed.add(f"bad{number}")
        documents.append((f"bad{number}", {"text": some_text(dice), "price": f"dear {number}"}, None))
    for number in range(round(count * poisoned)):
        corpus.untouched[f"p{number}"] = {"text": poison(number)}
        documents.append((f"p{number}", corpus.untouched[f"p{number}"], None))
    for number in range(0, WRITTEN_IDS, 2):
        documents.append((f"w{number}", {"text": some_text(dice)}, routing_of(number)))
    dice.shuffle(documents)
    for start in range(0, len(documents), 500):
        send_bulk(cluster, index, documents[start : start + 500])
    properties = {"properties": {"price": price | {"ignore_malformed": False}}}
    cluster.request("POST", path_of(index, "_flush"))  # a node that starts would drop what it reads again
    cluster.request("PUT", path_of(index, "_mapping"), properties)
    cluster.refresh(index)
    assert cluster.count(index) == len(documents)
    return corpus


def send_bulk(cluster: Cluster, index: str, documents: Sequence[tuple[str, dict[str, Any], Any]]) -> None:
    """Index documents, again while the queue is full."""

    def send() -> None:
        lines: list[dict[str, Any]] = []
        for doc_id, source, routing in documents:
            lines += [{"index": {"_id": doc_id} | ({"routing": routing} if routing else {})}, source]
        body = "".join(json.dumps(line) + "\n" for line in lines)
        statuses = {
            i["index"]["status"] for i in cluster.request("POST", path_of(index, "_bulk"), body)["items"]
        }
        if statuses - {200, 201}:
            raise ClusterError(f"items answered {statuses}", status=429)

    cluster.patiently(send, 120)


class Loop:
    """A thread that does one thing again and again, and remembers what must not have happened."""

    node: ChaosNode
    may_be_refused: tuple[int, ...] = ()
    pause_s = 0.02

    def __init__(self) -> None:
        self.done = 0
        self.failures: list[str] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def step(self) -> None:
        """Act once, and wait a little: what a fault of the node excuses is no failure."""
        life = self.node.life
        try:
            self.act()
            self.done += 1
        except NotFound:
            self.miss()
        except ClusterError as error:
            if error.status not in self.may_be_refused and not self.node.excuses(life):
                raise
        self.stopped.wait(self.pause_s)

    def act(self) -> None:
        raise NotImplementedError

    def miss(self) -> None:
        """Take it that what was asked for is not there."""

    def stop(self) -> None:
        """Stop after the step under way."""
        self.stopped.set()
        self.thread.join(timeout=LONGEST_S)
        assert not self.thread.is_alive()

    def _run(self) -> None:
        while not self.stopped.is_set():
            try:
                self.step()
            except Exception as error:  # whatever it is, the test must see it
                self.failures.append(repr(error))


class Writer(Loop):
    """Inserts, updates, deletes and makes again documents of a fixed set of ids."""

    may_be_refused = MAY_BE_REFUSED
    pause_s = 1 / WRITES_A_SECOND

    def __init__(self, node: ChaosNode, index: str, seed: int) -> None:
        self.node, self.index, self.dice = node, index, random.Random(seed)
        self.cluster = connect(node.state.url)
        super().__init__()

    def act(self) -> None:
        """Do one random thing to one random document."""
        number = self.dice.randrange(WRITTEN_IDS)
        routing = routing_of(number)
        params = {"routing": routing} if routing else {}
        document = {"text": some_text(self.dice), "price": self.dice.random()}
        kind = self.dice.random()
        if kind < 0.35:
            self.cluster.request("DELETE", path_of(self.index, "_doc", f"w{number}"), params=params)
        elif kind < 0.55:
            path = path_of(self.index, "_update", f"w{number}")
            self.cluster.request("POST", path, {"doc": {"price": self.dice.random()}}, params)
        else:
            self.cluster.request("PUT", path_of(self.index, "_doc", f"w{number}"), document, params)


class Reader(Loop):
    """Asks the alias for every document that nobody touches; none may ever be missing."""

    def __init__(self, node: ChaosNode, alias: str, documents: dict[str, dict[str, Any]], seed: int) -> None:
        self.node, self.alias, self.documents, self.dice = node, alias, documents, random.Random(seed)
        self.cluster = connect(node.state.url)
        self.ids = list(documents)
        self.indices: list[str] = []
        super().__init__()

    def miss(self) -> None:
        assert not self.indices, "the alias was gone"

    def act(self) -> None:
        """Count all of them, and compare a few."""
        query = {"ids": {"values": self.ids}}
        total = self.ask({"size": 0, "track_total_hits": True, "query": query})["total"]["value"]
        chosen = self.dice.sample(self.ids, 5)
        hits = self.ask({"size": 5, "query": {"ids": {"values": chosen}}})["hits"]
        index = hits[0]["_index"] if hits else "nothing"
        assert total == len(self.ids), f"{total} of {len(self.ids)} in {index}"
        assert {hit["_id"] for hit in hits} == set(chosen)
        for hit in hits:
            assert without_ours(hit["_source"]) == self.documents[hit["_id"]]
        if index not in self.indices[-1:]:
            self.indices.append(index)

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """Search the alias; part of an answer is none."""
        params = {"allow_partial_search_results": "false"}
        hits: dict[str, Any] = self.cluster.search(self.alias, body, params)["hits"]
        return hits


def without_ours(source: dict[str, Any]) -> dict[str, Any]:
    """Leave hybridr's own fields out."""
    return {name: value for name, value in source.items() if not name.startswith("hybridr_")}
