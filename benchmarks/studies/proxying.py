"""What does a search through `hybridr serve --proxy` cost beside the rewritten body sent by hand?

    python benchmarks/run.py proxying FOLDER --index NAME [--texts 160] [--json FILE]

FOLDER is a collection in BEIR layout, NAME its index with vectors on an embedded node. Queries are asked in
blocks of 20, one client, the kinds of requests in turns: a text that the server sees for the first time; the
bodies that it sent for these, by hand; those bodies through the server, which passes them on unread (the
price of a second hop of HTTP); the texts once more; and their words in another order, through the server and
by hand. Told are milliseconds of the processor of node and server together for a request, medians over the
blocks, the ratio of each block to the same bodies by hand, and the median wait of the client. Encoding is
left out: the vectors of all texts lie in the server's cache. Threads that compile Java are left out, too. All
kinds must give the same hits and scores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import orjson
import urllib3

from hybridr import connect
from hybridr.cluster.record import IndexInfo
from hybridr.files.formats import read_jsonl
from hybridr_bench.spending import node_of
from study import Section, machine_record, own_process, write_result

BLOCK, WARM, SEED = 20, 60, 7
WARM_S = 20.0  # a new server looks up what is near the words of its table
UNREAD = {"Authorization": "AWS4-HMAC-SHA256 of another body"}
"""A request that is signed is passed on without being read."""
CPU_OF_PROCESS = 2
"""Which clock of another process: the time that its threads ran, in nanoseconds (Linux)."""


def serve(url: str, index: str) -> None:
    """Run the server with the texts of standard input; `/sent` tells the bodies that went to the node."""
    from hybridr.cluster.destinations import resolve
    from hybridr.cluster.relay import Relay
    from hybridr.search.checks import encoder_for
    from hybridr.serving.application import Server, create_app, listen
    from hybridr.serving.embeddings import encode_for
    from hybridr.serving.requests import json_response
    from hybridr.serving.settings import ServeSettings

    sent: list[bytes] = []
    send = Relay.send

    def remembering(relay: Relay, request: Any) -> Any:
        sent.append(request.body)
        return send(relay, request)

    Relay.send = remembering  # type: ignore[method-assign]
    cluster = connect(url)
    encoder, texts = encoder_for(resolve(cluster, index), None), json.load(sys.stdin)
    settings = ServeSettings(index=index, proxy="lexical", rank_timeout_s=10.0)
    app = create_app(encoder, settings, cluster=cluster)
    for text, embedding in zip(texts, encode_for(encoder, "reading", texts), strict=True):
        app.state.embedder.cache.put("reading", text, embedding)

    @app.get("/sent")
    async def told() -> Any:
        bodies = [body.decode() for body in sent]
        sent.clear()
        return json_response(bodies)

    server = Server(app, listen("127.0.0.1", 0), settings)
    print(server.url, flush=True)
    server.run("info")


class Spent(NamedTuple):
    """What a request of one kind took in one block: milliseconds of processors, and those of each wait."""

    node: float
    server: float
    waits: list[float]

    @property
    def both(self) -> float:
        """Add the processors of node and server."""
        return self.node + self.server


def compilers_ms(pid: int) -> float:
    """Tell how long the threads of a process ran that compile Java, which ends when all is compiled."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    compilers = [task for task in tasks if "Compiler" in (task / "comm").read_text()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in compilers) / 1e6


class Asker:
    """Asks node and server, and reads the clocks of their processors."""

    def __init__(self, url: str, index: IndexInfo, server_url: str, pids: tuple[int, int]) -> None:
        self.pool, self.url, self.server_url = urllib3.PoolManager(), url, server_url
        self.path, self.pids = f"/{index.name}/_search", pids

    def clocks(self) -> list[float]:
        """Read the clocks of the processors of node and server, in milliseconds."""
        return [
            1000 * time.clock_gettime(~pid << 3 | CPU_OF_PROCESS) - compilers_ms(pid) for pid in self.pids
        ]

    def ask(self, url: str, body: bytes, headers: dict[str, str]) -> Any:
        """Ask for hits: their ids and scores."""
        headers = {"Content-Type": "application/json", **headers}
        answer = self.pool.request("POST", url + self.path, body=body, headers=headers)
        assert answer.status == 200, answer.data[:500]
        return answer.data

    def block(
        self, url: str, bodies: Sequence[bytes], headers: dict[str, str] | None = None
    ) -> tuple[Spent, list[Any]]:
        """Ask for one block; give what it took, and its hits."""
        waits, answers, before = [], [], self.clocks()
        for body in bodies:
            began = time.perf_counter()
            answers.append(self.ask(url, body, headers or {}))
            waits.append(1000 * (time.perf_counter() - began))
        node, server = ((now - then) / len(bodies) for then, now in zip(before, self.clocks(), strict=True))
        found = [orjson.loads(answer)["hits"]["hits"] for answer in answers]
        return Spent(node, server, waits), [[(hit["_id"], hit["_score"]) for hit in hits] for hits in found]

    def sent(self) -> list[bytes]:
        """Ask which bodies the server has sent to the node since the last time."""
        bodies = orjson.loads(self.pool.request("GET", f"{self.server_url}/sent").data)
        return [body.encode() for body in bodies]


