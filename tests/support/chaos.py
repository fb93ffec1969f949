"""What the chaos test is made of: a node that dies, clients that are killed, and the comparison.

Real processes of the command line. Every random choice comes from one seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.field_values import text_of
from hybridr.cluster.mappings import differing_fields
from hybridr.cluster.reading import SourceDocument, read_documents
from hybridr.cluster.writing import rejects_of
from hybridr.encoders.opening import load_encoder
from support.chaos_node import LONGEST_S, ChaosNode
from support.traffic import Corpus, Reader, Writer, some_text, without_ours
from support.waiting import wait_until

SEED_VARIABLE = "HYBRIDR_CHAOS_SEED"
REFUSED = 3  # exit code of a client that met documents which the index refuses
ANSWERED_FD = "CHAOS_ANSWERED_FD"
PLAIN = f"""
import os, sys, hybridr_cli
from hybridr.cluster.connection import Cluster
from hybridr.relevance import answering
answering.SEARCHED_QUERIES = 40  # of the calibration at the end, in which nothing can be lost
with_patience = Cluster.with_patience
def close_and_be_patient(*given):  # the cluster has answered: from now on the client waits for it
    Cluster.with_patience = with_patience
    os.close(int(os.environ["{ANSWERED_FD}"]))
    return with_patience(*given)
Cluster.with_patience = close_and_be_patient
sys.exit(hybridr_cli.main(sys.argv[1:]))
"""
WITHOUT_CATCHING_UP = (
    """
