"""Rollback after writes to the new index: nothing that clients wrote is lost, no request fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hybridr import ReindexSettings, Search, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve, write_record
from hybridr.cluster.reading import settled_position
from hybridr.cluster.writing import rejects_of
from hybridr.errors import ClusterError, NotFound, SettingsError
from hybridr.files.remembered import REJECTS, file_of_index
from hybridr.indexing import rollback as rollback_module
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.status.leftovers import rollback
from hybridr.status.standing import remove
from support.commands import before_call
from support.corpus import (
    add_alias,
    bulk,
    delete,
    fill_index,
    having,
    put_documents,
    reindexed,
    sources,
    text_number,
    update,
)
from support.hashing import HashingEncoder
from support.waiting import wait_until


def alias_of(cluster: Cluster, alias: str) -> list[str]:
    return [info.name for info in cluster.indices(alias)]


def test_rollback_returns_step_by_step(cluster, index_name):
    first = reindexed(cluster, index_name, 5)
    second = reindex(cluster, index_name, HashingEncoder(salt="other"))
    assert first.destination != second.destination
    alias = f"{index_name}-hybridr"
    assert rollback(cluster, index_name, dry_run=True)["to"] == first.destination
    assert alias_of(cluster, alias) == [second.destination]
    assert rollback(cluster, index_name)["to"] == first.destination
    assert alias_of(cluster, alias) == [first.destination]
    assert rollback(cluster, index_name, drop=True)["to"] == index_name
    assert alias_of(cluster, alias) == [index_name]
    assert not cluster.exists(first.destination)
    history = cluster.index_info(second.destination).record.history
    assert [event["event"] for event in history] == ["filled", "switched", "rolled back"]
    assert (history[0]["documents"], history[1]["from"]) == (5, first.destination)
    with pytest.raises(NotFound, match="nothing to roll back"):
        rollback(cluster, index_name)
    assert Search(cluster, index_name, mode="lexical")("basket")
    assert reindex(cluster, index_name, HashingEncoder()).switched
    assert alias_of(cluster, alias) != [index_name]


def write_through(cluster: Cluster, alias: str) -> None:
    """Two new documents, two changed ones, one deleted."""
    bulk(cluster, alias, [{"index": {"_id": "own"}}, {"text": "zephyr"}])
    put_documents(cluster, alias, [3], suffix=" by a client")
    update(cluster, alias, "d4", price=99.0)
    delete(cluster, alias, "d5")


def test_what_clients_wrote_is_copied_back_after_a_sync(cluster, index_name, alias):
    write_through(cluster, alias)
    sync(cluster, index_name, HashingEncoder())
    there = sources(cluster, alias)
    done = rollback(cluster, index_name, copy_back=True)
    assert done["returned"] == {"changed": 3, "deleted": 1, "conflicts": 0, "deletes_known": True}
    assert sources(cluster, index_name) == there
    raw = cluster.search(index_name, {"size": 100})["hits"]["hits"]
    assert not [hit for hit in raw if any(name.startswith("hybridr") for name in hit["_source"])]
    assert [info.name for info in cluster.indices(alias)] == [index_name]
    again = reindex(cluster, index_name, HashingEncoder())
    assert (again.switched, sources(cluster, alias)) == (True, there)
    assert rollback(cluster, index_name)["writes"]["changed"] == 0


def test_without_a_word_it_refuses_with_the_counts(cluster, index_name, alias):
    write_through(cluster, alias)
    before = sources(cluster, index_name)
    with pytest.raises(ClusterError, match="changed 3 documents .* and deleted 1; .* does not have") as said:
        rollback(cluster, index_name, drop=True)
    assert "--copy-back" in str(said.value.hint)
    preview = rollback(cluster, index_name, dry_run=True)
    assert preview["writes"]["changed"] == 3
    assert "--copy-back" in preview["refusal"]["hint"], "the dry run says what the run would"
    for verb in (rollback, remove):
        with pytest.raises(SettingsError, match="--copy-back keeps .* --discard gives it up"):
            verb(cluster, index_name, copy_back=True, discard=True)
    assert resolve(cluster, alias).name != index_name
    assert rollback(cluster, index_name, discard=True, drop=True)["dropped"]
    assert sources(cluster, index_name) == before


def test_what_both_sides_changed_stays_as_it_is(cluster, index_name, alias):
    put_documents(cluster, alias, [3, 4], suffix=" by a client")
    put_documents(cluster, index_name, [3], suffix=" by the source")
    done = rollback(cluster, index_name, copy_back=True, drop=True)
    assert [done["returned"][name] for name in ("changed", "deleted", "conflicts")] == [1, 0, 1]
    assert sources(cluster, index_name)["d3"]["text"].endswith(" by the source")
    assert sources(cluster, index_name)["d4"]["text"].endswith(" by a client")
    assert not done["dropped"]
    assert sources(cluster, done["from"])["d3"]["text"].endswith(" by a client")


def test_what_the_source_did_since_the_last_round_is_neither_deleted_nor_brought_back(
    cluster, index_name, alias
):
    """Uneven shards: one shard's operations go on behind the other's, and behind what was copied."""
    put_documents(cluster, alias, [3], suffix=" by a client")
    sync(cluster, index_name, HashingEncoder())
    delete(cluster, index_name, "d3")
    delete(cluster, index_name, "d7")
    lines = [({"index": {"_id": f"n{n}", "routing": "r"}}, {"text": "zephyr"}) for n in range(60)]
    bulk(cluster, index_name, [line for pair in lines for line in pair])
    delete(cluster, alias, "d5")
    done = rollback(cluster, index_name, copy_back=True)
    assert done["returned"] == {"changed": 0, "deleted": 1, "conflicts": 0, "deletes_known": True}
    assert len(sources(cluster, index_name)) == 40 + 60 - 3
    assert not {"d3", "d7"} & sources(cluster, index_name).keys()


def test_a_refused_document_is_never_taken_for_a_deleted_one(cluster, index_name):
    done = reindexed(
        cluster, index_name, 10, HashingEncoder(refused=("n1",)), ReindexSettings(accept_rejects=True)
    )
    assert done.rejected == 1
    delete(cluster, done.alias, "d5")
    assert rollback(cluster, index_name, dry_run=True)["writes"]["deleted"] == 1
    rejects_of(cluster.index_info(done.destination)).file.unlink()
    assert rollback(cluster, index_name, dry_run=True)["writes"]["deleted"] == 1, "the index knows it too"
    write_record(cluster, done.destination, refused=())
    back = rollback(cluster, index_name, copy_back=True)
    assert (back["returned"]["deleted"], back["returned"]["deletes_known"]) == (0, False)
    assert {"d1", "d5"} <= sources(cluster, index_name).keys()


@pytest.mark.parametrize("undo", [rollback, remove])
@pytest.mark.parametrize(
    ("block", "suffix"),
    [("read_only", ""), ("read_only_allow_delete", ""), ("read_only_allow_delete", "-hybridr-1")],
)
def test_a_dry_run_foresees_that_a_block_keeps_the_alias(cluster, index_name, block, suffix, undo):
    fill_index(cluster, index_name, 5)
    cluster.request("PUT", path_of(index_name, "_alias", "app"))
    reindex(cluster, index_name, HashingEncoder(), ReindexSettings(alias="app"))
    blocked = f"{index_name}{suffix}"
    with having(cluster, {f"index.blocks.{block}": True}, blocked):
        foreseen = undo(cluster, index_name, dry_run=True)["refusal"]
        with pytest.raises(ClusterError, match=f"index.blocks.{block} is true") as refused:
            undo(cluster, index_name)
        assert foreseen == {"message": refused.value.message, "hint": refused.value.hint}
        assert f"PUT /{blocked}/_settings" in str(refused.value.hint)
        assert alias_of(cluster, "app") == [f"{index_name}-hybridr-1"]
    undo(cluster, index_name)
    assert alias_of(cluster, "app") == [index_name]


def test_a_source_that_refuses_keeps_the_alias(cluster, index_name, alias):
    write_through(cluster, alias)
    with having(cluster, {"index.blocks.write": True}, index_name):
        with pytest.raises(ClusterError, match="takes no writes"):
            rollback(cluster, index_name, copy_back=True)
        assert resolve(cluster, alias).name != index_name
    cluster.request("PUT", path_of(index_name, "_mapping"), {"dynamic": "strict"})
    bulk(cluster, alias, [{"index": {"_id": "odd"}}, {"text": "x", "surprise": 1}])
    with pytest.raises(ClusterError, match="refuses 1 document") as said:
        rollback(cluster, index_name, copy_back=True)
    file = file_of_index(REJECTS, f"{index_name}-hybridr-1-returned", cluster.index_info(alias).uuid)
    assert str(file) in str(said.value.hint)
    assert file.stat().st_mode & 0o777 == 0o600
    assert resolve(cluster, alias).name != index_name


@contextmanager
def running(work: Callable[[Cluster], None], url: str, failures: list[str]) -> Iterator[None]:
    """Do a piece of work again and again in a thread of its own, keeping what fails."""
    stop = threading.Event()

    def repeat() -> None:
        cluster = connect(url)
        while not stop.is_set():
            try:
                work(cluster)
            except Exception as error:  # whatever it is, the test must see it
                failures.append(repr(error))

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_no_request_fails_and_no_write_is_lost_over_switch_and_rollback(cluster, index_name):
    fill_index(cluster, index_name, 200)
    alias = f"{index_name}-live"
    add_alias(cluster, index_name, alias)
    failures: list[str] = []
    searches: list[int] = []
    written: dict[str, str] = {}

    def read(reader: Cluster) -> None:
        answer = reader.search(alias, {"size": 0, "track_total_hits": True})
        assert answer["_shards"]["failed"] == 0
        searches.append(answer["hits"]["total"]["value"])

    def add(writer: Cluster) -> None:
        number = len(written)
        text = f"{text_number(number)} written"
        written[f"w{number}"] = text
        writer.request("PUT", path_of(alias, "_doc", f"w{number}"), {"text": text})
        time.sleep(0.01)

    def go_on() -> None:
        aim = len(searches) + 35, len(written) + 5
        wait_until(lambda: failures or (len(searches) > aim[0] and len(written) > aim[1]))

    with running(read, cluster.url, failures), running(add, cluster.url, failures):
        done = reindex(cluster, index_name, HashingEncoder(), ReindexSettings(alias=alias, fields=("text",)))
        assert done.switched
        go_on()
        sync(cluster, index_name, HashingEncoder())
        go_on()
        back = rollback(cluster, index_name, copy_back=True)
        go_on()
    assert failures == []
    assert back["returned"]["conflicts"] == 0
    assert len(searches) > 100
    assert min(searches) >= 200
    cluster.refresh(index_name)
    texts = {doc_id: found["text"] for doc_id, found in sources(cluster, index_name).items()}
    assert {doc_id: texts.get(doc_id) for doc_id in written} == written


PARTS = {
    "instock": {"filter": {"term": {"tags": "t1"}}},
    "tenant": {"index_routing": "a", "search_routing": "a", "is_write_index": True},
}


def test_aliases_that_show_a_part_go_with_the_applications_own_and_come_back(cluster, index_name, cli):
    fill_index(cluster, index_name, 9)
    shop, parts = f"{index_name}-shop", {f"{index_name}-{name}": of for name, of in PARTS.items()}
    given = {shop: {"is_write_index": True}, f"{index_name}-whole": {}, **parts}
    for name, definition in given.items():
        add_alias(cluster, index_name, name, **definition)
    before = cluster.index_info(index_name).aliases
    counts = {name: cluster.count(name) for name in given}

    todo = plan(cluster, shop, HashingEncoder(), ReindexSettings(alias=shop))
    assert todo.remarks == [f"alias '{name}', which shows only a part, moves too" for name in sorted(parts)]
    assert todo.details["along"] == tuple(sorted(parts))
    first = reindex(cluster, shop, HashingEncoder(), ReindexSettings(alias=shop))
    assert (first.along, first.cautions) == (todo.details["along"], ())
    second = reindex(cluster, shop, HashingEncoder(salt="other"))
    assert (second.alias, second.along) == (shop, first.along)

    moved = {name: before[name] for name in (shop, *parts)}
    assert cluster.index_info(second.destination).aliases == moved
    assert cluster.index_info(first.destination).aliases == {}
    assert cluster.index_info(index_name).aliases.keys() == {f"{index_name}-whole"}
    assert {name: cluster.count(name) for name in given} == counts
    said = cli(cluster, f"status {shop}").out
    assert f"{index_name}-instock (a part), {shop}, {index_name}-tenant (a part)" in said
    assert f"along {index_name}-instock, {index_name}-tenant" in said

    assert rollback(cluster, shop)["to"] == first.destination
    assert (
        f"alias {shop}, and with it {index_name}-instock, {index_name}-tenant,"
        in cli(cluster, f"rollback {shop}").out
    )
    assert cluster.index_info(index_name).aliases == before


def test_the_way_back_takes_all_aliases_that_the_way_forth_brought(cluster, index_name, cli):
    """Those from one index together, others by commands of their own; none goes with a dropped index."""
    fill_index(cluster, index_name, 5)
    shop, store, hand = (f"{index_name}-{name}" for name in ("shop", "store", "hand"))
    add_alias(cluster, index_name, shop, store)
    for alias in (shop, store, None):
        first = reindex(cluster, index_name, HashingEncoder(), ReindexSettings(alias=alias)).destination
    assert len(cluster.index_info(first).aliases) == 3
    todo = rollback(cluster, shop, dry_run=True)
    assert (todo["alias"], len(todo["along"]), todo["stays"]) == (shop, 2, {})
    assert rollback(cluster, index_name)["along"] == (shop, store)
    assert cluster.index_info(first).aliases == {}
    assert alias_of(cluster, shop) == alias_of(cluster, store) == [index_name]

    other = ReindexSettings(alias=shop)
    reindex(cluster, index_name, HashingEncoder(), other)
    planned = plan(cluster, index_name, HashingEncoder(salt="other"), ReindexSettings(alias=store))
    assert planned.proposal.notes[-1].startswith(f"alias '{shop}' stays on '{first}'")
    second = reindex(cluster, index_name, HashingEncoder(salt="other"), other).destination
    reindex(cluster, index_name, HashingEncoder(salt="other"), ReindexSettings(alias=store))
    cluster.request("POST", "/_aliases", {"actions": [{"add": {"index": second, "alias": hand}}]})
    put_documents(cluster, shop, [20])
    said = cli(cluster, f"rollback {store} --discard --drop").out
    assert f"to move it: hybridr rollback {shop}" in said
    assert f'POST /_aliases {{"actions":[{{"remove":{{"index":"{second}","alias":"{hand}"}}}}' in said
    assert (alias_of(cluster, store), alias_of(cluster, shop)) == ([index_name], [second])
    assert rollback(cluster, shop, copy_back=True)["to"] == first
    assert alias_of(cluster, shop) == [first]
    assert "d20" in sources(cluster, index_name)
    with pytest.raises(NotFound, match="nothing to roll back"):
        rollback(cluster, hand)
    cluster.request("DELETE", path_of(first))


def test_an_alias_of_ours_takes_none_of_the_application_from_its_source(cluster, index_name):
    fill_index(cluster, index_name, 5)
    add_alias(cluster, index_name, f"{index_name}-instock", **PARTS["instock"])
    reindex(cluster, index_name, HashingEncoder())
    rollback(cluster, index_name)
    again = reindex(cluster, index_name, HashingEncoder())
    assert again.along == ()
    assert [caution.partition(":")[0] for caution in again.cautions] == [
        f"alias '{index_name}-instock' shows only a part of '{index_name}' and stays there"
    ]
    assert f"{index_name}-instock" in cluster.index_info(index_name).aliases


def test_the_way_back_over_two_indices_shows_what_clients_wrote(cluster, index_name):
    reindexed(cluster, index_name, 12)
    for connections in (8, 12):
        reindex(cluster, index_name, HashingEncoder(), ReindexSettings(m=connections))
    alias = f"{index_name}-hybridr"
    write_through(cluster, alias)
    there = sources(cluster, alias)
    for older in (2, 1):
        done = rollback(cluster, index_name, copy_back=True)
        assert done["to"] == f"{index_name}-hybridr-{older}"
        assert sources(cluster, alias) == there == sources(cluster, index_name)
        assert {name: done["behind"][name] for name in ("inserts", "updates", "deletes")} == NOTHING
    for doc_id in ("d3", "own"):
        update(cluster, alias, doc_id, text="the newest of a client")
    round_of_sync = sync(cluster, index_name, HashingEncoder())
    assert (round_of_sync.copied, round_of_sync.deleted) == (0, 0)
    assert {sources(cluster, alias)[doc_id]["text"] for doc_id in ("d3", "own")} == {"the newest of a client"}
    cluster.refresh(alias)
    assert cluster.count(alias, {"exists": {"field": "hybridr_vector"}}) == len(there)


NOTHING = {"inserts": 0, "updates": 0, "deletes": 0}


def test_an_older_index_gets_what_the_source_changed_before_the_alias_moves(cluster, index_name, monkeypatch):
    reindexed(cluster, index_name, 12)
    reindex(cluster, index_name, HashingEncoder(), ReindexSettings(m=8))
    put_documents(cluster, index_name, [2, 40], suffix=" later")
    delete(cluster, index_name, "d6")
    sync(cluster, index_name, HashingEncoder())
    alias, seen, older = f"{index_name}-hybridr", list[Any](), f"{index_name}-hybridr-1"
    before_call(monkeypatch, rollback_module, "switch_alias", lambda: seen.append(sources(cluster, older)))
    planned = rollback(cluster, index_name, dry_run=True)["behind"]
    assert {name: planned[name] for name in NOTHING} == {"inserts": 1, "updates": 1, "deletes": 1}
    behind = rollback(cluster, index_name)["behind"]
    assert seen == [sources(cluster, index_name)]
    assert behind == {**NOTHING, "no_vector": 2}
    put_documents(cluster, alias, [2], suffix=" by a client")
    done = sync(cluster, index_name, HashingEncoder())
    assert (done.copied, done.renewed, sources(cluster, alias)["d2"]["text"][-12:]) == (0, 2, " by a client")
    # A reindex reported also what the rollback had copied from the source as written by clients.
    assert reindex(cluster, index_name, HashingEncoder(), ReindexSettings(m=4)).carried["changed"] == 1


def test_what_clients_write_between_the_look_and_the_move_is_not_given_up(
    cluster, index_name, alias, cli, monkeypatch
):
    left = resolve(cluster, alias).name
    before_call(monkeypatch, rollback_module, "switch_alias", lambda: put_documents(cluster, alias, [70]))
    said = cli(cluster, "rollback --drop", index_name).out
    assert f"deleted 1 meanwhile: {left} is kept" in said
    assert "d70" not in sources(cluster, alias)
    with pytest.raises(ClusterError, match=f"changed 1 document in '{left}'"):
        remove(cluster, index_name)
    reindex(cluster, index_name, HashingEncoder(), ReindexSettings(m=8))
    assert "d70" in sources(cluster, alias)


def test_a_write_under_way_while_the_alias_moves_is_kept_and_a_later_one_stays_so(
    cluster, index_name, alias, monkeypatch
):
    put_documents(cluster, alias, [3, 60, 61], suffix=" by a client")
    original = rollback_module.switch_alias

    def switch(cluster: Cluster, alias: str, old: Any, new: str) -> None:
        original(cluster, alias, old, new)
        bulk(cluster, old.name, [{"index": {"_id": "late"}}, {"text": "zephyr"}])
        delete(cluster, old.name, "d8")
        delete(cluster, alias, "d60")
        put_documents(cluster, alias, [3, 61], suffix=" and again")

    monkeypatch.setattr(rollback_module, "switch_alias", switch)
    done = rollback(cluster, index_name, copy_back=True, drop=True)
    assert done["returned"] == {"changed": 4, "deleted": 1, "conflicts": 0, "deletes_known": True}
    assert done["dropped"]
    there = sources(cluster, alias)
    assert there["late"] == {"text": "zephyr"}
    assert not {"d8", "d60"} & there.keys()
    assert {there[doc_id]["text"][-10:] for doc_id in ("d3", "d61")} == {" and again"}


@pytest.mark.parametrize("drop_late", [False, True])
def test_a_dropped_index_leaves_nothing_to_carry_again(cluster, index_name, alias, drop_late):
    put_documents(cluster, alias, [60, 61], suffix=" by a client")
    if not drop_late:
        rollback(cluster, index_name, copy_back=True)
        delete(cluster, alias, "d60")
    reindex(cluster, index_name, HashingEncoder(), ReindexSettings(m=8))
    if drop_late:
        delete(cluster, alias, "d60")
    while cluster.index_info(alias).name != index_name:
        rollback(cluster, index_name, copy_back=True, drop=cluster.index_info(alias).name.endswith("-2"))
    done = reindex(cluster, index_name, HashingEncoder(), ReindexSettings(m=12))
    assert "d60" not in sources(cluster, alias)
    assert sources(cluster, alias) == sources(cluster, index_name)
    assert not done.carried or not any(done.carried.values())


def test_a_field_that_clients_mapped_is_mapped_so_in_the_source(cluster, index_name, alias):
    colour = {"properties": {"colour": {"type": "keyword"}}}
    cluster.request("PUT", path_of(alias, "_mapping"), colour)
    cluster.request("PUT", path_of(alias, "_settings"), {"index.max_result_window": 20_000})
    bulk(cluster, alias, [{"index": {"_id": "own"}}, {"text": "zephyr", "colour": "Dark Red"}])
    todo = plan(cluster, index_name, HashingEncoder(), ReindexSettings(m=8))
    assert any("of '" in remark and "index.max_result_window" in remark for remark in todo.remarks)
    rollback(cluster, index_name, copy_back=True)
    assert cluster.count(alias, {"term": {"colour": "Dark Red"}}) == 1
    assert cluster.index_info(index_name).properties["colour"] == {"type": "keyword"}


def test_documents_that_never_arrived_are_not_deleted_in_the_source(cluster, index_name, alias):
    delete(cluster, alias, "d5")
    put_documents(cluster, index_name, range(60, 64))
    position = settled_position(cluster, index_name)
    write_record(cluster, resolve(cluster, alias).name, synced=position.seq_no)  # as after a read that missed
    for verb in (rollback, remove):
        with pytest.raises(ClusterError, match="lacks 5 documents .* at most 1 were .* never arrived"):
            verb(cluster, index_name, copy_back=True)
    assert sources(cluster, index_name).keys() >= {"d5", "d60", "d63"}
    assert resolve(cluster, alias).name != index_name


def test_what_is_discarded_takes_nothing_from_the_older_index(cluster, index_name, alias):
    put_documents(cluster, alias, [60, 61], suffix=" by a client")
    reindex(cluster, index_name, HashingEncoder(), ReindexSettings(m=8))
    delete(cluster, alias, "d60")
    rollback(cluster, index_name, discard=True)
    assert {"d60", "d61"} <= sources(cluster, alias).keys()
