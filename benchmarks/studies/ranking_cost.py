"""What does the transparent way take over the same body sent by hand, and where is it spent?

    hybridr node start --name ways --with-ml --heap 2g
    python benchmarks/run.py ranking-cost NAME QUERIES.jsonl [--url URL] [--server URL]

NAME has vectors and is not deployed; the file holds queries in BEIR layout, of which the first are asked.
They are timed in turns by one client and by eight: the client's body under `--way transparent`, the body
that the server makes of it sent by hand, and, through the same pipeline, a server that knows the answers
beforehand. What the last takes more than by hand is ml-commons' own; an answer that changes nothing, beside
the client's body by hand, tells what of it hangs on the size. No encoding is in any figure: the server has
seen every query. `--server` is one that runs already, as for vectors that were made up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import urllib3

from hybridr import Search, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.deploying.deploying import deploy, pipeline_body, undeploy
from hybridr.deploying.remote_models import (
    create_model,
    delete_model,
    missing_settings,
    ranking_connector,
)
from hybridr.deploying.settings import DeploySettings
from hybridr.search.encoders import encoder_for
from hybridr.search.settings import SearchSettings
from hybridr_bench.asking import Lane, Times, difference, ratio, take_turns
from hybridr_bench.reindexing import having_set, serving
from hybridr_bench.searching import Request, Sender, sending
from study import Record, Section, add_json, machine_record, table, write_result

DEPLOYED, BY_HAND, KNOWN = "transparent", "by hand", "answers known"
UNCHANGED, PLAIN = "answers unchanged", "plain, by hand"
HEAD_END, LENGTH = b"\r\n\r\n", b"content-length:"
PATIENCE_S = 60.0


def options(parser: argparse.ArgumentParser) -> None:
    """Take the index, the queries and the server."""
    parser.add_argument("index", metavar="NAME")
    parser.add_argument("queries", type=Path, metavar="FILE")
    parser.add_argument("--url", help="cluster (default: HYBRIDR_URL, else the embedded node)")
    parser.add_argument("--server", help="a `hybridr serve --index NAME` that runs")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--requests", type=int, default=100, help="in a round, of as many queries")
    add_json(parser, "ranking-cost")


def measure(given: argparse.Namespace) -> None:
    """Time all lanes and write what they took."""
    cluster = connect(given.url)
    search = Search(cluster, given.index, mode="lexical")
    lines = given.queries.read_text(encoding="utf-8").splitlines()[: given.requests]
    fields = {"type": "most_fields", "fields": list(search.lexical_fields)}
    bodies = [
        orjson.dumps(
            {"query": {"multi_match": {"query": json.loads(one)["text"], **fields}}, "_source": False}
        )
        for one in lines
    ]
    load, times = os.getloadavg()[0], Times(given.requests, given.rounds, warm_up=8)
    with server_of(given, cluster, search) as server:
        answers = answers_of(server, bodies)
        lanes = timed(cluster, search.info.name, server, bodies, answers, times)
    shown = {
        name: {str(many): lane.record(many)["p50_ms"] for many in times.clients}
        for name, lane in lanes.items()
    }
    found = {
        "documents": cluster.count(search.info.name),
        "bytes": sum(map(len, answers)) // len(answers),
        "p50_ms": shown,
        "more": {str(many): compared(lanes, many) for many in times.clients},
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "machine": machine_record(),
    }
    write_result(given.json, found)
    print(render(found), flush=True)


@contextmanager
def server_of(given: argparse.Namespace, cluster: Cluster, search: Search) -> Iterator[str]:
    """Give the address of a server of the index."""
    if given.server:
        yield given.server
        return
    encoder: Any = encoder_for(cluster, search.info, None)
    with serving(encoder.folder, cluster.url, given.index, rank_timeout_s=PATIENCE_S) as url:
        yield url


def answers_of(server: str, bodies: Sequence[bytes]) -> list[bytes]:
    """Ask the server what becomes of each body, which it has seen then."""
    return [
        urllib3.request("POST", f"{server}/v1/rank", body=body, timeout=PATIENCE_S).data for body in bodies
    ]


def timed(
    cluster: Cluster,
    index: str,
    server: str,
    bodies: Sequence[bytes],
    answers: Sequence[bytes],
    times: Times,
) -> dict[str, Lane]:
    """Time every lane, in turns."""
    unchanged = [orjson.dumps({"body": body.decode()}) for body in bodies]
    deployment = DeploySettings(way="transparent", server=server, set_cluster_settings=True, recall="all")
    with echo(dict(zip(bodies, zip(answers, unchanged, strict=True), strict=True))) as known:
        deploy(cluster, index, deployment, SearchSettings())
        try:
            with (
                having_set(cluster, missing_settings(cluster, known)),
                pipeline(cluster, index, f"{known}/0") as first,
                pipeline(cluster, index, f"{known}/1") as second,
            ):
                lanes = lanes_of(cluster.url, index, bodies, answers, (first, second), max(times.clients))
                take_turns(lanes, times)
        finally:
            undeploy(cluster, index)
    return {lane.name: lane for lane in lanes}


def lanes_of(
    url: str,
    index: str,
    bodies: Sequence[bytes],
    answers: Sequence[bytes],
    pipelines: tuple[str, str],
    clients: int,
) -> list[Lane]:
    """Make the lanes: what is sent, and through which pipeline."""
    path, sender = path_of(index, "_search"), Sender(url, clients)
    written = [orjson.loads(one)["body"].replace("\\u0024", "$").encode() for one in answers]

    def through(name: str, sent: Sequence[bytes]) -> list[Request]:
        return [(f"{path}?search_pipeline={name}" if name else path, body) for body in sent]

    sent = {
        DEPLOYED: through("", bodies),
        BY_HAND: through("_none", written),
        KNOWN: through(pipelines[0], bodies),
        UNCHANGED: through(pipelines[1], bodies),
        PLAIN: through("_none", bodies),
    }
    return [sending(name, sender, requests) for name, requests in sent.items()]


@contextmanager
def pipeline(cluster: Cluster, index: str, address: str) -> Iterator[str]:
    """Store a pipeline as `deploy` makes it that asks an address; give its name."""
    name = f"ranking-cost-{address[-1]}"
    connector = ranking_connector(name, address, cluster.index_info(index).uuid)
    connector["actions"][0]["url"] = address
    model = create_model(cluster, connector)
    settings = SearchSettings(fusion="absolute")
    body = pipeline_body(cluster.index_info(index), "transparent", settings, cluster.version, model.model_id)
    try:
        cluster.request("PUT", path_of("_search", "pipeline", name), body)
        yield name
        cluster.request("DELETE", path_of("_search", "pipeline", name))
    finally:
        delete_model(cluster, model)


@contextmanager
def echo(answers: dict[bytes, tuple[bytes, bytes]]) -> Iterator[str]:
    """Run a server that knows its answers, of two kinds, in a process of its own; give its address."""
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    by_text = {text_of(body): both for body, both in answers.items()}
    process = context.Process(target=answer_all, args=(by_text, tell), daemon=True)
    process.start()
    yield f"http://127.0.0.1:{told.recv()}"
    process.terminate()
    process.join()


def text_of(body: bytes) -> str:
    """Read the text that a body looks for, however OpenSearch writes the rest of it."""
    return str(orjson.loads(body)["query"]["multi_match"]["query"])


def answer_all(answers: dict[str, tuple[bytes, bytes]], tell: Any) -> None:
    """Answer over kept connections, without a framework."""

    class Known(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            self.transport, self.read = transport, b""

        def data_received(self, data: bytes) -> None:
            self.read += data
            head, _, body = self.read.partition(HEAD_END)
            length = int(head.lower().partition(LENGTH)[2].split(b"\r\n")[0] or 0)
            if HEAD_END not in self.read or len(body) < length:
                return
            self.read = b""
            kind = int(head.split(b" ")[1].strip(b"/"))
            found = answers[text_of(body)][kind]
            start = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            self.transport.write(start % len(found) + found)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Known, "127.0.0.1", 0)
        tell.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def compared(lanes: dict[str, Lane], clients: int) -> Record:
    """Compare medians of the same rounds."""
    pairs = {
        "transparent": (DEPLOYED, BY_HAND),
        "answers known": (KNOWN, BY_HAND),
        "unchanged": (UNCHANGED, PLAIN),
    }
    p50 = {name: lane.p50(clients) for name, lane in lanes.items()}
    return {
        name: {"ms": difference(p50[one], p50[other]), "ratio": ratio(p50[one], p50[other])}
        for name, (one, other) in pairs.items()
    }


def render(found: Record) -> str:
    """Show what each lane took, and what that is more than by hand."""
    rows = [
        [name, clients, f"{taken:.1f}"]
        for name, by_clients in found["p50_ms"].items()
        for clients, taken in by_clients.items()
    ]
    more = [
        [name, clients, f"{one['ms']:.1f}", "{median:.2f} ({least:.2f} to {most:.2f})".format(**one["ratio"])]
        for clients, by_name in found["more"].items()
        for name, one in by_name.items()
    ]
    said = f"{found['documents']:,} documents, answers of {found['bytes']:,} bytes, load {found['load']}"
    return "\n\n".join(
        [
            said,
            table(["lane", "clients", "p50 ms"], rows),
            table(["over the same by hand", "clients", "ms more", "ratio"], more),
        ]
    )


SECTIONS: list[Section] = []