from hybridr.indexing import job, switching
from hybridr.indexing.targets import beside
beside.MAX_PASSES = 1
switching.catch_up = lambda work, **_: job.Filling()
"""
    + PLAIN
)


class Client:
    """A process of `hybridr reindex`."""

    def __init__(self, arguments: Sequence[str], code: str = "") -> None:
        environment = os.environ | {
            "HYBRIDR_REINDEX_READ_DOCUMENTS": "50",
            "HYBRIDR_REINDEX_SLOW_SEARCH_MS": "0",
            "HYBRIDR_REINDEX_PATIENCE_S": "400",
        }
        self.answered, writing_end = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", code or PLAIN, "reindex", *arguments, "--precision", "fp32", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {ANSWERED_FD: str(writing_end)},
            pass_fds=[writing_end],
        )
        os.close(writing_end)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def wait_until_at_work(self) -> None:
        """Wait until the cluster has answered it for the first time, or it has ended."""
        with os.fdopen(self.answered, "rb") as answered:
            answered.read()

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
    frozen: int = 0
    pairs: int = 0
    blocked: int = 0
    grown: list[str] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    def client(self, max_tokens: int, *options: str, code: str = "") -> Client:
        """Start a reindex; another `max_tokens` makes another destination."""
        words = [self.corpus.index, "--encoder", str(self.encoder), "--fields", "text"]
        words += ["--url", self.node.state.url, "--max-tokens", str(max_tokens)]
        words += ["--max-docs-per-second", str(self.per_second), *options]
        started = Client(words, code)
        self.clients.append(started)
        return started

    def pair(self, max_tokens: int, *options: str) -> tuple[Client, Client]:
        """Start two at once and wait until both are at work."""
        two = self.client(max_tokens, *options), self.client(max_tokens, *options)
        for client in two:
            client.wait_until_at_work()
        self.pairs += all(client.running for client in two)
        return two

    def pause(self, shortest_s: float, longest_s: float) -> None:
        """Let them work for a random while."""
        time.sleep(self.dice.uniform(shortest_s, longest_s))

    def kill(self, client: Client) -> None:
        """Kill a client if it still runs."""
        self.killed += client.running and client.kill()

    def restart_node(self) -> None:
        """Kill the node and start it again."""
        self.node.kill()
        self.node.start()

    def fill_disk(self, max_tokens: int) -> None:
        """Let the node believe that its disk is full while a client writes: it blocks all indices by itself.

        The client has to stop for it; when there is room, the node lifts its blocks and the same goes on.
        """
        slowly = ("--max-docs-per-second", "25")  # the node looks at its disk every ten seconds
        client = self.client(max_tokens, "--accept-rejects", *slowly)
        wait_until(lambda: self.written(max_tokens) > 20, LONGEST_S)
        self.watermarks("10000tb")
        try:
            code, errors = client.end()
        finally:
            self.watermarks("1mb")
        assert code == 1, f"exit {code}: {errors}"
        assert "read-only-allow-delete" in errors
        wait_until(lambda: not self.blocks(), LONGEST_S)
        self.watermarks(None)
        self.blocked += 1

    def watermarks(self, free: str | None) -> None:
        """Say how much room the node wants on its disk; None says nothing, and it does not look."""
        prefix, stages = "cluster.routing.allocation.disk", ("low", "high", "flood_stage")
        values: dict[str, Any] = {f"{prefix}.watermark.{stage}": free for stage in stages}
        values |= {
            f"{prefix}.threshold_enabled": free and True,
            "cluster.info.update.interval": free and "10s",
        }
        self.node.cluster.with_patience(60).request("PUT", "/_cluster/settings", {"transient": values})

    def blocks(self) -> bool:
        """Tell whether an index is blocked, or that new ones are made: the node lifts either by itself."""
        cluster = self.node.cluster.with_patience(60)
        found = cluster.request("GET", f"/{self.corpus.index}*/_settings").values()
        values = cluster.request("GET", "/_cluster/settings", params={"flat_settings": "true"})["persistent"]
        new = str(values.get("cluster.blocks.create_index", "false")) == "true"
        return new or any("read_only_allow_delete" in str(one["settings"]) for one in found)

    def grow(self) -> None:
        """Add a field to the source's mapping, and a document that has it."""
        cluster, name = self.node.cluster.with_patience(60), f"grown{len(self.grown)}"
        fields = {name: {"type": "keyword"}}
        cluster.request("PUT", path_of(self.corpus.index, "_mapping"), {"properties": fields})
        document = {"text": some_text(self.dice), name: "Grown Up"}
        cluster.request("PUT", path_of(self.corpus.index, "_doc", name), document)
        self.grown.append(name)

    def storm(self, max_tokens: int) -> None:
        """Fill a destination while one of two clients is killed, and the node; what is left must end well.

        In the middle of it the mapping of the source grows. Then one of two is frozen until the other ends.
        """
        one, other = self.pair(max_tokens, "--accept-rejects")
        self.pause(0.5, 6)
        self.grow()
        self.kill(one)
        self.restart_node()
        self.pause(0, 4)
        self.kill(other)
        frozen, other = self.pair(max_tokens, "--accept-rejects")
        self.pause(0.5, 4)
        with self.freezing(frozen):  # it wakes up when all is over, with what it has in hand
            assert other.result()["switched"]
        assert frozen.result()["switched"]

    @contextmanager
    def freezing(self, client: Client) -> Iterator[None]:
        """Stop a client in the middle of whatever it does, and let it go on after the block."""
        self.frozen += client.running
        with suppress(ProcessLookupError):
            client.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            client.process.send_signal(signal.SIGCONT)

    def destination(self, max_tokens: int) -> str | None:
        """Name the destination of a job, if it is there."""
        found = self.node.cluster.with_patience(60).indices(f"{self.corpus.index}-hybridr-*")
        names = [info.name for info in found if info.record.max_tokens == max_tokens]
        return names[0] if names else None

    def written(self, max_tokens: int) -> int:
        """Count what was written into the destination of a job so far."""
        if (name := self.destination(max_tokens)) is None:
            return 0
        stats = self.node.cluster.with_patience(60).request("GET", path_of(name, "_stats", "indexing"))
        return int(stats["_all"]["primaries"]["indexing"]["index_total"])

    def fill_while_written(
        self, writers: Sequence[Writer], code: str = "", *, grows: bool = False
    ) -> dict[str, Any]:
        """Fill a new destination; the writers go on far into the fill and stop long before its end.

        Where the source `grows`, its mapping does while it is read.
        """
        for max_tokens in range(50, 60):
            client = self.client(max_tokens, "--accept-rejects", code=code)
            wait_until(lambda tokens=max_tokens: self.written(tokens) > 50, LONGEST_S)
            if grows:
                self.grow()
            aim = [writer.done + 15 for writer in writers]
            wait_until(lambda aim=aim: all(w.done >= n for w, n in zip(writers, aim, strict=True)), LONGEST_S)
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
    assert differing_fields(cluster.index_info(corpus.index), cluster.index_info(done["destination"])) == ()
    for name in chaos.grown:
        assert cluster.count(done["destination"], {"term": {name: "Grown Up"}}) == 1
    texts = {doc_id: text_of(found.source, ("text",)) for doc_id, found in kept.items()}
    assert {doc_id for doc_id, text in texts.items() if text} == {
        doc_id for doc_id, found in copied.items() if "hybridr_vector" in found.source
    }
    filled = [doc_id for doc_id, text in texts.items() if text]
    max_tokens = cluster.index_info(done["destination"]).record.max_tokens
    expected = load_encoder(chaos.encoder).encode_documents([texts[i] for i in filled], max_tokens=max_tokens)
    vectors = np.array([copied[doc_id].source["hybridr_vector"] for doc_id in filled], dtype=np.float32)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    rejects = rejects_of(cluster.index_info(done["destination"]))
    assert str(rejects.file) == done["rejects_file"]
    lines = [json.loads(line) for line in rejects.file.read_text(encoding="utf-8").splitlines()]
    assert sorted(line["_id"] for line in lines) == sorted(corpus.malformed)
    assert all("failed to parse field [price]" in line["reason"] for line in lines)
