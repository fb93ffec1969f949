"""What the chaos test is made of: a node that dies, clients that are killed, two writers, a reader.

A real node with a write queue of two, and real processes of the command line. Every random choice comes from
one seed.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from hybridr.cluster.connection import Cluster, connect, path_of
from hybridr.cluster.reading import SourceDocument, read_documents, text_of
from hybridr.cluster.writing import rejects_of
from hybridr.encoding.opening import load_encoder
from hybridr.errors import ClusterError, NotFound
from hybridr.node import process
from hybridr.node.settings import NodeSettings
from tiny import WORDS

SEED_VARIABLE = "HYBRIDR_CHAOS_SEED"
NODE = "chaos"
SMALL = {"thread_pool.write.size": 1, "thread_pool.write.queue_size": 2}
ODD_IDS = ["a b", "ü/ö?#", "%2F", "1,2", "_under", "x" * 512, "\U0001f600"]
WRITES_A_SECOND = 50  # of each writer
WRITTEN_IDS = 600
MALFORMED = 0.01
LONGEST_S = 400.0  # the machine may be busy
MAY_BE_REFUSED = (409, 429)  # the other writer was at the same document, the queue was full
REFUSED = 3  # exit code of a client that met documents which the index refuses
PLAIN = "import sys, hybridr_cli; sys.exit(hybridr_cli.main(sys.argv[1:]))"
WITHOUT_CATCHING_UP = (
    """
from hybridr.reindexing import job, switching
from hybridr.reindexing.targets import beside
beside.MAX_PASSES = 1
switching.catch_up = lambda work, **_: job.Filling()
"""
    + PLAIN
)


def await_(condition: Callable[[], Any], what: str, timeout_s: float = LONGEST_S) -> Any:
    """Wait until a condition holds and give its value."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.05)
    return found


class ChaosNode:
    """A node that takes few writes at once, and can be killed and started again."""

    def __init__(self) -> None:
        self.kills = 0
        self.too_busy = 0
        self.up = threading.Event()
        self.start()

    def start(self) -> None:
        """Start it on the data it has, at the port it had, and wait until every shard is there."""
        original = process.node_values
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(process, "node_values", lambda *given: original(*given) | SMALL)
            self.state = process.start(NodeSettings(name=NODE))
        self.cluster = connect(self.state.url)
        query = "?wait_for_status=yellow&wait_for_no_initializing_shards=true&timeout=60s"
        self.cluster.patient(60).request("GET", "/_cluster/health" + query)
        self.up.set()

    def kill(self) -> None:
        """Kill it as a crash would."""
        self.count_refusals()
        self.up.clear()
        self.kills += 1
        victim = psutil.Process(self.state.pid)
        victim.kill()
        psutil.wait_procs([victim], timeout=30)

    def count_refusals(self) -> None:
        """Add up the writes that found the queue full (429) since the last start."""
        found = self.cluster.request("GET", "/_nodes/stats/thread_pool")["nodes"].values()
        self.too_busy += sum(each["thread_pool"]["write"]["rejected"] for each in found)

    @property
    def life(self) -> int | None:
        """Tell lives apart: the kills before this one, None while it is down."""
        return self.kills if self.up.is_set() else None

    def excuses(self, life: int | None) -> bool:
        """Tell whether a request that began in this life may have failed: it was none, or has ended."""
        return life is None or self.life != life


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


def make_source(cluster: Cluster, index: str, count: int, dice: random.Random) -> Corpus:
    """Make an index of three shards that took documents which no copy of it will take."""
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

    def __init__(self) -> None:
        self.done = 0
        self.failures: list[str] = []
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def step(self) -> None:
        raise NotImplementedError

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

    def __init__(self, node: ChaosNode, index: str, seed: int) -> None:
        self.node, self.index, self.dice = node, index, random.Random(seed)
        self.cluster = connect(node.state.url)
        super().__init__()

    def step(self) -> None:
        life = self.node.life
        try:
            self.write()
            self.done += 1
        except NotFound:
            pass
        except ClusterError as error:
            if error.status not in MAY_BE_REFUSED and not self.node.excuses(life):
                raise
        self.stopped.wait(1 / WRITES_A_SECOND)

    def write(self) -> None:
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

    def step(self) -> None:
        life = self.node.life
        try:
            self.look()
            self.done += 1
        except NotFound:
            assert not self.indices, "the alias was gone"
        except ClusterError:
            if not self.node.excuses(life):
                raise
        self.stopped.wait(0.02)

    def look(self) -> None:
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


