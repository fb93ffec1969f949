"""Reindex on a real node: complete and restartable."""

from __future__ import annotations

import json
import time
from unittest.mock import Mock

import numpy as np
import pytest

from hybridr import ReindexSettings, Search
from hybridr.cluster import writing
from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError
from hybridr.indexing import lag
from hybridr.indexing.reindexing import plan, reindex
from support.corpus import (
    add_alias,
    create,
    fill_index,
    having,
    put,
    put_documents,
    reindexed,
    sources,
    text_number,
)
from support.hashing import HashingEncoder


def alias_of(cluster: Cluster, alias: str) -> list[str]:
    return [info.name for info in cluster.indices(alias)]


def test_every_document_arrives_with_its_vector(cluster, index_name, monkeypatch):
    monkeypatch.setattr(writing, "BULK_BYTES", 7_000)
    monkeypatch.setattr(lag, "SHARE", 50)
    settings = {"number_of_replicas": 0, "number_of_shards": 3, "refresh_interval": "7s"}
    fill_index(cluster, index_name, 400, settings=settings)
    encoder = HashingEncoder()
    done = reindex(cluster, index_name, encoder, ReindexSettings(read_documents=40, workers=3))
    assert (done.documents, done.encoded, done.rejected, done.switched) == (400, 400, 0, True)
    assert sources(cluster, done.destination) == sources(cluster, index_name)
    copied = cluster.index_info(done.destination)
    assert copied.settings["index.refresh_interval"] == "7s"
    assert copied.settings["index.number_of_shards"] == "3"
    assert alias_of(cluster, f"{index_name}-hybridr") == [done.destination]
    found = cluster.request("GET", path_of(done.destination, "_doc", "d7"))
    expected = encoder.encode_documents([text_number(7)])[0]
    np.testing.assert_allclose(found["_source"]["hybridr_vector"], expected, atol=1e-6)
    assert found["_version"] == 1


def test_running_again_encodes_only_what_changed(cluster, index_name):
    first = reindexed(cluster, index_name, 50)
    put_documents(cluster, index_name, range(3, 5), suffix=" changed")
    put_documents(cluster, index_name, range(50, 52))
    cluster.request("DELETE", path_of(index_name, "_doc", "d9"), params={"refresh": "true"})
    second = reindex(cluster, index_name, HashingEncoder())
    assert second.destination == first.destination
    assert (second.encoded, second.skipped, second.deleted, second.documents) == (4, 47, 1, 51)
    assert sources(cluster, second.destination) == sources(cluster, index_name)
    put_documents(cluster, index_name, [9], suffix=" back")
    assert reindex(cluster, index_name, HashingEncoder()).encoded == 1
    assert sources(cluster, second.destination) == sources(cluster, index_name)


def test_ctrl_c_then_the_same_command(cluster, index_name, tiny, cli, monkeypatch):

    fill_index(cluster, index_name, 60)
    with monkeypatch.context() as patch:
        interrupted = Mock(side_effect=KeyboardInterrupt)
        patch.setattr("hybridr.indexing.targets.beside.require_verified", interrupted)
        said = cli(cluster, f"reindex {index_name} --encoder {tiny}", code=130).err
    assert "error: interrupted\nhint: run the same command again to continue" in said
    assert not cluster.exists(f"{index_name}-hybridr")
    done = cli(cluster, f"reindex {index_name} --encoder {tiny} --json").json
    assert (done["skipped"], done["encoded"]) == (60, 0)


def test_documents_without_text_are_copied_without_vector(cluster, index_name):
    fill_index(cluster, index_name, 3)
    odd = ["", "   ", None, [], ["two", "parts"]]
    put(cluster, index_name, {f"e{number}": {"text": text, "price": 1.0} for number, text in enumerate(odd)})
    put(cluster, index_name, {"e9": {"price": 2.0}})
    done = reindex(cluster, index_name, HashingEncoder(), ReindexSettings(fields=("text",)))
    assert (done.documents, done.encoded, done.without_text, done.switched) == (9, 4, 5, True)
    assert sources(cluster, done.destination) == sources(cluster, index_name)
    assert reindex(cluster, index_name, HashingEncoder(), ReindexSettings(fields=("text",))).skipped == 9


