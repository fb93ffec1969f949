"""What vectors add to the answers of an application that asks as before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, json_bytes, path_of
from hybridr.indexing.planning import added_fields
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.verification import verify
from hybridr.status.standing import status
from support.books import make
from support.hashing import HashingEncoder
from support.in_place_index import IN_PLACE, filled_index

TEXT = {"type": "text"}
PAGE = {"query": {"match": {"body": "harbour"}}, "size": 10}


@pytest.fixture
def name(cluster: Cluster, index_name: str) -> str:
    documents = [{"title": f"Boat {n}", "body": f"boat {n} lies in the harbour " * 8} for n in range(20)]
    return make(cluster, index_name, documents, properties={"title": TEXT, "body": TEXT})


def hits(cluster: Cluster, index: str, **more: Any) -> list[dict[str, Any]]:
    answer = cluster.request("POST", path_of(index, "_search"), PAGE | more)
    return [hit["_source"] for hit in answer["hits"]["hits"]]


def line_to_type(output: str) -> dict[str, Any]:
    [line] = [line for line in output.splitlines() if "clients leave it out by" in line]
    assert "kB" in line
    return json.loads("{" + line.partition(" leave it out by ")[2] + "}")


def test_the_line_that_is_printed_makes_answers_as_small_as_before(cluster, name, minilm, cli):
    before = hits(cluster, name)
    command = ["reindex", name, "--alias", f"{name}-live", "--encoder", str(minilm)]
    command += ["--no-term-table", "--url", cluster.url]
    dry = line_to_type(cli.typed([*command, "--dry-run"]).out)
    typed = line_to_type(cli.typed(command).out)
    assert dry == typed == {"_source": {"excludes": ["hybridr_vector"]}}
    assert hits(cluster, f"{name}-live", **typed) == before
    whole = hits(cluster, f"{name}-live")
    assert len(json_bytes(whole)) > 5 * len(json_bytes(before))
    # The second generation says it too.
    assert line_to_type(cli.typed([*command, "--vectors", "byte"]).out) == typed


def test_a_partial_update_through_the_alias_keeps_the_vector_and_a_sync_renews_it(cluster, name):
    encoder, alias = HashingEncoder(), f"{name}-hybridr"
    reindex(cluster, name, encoder, ReindexSettings(term_table=False))
    cluster.request("POST", path_of(alias, "_update", "3"), {"doc": {"price": 7}}, {"refresh": "true"})
    with_vector = {"query": {"exists": {"field": "hybridr_vector"}}, "size": 0, "track_total_hits": True}
    found = cluster.request("POST", path_of(alias, "_search"), with_vector)
    assert found["hits"]["total"]["value"] == 20
    [held] = status(cluster, name).holdings
    assert held.writes["changed"] == 1
    assert sync(cluster, name, encoder).renewed == 1
    assert verify(cluster, name, encoder).ok


def test_in_place_the_mark_is_left_out_too(cluster, index_name):
    filled_index(cluster, index_name)
    assert added_fields(cluster.index_info(index_name).record) == ["hybridr_vector", "hybridr_mark"]
    assert added_fields(IN_PLACE) == ["hybridr_vector", "hybridr_mark"]
    done = reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    typed = line_to_type("\n".join(done.notes))
    sources = cluster.request("POST", path_of(index_name, "_search"), typed)["hits"]["hits"]
    assert sources
    assert not any(field.startswith("hybridr_") for hit in sources for field in hit["_source"])