class Client:
    """A process of `hybridr reindex`."""

    def __init__(self, arguments: Sequence[str], code: str = "") -> None:
        run = ["-c", code] if code else ["-m", "hybridr_cli"]
        environment = os.environ | {
            "HYBRIDR_REINDEX_READ_DOCUMENTS": "50",
            "HYBRIDR_REINDEX_SLOW_SEARCH_MS": "0",
        }
        self.process = subprocess.Popen(
            [sys.executable, *run, "reindex", *arguments, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def is_connected(self, port: int) -> bool:
        """Tell whether it has a connection to the node, or has ended."""
        try:
            found = psutil.Process(self.process.pid).net_connections()
        except psutil.Error:
            return True
        return not self.running or any(each.raddr and each.raddr.port == port for each in found)

    def kill(self) -> bool:
        """Kill it; tell whether that was what ended it."""
        self.process.kill()
        self.process.communicate()
        return self.process.returncode < 0

    def end(self) -> tuple[int, str]:
        """Wait until it ends by itself; give its exit code and what it said."""
        said, errors = self.process.communicate(timeout=LONGEST_S)
        self.said = said
        return self.process.returncode, errors

    def result(self) -> dict[str, Any]:
        """Wait for the end of a client that met refused documents, and nothing worse."""
        code, errors = self.end()
        assert code == REFUSED, f"exit {code}: {errors}"
        done: dict[str, Any] = json.loads(self.said)
        return done


@dataclass
class Chaos:
    """One source under fire: who works on it, and what has been done to them."""

    node: ChaosNode
    corpus: Corpus
    encoder: Path
    dice: random.Random
    per_second: int = 500
    killed: int = 0
    pairs: int = 0
    blocked: int = 0
    clients: list[Client] = field(default_factory=list)

    def client(self, max_tokens: int, *options: str, code: str = "") -> Client:
        """Start a reindex; another `max_tokens` makes another destination."""
        started = Client(
            [
                self.corpus.index,
                "--encoder",
                str(self.encoder),
                "--fields",
                "text",
                "--url",
                self.node.state.url,
                "--max-tokens",
                str(max_tokens),
                "--max-docs-per-second",
                str(self.per_second),
                "--patience",
                "400",
                *options,
            ],
            code,
        )
        self.clients.append(started)
        return started

    def pair(self, max_tokens: int, *options: str) -> tuple[Client, Client]:
        """Start two at once and wait until both are at work."""
        two = self.client(max_tokens, *options), self.client(max_tokens, *options)
        for client in two:
            await_(lambda client=client: client.is_connected(self.node.state.port), "a connection")
        self.pairs += all(client.running for client in two)
        return two

    def pause(self, shortest_s: float, longest_s: float) -> None:
        """Let them work for a random while."""
        time.sleep(self.dice.uniform(shortest_s, longest_s))

    def kill(self, client: Client) -> None:
        """Kill a client if it still runs."""
        self.killed += client.running and client.kill()

    def kill_one_more(self, max_tokens: int, *options: str) -> None:
        """Start clients until one is killed before it ends."""
        before = self.killed
        for _ in range(20):
            client = self.client(max_tokens, *options)
            self.pause(0.8, 5)
            self.kill(client)
            if self.killed > before:
                return
            client.result()
        raise AssertionError("every client ended before it could be killed")

    def restart_node(self) -> None:
        """Kill the node and start it again."""
        self.node.kill()
        self.node.start()

    def flood(self, max_tokens: int) -> None:
        """Block a destination as a full disk does, until a client stops for it; then lift the block."""
        for _ in range(20):
            client = self.client(max_tokens)
            destination = await_(lambda: self.destination(max_tokens), "the destination")
            await_(lambda client=client: client.is_connected(self.node.state.port), "a connection")
            self.pause(0, 2)
            block = {"index": {"blocks.read_only_allow_delete": True}}
            self.node.cluster.patient(60).request("PUT", path_of(destination, "_settings"), block)
            code, errors = client.end()
            lift = {"index": {"blocks.read_only_allow_delete": None}}
            self.node.cluster.patient(60).request("PUT", path_of(destination, "_settings"), lift)
            if code == REFUSED:
                continue  # it was done already
            assert code == 1, f"exit {code}: {errors}"
            assert "read-only-allow-delete" in errors
            self.blocked += 1
            return
        raise AssertionError("every client ended before the block")

    def destination(self, max_tokens: int) -> str | None:
        """Name the destination of a job, if it is there."""
        found = self.node.cluster.patient(60).indices(f"{self.corpus.index}-hybridr-*")
        names = [info.name for info in found if info.record.max_tokens == max_tokens]
        return names[0] if names else None

    def written(self, max_tokens: int) -> int:
        """Count what was written into the destination of a job so far."""
        if (name := self.destination(max_tokens)) is None:
            return 0
        stats = self.node.cluster.patient(60).request("GET", path_of(name, "_stats", "indexing"))
        return int(stats["_all"]["primaries"]["indexing"]["index_total"])

    def fill_while_written(self, writers: Sequence[Writer], code: str = "") -> dict[str, Any]:
        """Fill a new destination; the writers go on far into the fill and stop long before its end."""
        for max_tokens in range(50, 60):
            client = self.client(max_tokens, "--accept-rejects", code=code)
            await_(lambda tokens=max_tokens: self.written(tokens) > 50, "the first documents")
            aim = [writer.done + 15 for writer in writers]
            await_(lambda aim=aim: all(w.done >= n for w, n in zip(writers, aim, strict=True)), "writes")
            if client.running:
                break
            client.result()
        for writer in writers:
            writer.stop()
        assert client.running, "it must find by itself what was written since it began"
        return client.result()


@contextmanager
def at_work(chaos: Chaos) -> Iterator[tuple[Reader, list[Writer]]]:
    """Let two writers and a reader work; at the end nothing may have gone wrong for them."""
    index, seed = chaos.corpus.index, chaos.dice.randrange(2**31)
    reader = Reader(chaos.node, f"{index}-hybridr", chaos.corpus.untouched, seed)
    writers = [Writer(chaos.node, index, seed + number) for number in (1, 2)]
    try:
        yield reader, writers
    finally:
        for loop in (*writers, reader):
            loop.stop()
        for client in chaos.clients:
            client.process.kill()
    for loop in (*writers, reader):
        assert not loop.failures, f"{type(loop).__name__}: {loop.failures}"


def documents_of(cluster: Cluster, index: str) -> dict[str, SourceDocument]:
    """Read a whole index by id; no id may be there twice."""
    cluster.refresh(index)
    found = list(read_documents(cluster, index))
    assert len({document.doc_id for document in found}) == len(found)
    return {document.doc_id: document for document in found}


def assert_equal(chaos: Chaos, done: dict[str, Any]) -> None:
    """Compare every id, routing, source and vector of source and destination, and the rejects file."""
    cluster, corpus = chaos.node.cluster, chaos.corpus
    there, copied = documents_of(cluster, corpus.index), documents_of(cluster, done["destination"])
    kept = {doc_id: found for doc_id, found in there.items() if doc_id not in corpus.malformed}
    assert len(kept) == len(there) - len(corpus.malformed)
    assert copied.keys() == kept.keys()
    for doc_id, found in kept.items():
        assert (without_ours(copied[doc_id].source), copied[doc_id].routing) == (found.source, found.routing)
    texts = {doc_id: text_of(found.source, ("text",)) for doc_id, found in kept.items()}
    assert {doc_id for doc_id, text in texts.items() if text} == {
        doc_id for doc_id, found in copied.items() if "hybridr_vector" in found.source
    }
    filled = [doc_id for doc_id, text in texts.items() if text]
    max_tokens = cluster.index_info(done["destination"]).record.max_tokens
    expected = load_encoder(chaos.encoder).encode_documents([texts[i] for i in filled], max_tokens=max_tokens)
    vectors = np.array([copied[doc_id].source["hybridr_vector"] for doc_id in filled], dtype=np.float32)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    rejects = rejects_of(done["destination"])
    assert str(rejects.file) == done["rejects_file"]
    lines = [json.loads(line) for line in rejects.file.read_text(encoding="utf-8").splitlines()]
    assert sorted(line["_id"] for line in lines) == sorted(corpus.malformed)
    assert all("failed to parse field [price]" in line["reason"] for line in lines)
