from __future__ import annotations

import base64
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import FittedTable
from hybridr.errors import AccessDenied, ClusterError, Unreachable
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.terms import storage
from hybridr.indexing.terms.storage import hidden_index, open_term_table
from hybridr.status.leftovers import rollback
from hybridr.status.standing import remove, status
from support.corpus import bulk, clone, fill_index, reindexed
from support.hashing import HashingEncoder
from support.hidden_tables import forbidding
from support.in_place_index import filled_index

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("small_parts")]


@pytest.fixture
def info(cluster: Cluster, index_name: str) -> IndexInfo:
    return cluster.index_info(reindexed(cluster, index_name, 40).destination)


def named_by(info: IndexInfo) -> FittedTable:
    assert info.record.term_table is not None
    return info.record.term_table


def parts_there(cluster: Cluster, info: IndexInfo) -> list[str]:
    return sorted(storage.stored_parts(cluster, hidden_index(info), {info.uuid}))


def test_another_machine_finds_the_table_in_the_cluster(cluster, info, other_machine, monkeypatch):
    here = open_term_table(cluster, info)
    assert named_by(info).parts > 2
    assert len(parts_there(cluster, info)) == named_by(info).parts
    other_machine()
    there = open_term_table(cluster, info)
    assert there.fingerprint == here.fingerprint == named_by(info).fingerprint
    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "request", None)
        assert open_term_table(cluster, info) is there
        storage._open.clear()
        assert open_term_table(cluster, info) is not None, "the copy on this machine is enough"


def test_an_index_without_a_table_asks_nobody(cluster, index_name, monkeypatch):
    fill_index(cluster, index_name, 3)
    info = cluster.index_info(index_name)
    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "request", None)
        assert open_term_table(cluster, info) is None


def test_what_is_told_and_used_of_a_table(cluster, index_name, info, other_machine):
    other = IndexInfo(info.name, info.settings, dict(info.mappings), info.aliases)
    meta = info.mappings["_meta"]
    other.mappings["_meta"] = {**meta, "hybridr": {**meta["hybridr"], "encoder": "0" * 64}}
    assert open_term_table(cluster, info) is not None
    assert open_term_table(cluster, other) is None

    # Applications do not meet the hidden index.
    home = hidden_index(info)
    assert cluster.exists(home)
    assert home not in {name for pattern in ("*", "_all") for name in cluster.request("GET", f"/{pattern}")}
    asked = {"query": {"exists": {"field": "index_uuid"}}, "size": 0}
    assert cluster.request("POST", "/_search", asked)["hits"]["total"]["value"] == 0
    assert cluster.request("POST", "/*/_count", {"query": asked["query"]})["count"] == 0

    # Status says where the table is.
    [holding] = status(cluster, index_name).holdings
    table = holding.sidecar_states["term_table"]
    assert table.places == ("cluster", "machine")
    assert (table.documents, table.terms) == (40, named_by(info).terms)
    other_machine()
    assert status(cluster, index_name).to_json()["holdings"][0]["term_table"]["places"] == ("cluster",)
    bulk(cluster, hidden_index(info), [{"delete": {"_id": parts_there(cluster, info)[0]}}])
    [holding] = status(cluster, index_name).holdings
    assert holding.sidecar_states["term_table"].places == ()


NO_PARTS = [
    None,
    5,
    "",
    "not base64 at all!",
    "機翼",
    "A" * 3_000,
    base64.b64encode(b"x" * 600).decode(),
    ["QQ=="],
]


def test_what_a_stranger_writes_there_is_not_taken(cluster, info, other_machine):
    part = path_of(hidden_index(info), "_doc", f"{named_by(info).fingerprint}-1")
    for data in NO_PARTS:
        other_machine()
        cluster.request("PUT", part, {"data": data})
        assert open_term_table(cluster, info) is None, data
    other_machine()
    cluster.request("DELETE", part, params={"refresh": "true"})
    assert open_term_table(cluster, info) is None


def test_a_table_that_is_nowhere_is_looked_for_now_and_then(cluster, info, other_machine, sent, monkeypatch):
    bulk(cluster, hidden_index(info), [{"delete": {"_id": part}} for part in parts_there(cluster, info)])
    other_machine()
    sent.clear()
    assert open_term_table(cluster, info) is open_term_table(cluster, info) is None
    assert len(sent) == 1
    monkeypatch.setattr(storage, "MISSING_S", 0.0)
    storage._missing.update(dict.fromkeys(storage._missing, 0.0))
    assert open_term_table(cluster, info) is None
    assert len(sent) == 2