def ask_block(asker: Asker, texts: Sequence[str], fields: Sequence[str]) -> dict[str, Spent]:
    """Ask for a block of texts in all ways, and compare their hits."""
    client = bodies_of(texts, fields)
    spent = {}
    spent["new text"], new = asker.block(asker.server_url, client)
    bodies = asker.sent()
    spent["by hand"], by_hand = asker.block(asker.url, bodies)
    spent["passed on unread"], unread = asker.block(asker.server_url, bodies, UNREAD)
    spent["seen before"], seen = asker.block(asker.server_url, client)
    asker.sent()
    spent["known words"], known = asker.block(asker.server_url, bodies_of(mixed(texts), fields))
    spent["by hand, of known words"], known_by_hand = asker.block(asker.url, asker.sent())
    assert new == by_hand == unread == seen, "other hits"
    assert known == known_by_hand, "other hits"
    assert all(b'"rescore"' in body for body in bodies), "not ranked"
    return spent


def bodies_of(texts: Sequence[str], fields: Sequence[str]) -> list[bytes]:
    """Write a client's search for each text."""
    queries = ({"multi_match": {"query": text, "fields": fields}} for text in texts)
    return [orjson.dumps({"query": query, "_source": False}) for query in queries]


def mixed(texts: Sequence[str]) -> list[str]:
    """Put the words of each text in another order."""
    chance = random.Random(SEED)
    return [" ".join(chance.sample(words, len(words))) for words in map(str.split, texts)]


def texts_of(folder: Path, number: int) -> list[str]:
    """Read texts of queries, with those that warm up first."""
    texts = sorted({record["text"] for _, record in read_jsonl(folder / "queries.jsonl")})
    return random.Random(SEED).sample(texts, min(len(texts), number + WARM))


def measure_proxy(url: str, index: str, folder: Path, number: int) -> dict[str, Any]:
    """Ask a server of its own; give the figures."""
    cluster = connect(url)
    node, info = node_of(cluster), cluster.index_info(index)
    assert node is not None, "the node is not an embedded one"
    texts = texts_of(folder, number)
    blocks = [texts[start : start + BLOCK] for start in range(0, len(texts), BLOCK)]
    every = [*texts, *(text for block in blocks for text in mixed(block))]
    command = own_process("proxying", str(folder), "--index", index, "--url", url, "--serve")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(command, **pipes, text=True)  # type: ignore[call-overload]
    try:
        assert server.stdin
        assert server.stdout
        json.dump(every, server.stdin)
        server.stdin.close()
        asker = Asker(url, info, server.stdout.readline().strip(), (node.pid, server.pid))
        time.sleep(WARM_S)
        load = os.getloadavg()[0]
        fields = info.record.lexical_fields or info.record.fields
        spent = [ask_block(asker, block, fields) for block in blocks]
        return figures(spent[WARM // BLOCK :], load)
    finally:
        server.kill()
        server.wait(30)


def figures(blocks: Sequence[dict[str, Spent]], load: float) -> dict[str, Any]:
    """Give medians over blocks, and of the ratio of each block to the same bodies by hand."""
    kinds = {}
    for kind in blocks[0]:
        hand = "by hand, of known words" if "known words" in kind else "by hand"
        ratios = [block[kind].both / block[hand].both for block in blocks]
        kinds[kind] = {
            "node_ms": round(median(block[kind].node for block in blocks), 2),
            "server_ms": round(median(block[kind].server for block in blocks), 2),
            "times": round(median(ratios), 2),
            "least": round(min(ratios), 2),
            "most": round(max(ratios), 2),
            "times_of_sums": round(
                sum(block[kind].both for block in blocks) / sum(block[hand].both for block in blocks), 2
            ),
            "wait_ms": round(median(wait for block in blocks for wait in block[kind].waits), 1),
        }
    return {"texts": BLOCK * len(blocks), "load": [load, os.getloadavg()[0]], "kinds": kinds}


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collection, the index with its vectors, and how many texts."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a collection in BEIR layout")
    parser.add_argument("--index", required=True)
    parser.add_argument("--url", default="", help="of an embedded node (default: the running one)")
    parser.add_argument("--texts", type=int, default=160)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)


def measure(given: argparse.Namespace) -> None:
    """Measure and print; or be the server."""
    url = given.url or connect().url
    if given.serve:
        return serve(url, given.index)
    found = {**measure_proxy(url, given.index, given.folder, given.texts), "machine": machine_record()}
    print(json.dumps(found, indent=2))
    if given.json:
        write_result(given.json, found)


SECTIONS: list[Section] = []
