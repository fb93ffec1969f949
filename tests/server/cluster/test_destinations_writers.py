"""Several write into one record at once, and no change is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hybridr import connect
from hybridr.cluster import destinations
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import record_event, rewrite, write_record
from hybridr.cluster.record import MARKS, IndexInfo, Record
from hybridr.cluster.record_parts import Deployment, Tuned
from hybridr.indexing.reindexing import reindex
from hybridr.status.standing import remove
from support.corpus import reindexed
from support.hashing import HashingEncoder


@pytest.fixture
def made(cluster: Cluster, index_name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(destinations, "TURN_S", 0.4)
    monkeypatch.setattr(destinations, "SETTLE_S", 1.0)
    return reindexed(cluster, index_name, 3).destination


def test_what_is_tuned_survives_a_sync_that_read_the_record_before(cluster, made):
    """`sync` reads, `tune` reads and writes, `sync` writes: OpenSearch keeps the last alone."""
    with ThreadPoolExecutor(1) as pool:

        def slowly(record: Record) -> Record:
            if record.synced != {0: 77} and not tuned:
                tuned.append(
                    pool.submit(write_record, connect(cluster.url), made, tuning=Tuned(search={"depth": 7}))
                )
                while cluster.index_info(made).record.tuning is None:
                    pass
            return record.changed(synced={0: 77})

        tuned: list[object] = []
        rewrite(cluster, made, slowly)
    record = cluster.index_info(made).record
    assert record.synced == {0: 77}
    assert record.tuning.search == {"depth": 7}


def test_three_writers_at_once_lose_nothing(cluster, made):
    def write(writer: int) -> None:
        own = connect(cluster.url)
        for number in range(2):
            found = Tuned(search={"depth": number + 1})
            record_event(own, made, "tuned", {"writer": writer, "number": number}, tuning=found)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, range(3)))
    told = [one for one in cluster.index_info(made).record.history if one["event"] == "tuned"]
    assert sorted((one["writer"], one["number"]) for one in told) == [
        (writer, number) for writer in range(3) for number in range(2)
    ]


def test_a_writer_of_the_last_release_is_noticed_too(cluster, made):
    """It knows no marks, and puts the whole `_meta` back as it read it."""
    before = cluster.index_info(made)
    with ThreadPoolExecutor(1) as pool:
        deployment = Deployment(way="client", pipeline="p")
        waiting = pool.submit(write_record, connect(cluster.url), made, deployment=deployment)
        while cluster.index_info(made).record.deployment is None:
            pass
        stale = before.other_meta | {"hybridr": before.record.changed(rejected=3).to_json()}
        cluster.request("PUT", f"/{made}/_mapping", {"_meta": stale})
        waiting.result()
    record = cluster.index_info(made).record
    assert (record.deployment, record.rejected) == (deployment, 3)


def test_marks_are_few_and_go_with_the_record(cluster, index_name, made):
    for number in range(destinations.MAX_MARKS + 3):
        write_record(cluster, made, rejected=number)
    marks = cluster.index_info(made).other_meta[MARKS]
    assert len(marks) == len(set(marks)) == destinations.MAX_MARKS
    assert cluster.index_info(index_name).other_meta[MARKS]
    remove(cluster, index_name)
    assert cluster.index_info(index_name).other_meta == {}


def test_a_change_that_stays_out_for_long_is_told(cluster, made, monkeypatch):
    monkeypatch.setattr(destinations, "PATIENCE_S", 0.5)
    monkeypatch.setattr(destinations, "put_changed", lambda *_: None)
    with pytest.raises(destinations.ClusterError, match="other writers keep overwriting"):
        write_record(cluster, made, rejected=1)


@pytest.mark.parametrize("frozen", ["reindex", "remove of one", "load"])
def test_a_process_that_thaws_writes_over_no_entry_of_another_run(
    cluster, index_name, made, frozen, monkeypatch
):
    first, put = cluster.index_info(made).uuid, destinations.put_record

    def frozen_put(*given: Any) -> IndexInfo:
        """It has read the source's record; others go on while it sleeps."""
        monkeypatch.setattr(destinations, "put_record", put)
        reindex(connect(cluster.url), index_name, HashingEncoder(salt="two"))
        return put(*given)

    monkeypatch.setattr(destinations, "put_record", frozen_put)
    if frozen == "reindex":
        reindex(cluster, index_name, HashingEncoder(salt="three"))
    elif frozen == "load":
        write_record(cluster, index_name, text_fields=("text",))
    else:
        destinations.forget_destinations(cluster, cluster.index_info(index_name), {first})
    assert destinations.put_record is put
    there = {info.uuid for info in cluster.indices(f"{index_name}-hybridr-*")}
    there -= {first} if frozen == "remove of one" else set()
    assert set(cluster.index_info(index_name).record.destinations) == there
    assert cluster.request("GET", f"/{index_name}/_alias")[index_name]["aliases"] == {}


def test_a_turn_of_a_killed_process_is_taken_over(cluster, index_name, made):
    hidden = {"index": index_name, "alias": f"{index_name}-hybridr_turn_dead", "is_hidden": True}
    cluster.request("POST", "/_aliases", {"actions": [{"add": hidden}]})
    assert not cluster.index_info(index_name).aliases
    write_record(cluster, index_name, text_fields=("text",))
    assert cluster.request("GET", f"/{index_name}/_alias")[index_name]["aliases"] == {}