def test_a_table_that_cannot_be_read_now_is_no_reason_to_rank_without_it(
    cluster, info, other_machine, monkeypatch
):
    other_machine()
    for failure in (Unreachable("some shards did not answer"), AccessDenied("forbidden (403)", status=403)):

        def request(*_: Any, failure: ClusterError = failure, **__: Any) -> Any:
            raise failure

        with monkeypatch.context() as patch:
            patch.setattr(Cluster, "request", request)
            for _ in range(2):
                with pytest.raises(type(failure), match=str(failure)[:9]):
                    open_term_table(cluster, info)
    assert open_term_table(cluster, info) is not None


def test_removal_takes_the_table_away_and_its_hidden_index_with_it(cluster, index_name):
    for other in ("-a", "-b"):
        reindexed(cluster, index_name + other, 20)
    first, second = (cluster.index_info(f"{index_name}{other}-hybridr-1") for other in ("-a", "-b"))
    folders = [storage.folder_of_table(named_by(one).fingerprint) for one in (first, second)]
    assert all(folder.is_dir() for folder in folders)
    shown = remove(cluster, first.record.source, dry_run=True)
    assert shown["term_tables"] == [named_by(first).fingerprint]
    assert parts_there(cluster, first)
    assert remove(cluster, first.record.source)["term_tables"] == [named_by(first).fingerprint]
    assert not parts_there(cluster, first)
    assert parts_there(cluster, second)
    assert [folder.is_dir() for folder in folders] == [False, True]
    assert [cluster.exists(hidden_index(one)) for one in (first, second)] == [False, True]
    remove(cluster, second.record.source)
    assert not cluster.exists(hidden_index(second))


def test_a_copy_of_an_index_keeps_the_table_alive(cluster, index_name, info):
    clone(cluster, info.name, f"{index_name}-copy")
    copy = cluster.index_info(f"{index_name}-copy")
    assert copy.record.term_table == info.record.term_table
    remove(cluster, index_name)
    assert len(parts_there(cluster, info)) == named_by(info).parts
    assert open_term_table(cluster, copy) is not None
    storage.drop_term_tables(cluster, [copy])
    assert open_term_table(cluster, copy) is not None, "it still names it"


def test_rollback_that_drops_an_index_drops_its_table(cluster, index_name, info):
    rollback(cluster, index_name)
    assert parts_there(cluster, info)
    reindex(cluster, index_name, HashingEncoder())
    rollback(cluster, index_name, drop=True)
    assert not parts_there(cluster, info)
    assert not storage.folder_of_table(named_by(info).fingerprint).exists()


def test_removal_in_place_takes_the_table_away(cluster, index_name):
    filled_index(cluster, index_name)
    info = cluster.index_info(index_name)
    assert parts_there(cluster, info)
    remove(cluster, index_name)
    assert cluster.index_info(index_name).record.term_table is None
    assert not parts_there(cluster, info)


def test_removal_without_rights_for_the_hidden_index_removes_the_rest(cluster, index_name, info, monkeypatch):
    monkeypatch.setattr(Cluster, "request", forbidding(Cluster.request))
    remove(cluster, index_name)
    assert not cluster.exists(info.name)
    monkeypatch.undo()
    assert parts_there(cluster, info), "what may not be deleted stays"


def test_who_may_not_see_all_indices_deletes_no_table(cluster, index_name, info, monkeypatch, cli):
    """A copy could name it that this user does not see, and the command says that it stays."""
    indices = Cluster.indices

    def forbidding_all(self: Cluster, pattern: str) -> list[IndexInfo]:
        if pattern == "*":
            raise AccessDenied("the cluster forbids it (403): no permissions", status=403)
        return indices(self, pattern)

    monkeypatch.setattr(Cluster, "indices", forbidding_all)
    assert "an index that this user cannot see may use it" in cli(cluster, f"remove {index_name} --yes").out
    assert not cluster.exists(info.name)
    assert parts_there(cluster, info)
    monkeypatch.undo()
    assert (
        "an index that this user cannot see may use it" not in cli(cluster, f"remove {index_name} --yes").out
    )
    assert not parts_there(cluster, info)