def test_refused_documents_keep_the_alias_where_it_is(cluster, index_name):
    fill_index(cluster, index_name, 10)
    encoder = HashingEncoder(refused=("n1", "n2"))
    done = reindex(cluster, index_name, encoder)
    assert (done.rejected, done.documents, done.switched) == (2, 8, False)
    assert done.rejects_file.stat().st_mode & 0o777 == 0o600
    rejected = [json.loads(line) for line in done.rejects_file.read_text().splitlines()]
    assert {record["_id"] for record in rejected} == {"d1", "d2"}
    assert all("zero vector" in record["reason"] for record in rejected)
    assert json.loads(rejected[0]["source"])["text"] == text_number(1)
    assert alias_of(cluster, done.alias) == []
    assert reindex(cluster, index_name, encoder, ReindexSettings(accept_rejects=True)).switched


def test_a_refused_update_leaves_the_older_copy(cluster, index_name):
    reindexed(cluster, index_name, 10)
    put_documents(cluster, index_name, [4], suffix=" refused")
    done = reindex(cluster, index_name, HashingEncoder(refused=("refused",)))
    assert (done.rejected, done.documents, done.switched) == (1, 10, False)
    assert reindex(cluster, index_name, HashingEncoder()).switched


def test_exact_numbers_and_odd_ids_survive(cluster, index_name):
    create(cluster, index_name, {"text": {"type": "text"}, "raw": {"type": "object", "enabled": False}})
    raw = {"big": 123456789012345678901234567890, "small": 1e-300, "deep": [1, 2.5, None, {"x": ""}]}
    odd = {"text": 'na\u00efve \U0001f600 "quoted" \n line', "raw": raw}
    ids = ["a b", "ü/ö?#", "%2F", "x" * 512, "1,2", "_under"]
    put(cluster, index_name, dict.fromkeys(ids, odd))
    done = reindex(cluster, index_name, HashingEncoder(), ReindexSettings(fields=("text",)))
    assert done.documents == len(ids)
    assert sources(cluster, done.destination) == sources(cluster, index_name)


def test_catching_up_leaves_a_live_index_alone(cluster, index_name):
    done = reindexed(cluster, index_name, 30)
    owners = {"refresh_interval": "3s", "number_of_replicas": 1}
    cluster.request("PUT", path_of(done.destination, "_settings"), {"index": owners})
    put_documents(cluster, index_name, range(28, 33), suffix=" later")

    def searchable(_: object) -> None:
        assert Search(cluster, index_name, HashingEncoder())("basket"), "searchable all the time"

    again = reindex(cluster, done.destination, HashingEncoder(before=searchable))
    assert (again.encoded, again.alias, again.destination) == (5, done.alias, done.destination)
    settings = cluster.index_info(done.destination).settings
    assert settings["index.refresh_interval"] == "3s"
    assert settings["index.number_of_replicas"] == "1"


def test_an_alias_that_shows_a_part_of_the_source_is_named(cluster, index_name):
    fill_index(cluster, index_name, 6)
    add_alias(cluster, index_name, f"{index_name}-part", filter={"term": {"tags": "t1"}})
    add_alias(cluster, index_name, f"{index_name}-routed", routing="x")
    add_alias(cluster, index_name, f"{index_name}-whole")
    todo = plan(cluster, index_name, HashingEncoder(), ReindexSettings())
    done = reindex(cluster, index_name, HashingEncoder())
    told = [
        f"alias '{index_name}-{name}' shows only a part of '{index_name}' and stays there"
        for name in ("part", "routed")
    ]
    assert [caution.partition(":")[0] for caution in done.cautions] == told
    assert tuple(todo.remarks) == tuple(todo.details["cautions"]) == done.cautions
    assert cluster.index_info(done.destination).aliases.keys() == {done.alias}


def test_a_blocked_index_stops_at_once(cluster, index_name):
    done = reindexed(cluster, index_name, 3)
    put_documents(cluster, index_name, [1], suffix=" changed")
    with having(cluster, {"index.blocks.write": True}, done.destination):
        started = time.monotonic()
        with pytest.raises(ClusterError, match="takes no writes"):
            reindex(cluster, index_name, HashingEncoder())
        assert time.monotonic() - started < 20
    assert reindex(cluster, index_name, HashingEncoder()).encoded == 1
