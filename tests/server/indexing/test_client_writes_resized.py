"""Sources that were shrunk or split: they route by a number that no setting shows."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from hybridr.status.standing import status
from support.corpus import bulk, create, put, text_number
from support.hashing import HashingEncoder

ENCODER = HashingEncoder()


def write(cluster: Cluster, index: str, numbers: range, text: str = "") -> None:
    """Every third document without a routing."""
    documents = {f"d{number}": {"text": text_number(number) + text} for number in numbers}
    put(cluster, index, documents, {f"d{number}": f"user{number}" for number in numbers if number % 3})


def erase(cluster: Cluster, index: str, *numbers: int) -> None:
    actions = [
        {"_id": f"d{number}", **({"routing": f"user{number}"} if number % 3 else {})} for number in numbers
    ]
    bulk(cluster, index, [{"delete": action} for action in actions])


def texts(cluster: Cluster, index: str) -> dict[str, str]:
    cluster.refresh(index)
    answer = cluster.request("POST", path_of(index, "_search"), {"size": 1000})
    return {hit["_id"]: hit["_source"]["text"] for hit in answer["hits"]["hits"]}


@pytest.fixture(params=[("_shrink", 6, 2), ("_split", 2, 6)], ids=["shrunk", "split"])
def resized(cluster: Cluster, index_name: str, request: pytest.FixtureRequest) -> str:
    """A source that was made of another index, and routes otherwise than its settings make believe."""
    way, before, after = request.param
    settings: dict[str, Any] = {"number_of_shards": before, "number_of_replicas": 0}
    if way == "_split":
        settings["number_of_routing_shards"] = 6
    first = f"{index_name}-before"
    create(cluster, first, {"text": {"type": "text"}}, settings)
    write(cluster, first, range(20))
    cluster.request("PUT", path_of(first, "_settings"), {"index.blocks.write": True})
    own = {"index.number_of_shards": after, "index.number_of_replicas": 0, "index.blocks.write": None}
    cluster.request("POST", path_of(first, way, index_name), {"settings": own})
    cluster.wait_until_usable(index_name)
    return index_name


def test_nothing_is_lost_in_a_round_and_nothing_in_the_source(cluster, resized):
    alias = reindex(cluster, resized, ENCODER).alias
    write(cluster, resized, range(20, 40))
    write(cluster, resized, range(5), " changed")
    erase(cluster, resized, 7, 8, 9)
    counts = sync(cluster, resized, ENCODER)
    assert (counts.copied, counts.deleted) == (25, 3)
    assert texts(cluster, alias) == texts(cluster, resized)
    [holding] = status(cluster, resized).holdings
    assert (holding.lag.inserts, holding.lag.updates, holding.lag.deletes) == (0, 0, 0)
    checked = verify(cluster, resized, ENCODER)
    assert checked.ok, checked.problems()

    write(cluster, alias, range(38, 44), " by a client")
    erase(cluster, alias, 13, 14)
    theirs = texts(cluster, alias)
    again = reindex(cluster, resized, ENCODER, ReindexSettings(vectors="byte"))
    assert (again.switched, texts(cluster, alias)) == (True, theirs)
    returned = [rollback(cluster, resized, copy_back=True)["returned"] for _ in range(2)]
    assert [counts["deleted"] + counts["conflicts"] for counts in returned] == [2, 0]
    assert texts(cluster, resized) == theirs
