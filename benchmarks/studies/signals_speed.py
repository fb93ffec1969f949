"""How long does a search with signals take beside one without, each signal alone and all, in turns?

    python benchmarks/run.py signals-speed FOLDER INDEX... [--url URL] [--queries 100] [--requests 100]

FOLDER is a collection in BEIR layout, whose queries are asked; each INDEX has vectors and a term table, and
may hold other documents. By `Search` every query is new to it: it asks for the weight of its terms and looks
for near words each time. As bytes the requests that it sends are sent again: the share of the node. No figure
holds an encoding: queries are read beforehand, vectors and states of tokens in one pass.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from hybridr import connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.cluster.embedded import state as state_module
from hybridr.search.encoders import encoder_for
from hybridr.search.settings import SearchSettings
from hybridr_bench.asking import Lane, Times, apart, ratio, take_turns
from hybridr_bench.corpora import spread_queries
from hybridr_bench.searching import AS_BYTES, BY_SEARCH, Kind, KnownQueries, QueryCompiler, Sender
from studies.signals import PLAIN, compared, signals_of
from study import RESULTS, Record, Section, machine_of, machine_record, table, write_result

WAYS = (BY_SEARCH, AS_BYTES)
NOTES = """\
p50 in milliseconds, ten hits, 100 candidates of each leg; in brackets the median of the ratios to
hybrid-plain in the same round. By Search every query is new to it; as bytes its requests are sent again,
which is the share of the node. Queries were read beforehand: no figure holds an encoding."""


def options(parser: argparse.ArgumentParser) -> None:
    """Take the queries, the indices, and how much is timed."""
    usual = Times()
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="whose queries are asked")
    parser.add_argument("index", nargs="+", metavar="INDEX", help="with vectors and a term table")
    parser.add_argument("--url", help="cluster (default: HYBRIDR_URL, else the embedded node)")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--requests", type=int, default=100, help="in a turn")
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--warm-up", type=int, default=usual.warm_up, help="turns before any counts")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")


def measure(given: argparse.Namespace) -> None:
    """Time every index, and write a result for each."""
    cluster, texts = connect(given.url), spread_queries(given.folder, given.queries)
    times = Times(given.requests, given.rounds, warm_up=given.warm_up)
    node = next((one for one in state_module.nodes() if one.running and one.url == cluster.url), None)
    for name in given.index:
        before = os.getloadavg()[0]
        with apart(node.pid if node else None) as pinned:
            found = race(cluster, name, texts, times)
        found |= {
            "settings": {"queries": len(texts), "corpus": given.folder.name, **times._asdict()},
            "pinned": pinned,
            "load": [round(before, 2), round(os.getloadavg()[0], 2)],
            "machine": machine_record(),
        }
        write_result(given.results / "signals-speed" / f"{name}.json", found)
        print(render({name: found}), flush=True)


def race(cluster: Cluster, name: str, texts: list[str], times: Times) -> dict[str, Any]:
    """Time the searches of one index in turns, by `Search` and as bytes."""
    info = resolve(cluster, name)
    known = KnownQueries(encoder_for(cluster, info, None), texts)
    asking = QueryCompiler(cluster, name, known, texts, Sender(cluster.url, max(times.clients)))
    kinds = {
        called: Kind("hybrid", SearchSettings(**(one.settings or {})))
        for called, one in compared(signals_of(cluster, info, known)).items()
    }
    lanes = [lane for called, kind in kinds.items() for lane in asking.lanes(called, kind)]
    take_turns(lanes, times)
    by_name = {lane.name: lane for lane in lanes}
    rows = [compared_row(by_name, called, clients) for clients in times.clients for called in kinds]
    return {
        "index": info.name,
        "documents": cluster.count(info.name),
        "systems": rows,
        "lanes": [row for lane in lanes for row in lane.records()],
    }


def compared_row(lanes: dict[str, Lane], name: str, clients: int) -> dict[str, Any]:
    """Compare the medians of one system with those without signals."""
    over = {
        way: ratio(lanes[f"{name}, {way}"].p50(clients), lanes[f"{PLAIN}, {way}"].p50(clients))
        for way in WAYS
    }
    return {"name": name, "clients": clients, "over_plain": over}


def render(record: Record) -> str:
    """Render a table for each index, the smallest first."""
    parts = [table_of(found) for found in sorted(record.values(), key=lambda one: one["documents"])]
    machines = dict.fromkeys(machine_of(found["machine"]) for found in record.values())
    return "\n\n".join([f"{NOTES} {'. '.join(machines)}.", *parts])


def table_of(found: Record) -> str:
    """Render one index: a row for each system, columns by clients and way."""
    clients = list(dict.fromkeys(row["clients"] for row in found["systems"]))
    p50 = {(lane["name"], lane["clients"]): lane["p50_ms"] for lane in found["lanes"]}
    over = {(row["name"], row["clients"]): row["over_plain"] for row in found["systems"]}
    header = ["system", *(f"{way}, {head(many)}" for many in clients for way in WAYS)]
    rows = [
        [name]
        + [
            f"{p50[f'{name}, {way}', many]:.1f} ({over[name, many][way]['median']:.2f})"
            for many in clients
            for way in WAYS
        ]
        for name in dict.fromkeys(row["name"] for row in found["systems"])
    ]
    cores = "on different cores" if found["pinned"] else "on the same cores"
    before, after = found["load"]
    return (
        f"{found['documents']:,} documents, queries of {found['settings']['corpus']}; node and load "
        f"generator {cores}, load of the machine {before:.1f} to {after:.1f}:\n\n{table(header, rows)}"
    )


def head(clients: int) -> str:
    """Say how many ask."""
    return f"{clients} clients" if clients > 1 else "1 client"


SECTIONS = [
    Section(
        55,
        "Searching with signals",
        "signals-speed",
        "python benchmarks/run.py signals-speed FOLDER/scale_open_en small scale",
        render,
    )
]
