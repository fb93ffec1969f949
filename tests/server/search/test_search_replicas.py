"""The same answer, whichever copy of a shard gives it: two nodes, replicas, restarts.

Beside it: `test_search_repeatability.py`, on one node, where replicas stay unassigned.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr import Search, connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded import process
from hybridr.cluster.embedded.configuration import node_settings
from hybridr.cluster.settings import NodeSettings
from hybridr.indexing.reindexing import reindex
from hybridr.records import Query
from support.corpus import fill_uneven
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]
PAIR = bool(os.environ.get("HYBRIDR_PAIR"))
INDEX, NODES = "t-pair", ("pair-one", "pair-two")
QUERIES = [
    Query(text, text) for text in ("anchor needle", "velvet umbrella dragon", "quartz", "basket marble")
]
Ranked = dict[str, list[tuple[str, float]]]


@pytest.fixture(scope="module")
def pair(own_home: Path) -> Iterator[Cluster]:
    """Two embedded nodes that are one cluster; the first may manage it alone."""
    ports = {name: process.free_port() for name in NODES}

    def joined(settings: NodeSettings, folder: Path, port: int) -> dict[str, Any]:
        values = node_settings(settings, folder, port)
        del values["discovery.type"]
        return values | {
            "cluster.name": "hybridr-pair",
            "transport.port": ports[settings.name],
            "discovery.seed_hosts": [f"127.0.0.1:{port}" for port in ports.values()],
            "cluster.initial_cluster_manager_nodes": [NODES[0]],
            "node.roles": ["data", "ingest"] + ["cluster_manager"] * (settings.name == NODES[0]),
        }

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "node_settings", joined)
        states = [process.start(NodeSettings(name=name, heap="512m")) for name in NODES]
        yield connect(states[0].url)
        for name in reversed(NODES):
            process.stop(name)


def ranked(cluster: Cluster) -> Ranked:
    """Ask as a program that has just started."""
    search = Search(connect(cluster.url), INDEX, HashingEncoder(dim=32))
    return {text: list(found.items()) for text, found in search.run(QUERIES, 40).items()}


def green(cluster: Cluster) -> None:
    health = cluster.request("GET", f"/_cluster/health/{INDEX}*?wait_for_status=green&timeout=60s")
    assert health["status"] == "green", "replicas are assigned"


if PAIR:  # `make test-replicas`: three starts of a node take longer than all else here

    def test_every_copy_gives_the_same_answer(pair):
        fill_uneven(pair, INDEX, 5)
        reindex(pair, INDEX, HashingEncoder(dim=32))
        pair.request("PUT", f"/{INDEX}*/_settings", {"index": {"number_of_replicas": 1}})
        green(pair)
        first = ranked(pair)
        assert all(len(found) == 40 for found in first.values())
        for _ in range(9):
            assert ranked(pair) == first
        pair.request("POST", f"/{INDEX}*/_flush")
        process.stop(NODES[1])
        assert ranked(pair) == first, "by the copies that are left"
        process.start(NodeSettings(name=NODES[1], heap="512m"))
        green(pair)
        for _ in range(3):
            assert ranked(pair) == first, "after a restart"
