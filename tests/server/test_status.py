"""Status, remove and clean on a real node: what is told is so, and nothing is left or lost."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.writing import Action, Rejects, rejects_of
from hybridr.encoders.opening import load_encoder
from hybridr.errors import ClusterError, NotFound
from hybridr.files.local import append_private
from hybridr.files.remembered import REJECTS, SHADOWS, delete_texts, file_of_index, local_texts, remember_text
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.targets import Lag
from hybridr.relevance.answering import calibrate
from hybridr.search.checks import encoder_for, promote
from hybridr.status.standing import remove, status
from support.corpus import bulk, delete, fill_index, put_documents, reindexed_alias, sources
from support.hashing import HashingEncoder


@pytest.fixture
def alias(cluster: Cluster, index_name: str) -> str:
    return reindexed_alias(cluster, index_name, 20)


def test_status_counts_what_is_behind(cluster, index_name, alias):
    (before,) = status(cluster, index_name).holdings
    assert (before.documents, before.current, before.lag) == (20, 20, Lag(0, 0, 0))
    put_documents(cluster, index_name, range(18, 23), suffix=" changed")
    delete(cluster, index_name, "d1")
    put_documents(cluster, alias, [5, 6], suffix=" by a client")
    bulk(cluster, alias, [{"index": {"_id": "own"}}, {"text": "zephyr"}])
    delete(cluster, alias, "d7")
    found = status(cluster, alias)
    (holding,) = found.holdings
    assert (found.source, found.documents) == (index_name, 22)
    assert (holding.documents, holding.current) == (20, 15)
    assert holding.lag == Lag(3, 2, 1)
    assert holding.writes == {"changed": 3, "deleted": 1, "conflicts": 0, "deletes_known": True}
    assert holding.aliases == [alias]
    assert holding.encoder == HashingEncoder().fingerprint
    assert holding.encoder_folder is None
    assert [event["event"] for event in holding.history] == ["filled", "switched"]
    sync(cluster, index_name, HashingEncoder())
    (after,) = status(cluster, index_name).holdings
    assert (after.documents, after.current, after.lag) == (22, 22, Lag(0, 0, 0))


def test_status_of_what_was_never_reindexed_rolled_back_or_lost_its_source(cluster, index_name):
    fill_index(cluster, index_name, 3)
    assert status(cluster, index_name).holdings == []
    with pytest.raises(NotFound):
        status(cluster, f"{index_name}-missing")
    destination = reindex(cluster, index_name, HashingEncoder()).destination
    rollback(cluster, index_name)
    (left,) = status(cluster, index_name).holdings
    assert (left.aliases, left.history[-1]["event"]) == ([], "rolled back")
    cluster.request("DELETE", path_of(index_name))
    for name in (index_name, destination):
        found = status(cluster, name)
        assert (found.source, found.documents) == (index_name, None)
        assert (found.holdings[0].lag, found.holdings[0].writes) == (None, None)
    # The same in a cluster where a snapshot of it was restored under another name.
    copy = f"{index_name}-restored"
    cluster.request("PUT", path_of(destination, "_settings"), {"index.blocks.write": True})
    cluster.request("PUT", path_of(destination, "_clone", copy), {"settings": {"index.blocks.write": None}})
    assert [held.index for held in status(cluster, copy).holdings] == [copy]
    assert "holds the only copy" in remove(cluster, copy, dry_run=True)["refusal"]["message"]
    assert remove(cluster, copy, discard=True)["indices"] == [copy]
    assert cluster.exists(destination)


def test_status_knows_the_encoders_folder(cluster, index_name, tiny, cli):
    fill_index(cluster, index_name, 3)
    cli(cluster, f"reindex {index_name} --encoder {tiny}")
    (shown,) = cli(cluster, f"status {index_name} --json").json["holdings"]
    assert shown["encoder_folder"] == str(tiny)
    told = cli(cluster, f"status {index_name}").out
    assert "3 of 3 documents current (100.0%)" in told
    assert "behind the source: 0 inserts, 0 updates, 0 deletes" in told


def everything(cluster: Cluster) -> dict[str, Any]:
    return {info.name: (sources(cluster, info.name), info.aliases) for info in cluster.indices("t-*")}


@pytest.mark.parametrize("own", [False, True], ids=["hybridr's alias", "the user's alias"])
def test_remove_leaves_what_was_there_before(cluster, index_name, own, tmp_path):
    fill_index(cluster, index_name, 6)
    name = f"{index_name}-live" if own else None
    if own:
        add = {"index": index_name, "alias": name, "filter": {"term": {"tags": "t1"}}}
        cluster.request("POST", "/_aliases", {"actions": [{"add": add}]})
    before = everything(cluster)
    settings = ReindexSettings(alias=name)
    first = reindex(cluster, index_name, HashingEncoder(), settings)
    second = reindex(cluster, index_name, HashingEncoder(salt="other"), settings)
    rejects_of(cluster.index_info(first.destination)).add(Action("d1", b'{}\n{"text": "secret"}\n'), "reason")
    promote(cluster, index_name, tmp_path / "gone")
    planned = remove(cluster, index_name, dry_run=True)
    assert planned["indices"] == [first.destination, second.destination]
    assert everything(cluster) != before
    assert remove(cluster, second.alias)["removed"]
    assert everything(cluster) == before
    assert local_texts(index_name) == []
    assert encoder_for(cluster.index_info(index_name), None).dim == 384
    with pytest.raises(NotFound, match="hybridr made nothing"):
        remove(cluster, index_name)


def test_remove_after_a_rollback_takes_the_alias_off_the_source(cluster, index_name, alias):
    rollback(cluster, index_name)
    remove(cluster, index_name)
    assert not cluster.exists(alias)
    assert cluster.exists(index_name)


def test_remove_refuses_to_lose_documents(cluster, index_name, alias):
    cluster.request("DELETE", path_of(index_name))
    with pytest.raises(ClusterError, match="holds the only copy"):
        remove(cluster, index_name)
    assert cluster.count(alias) == 20
    assert remove(cluster, index_name, discard=True)["removed"]
    assert not cluster.exists(alias)


def test_clean_lists_then_deletes_text_of_documents(own_home, tmp_path, cli):
    rejects, other = (
        Rejects(file_of_index(REJECTS, name, "u1")) for name in ("t-cleaned-hybridr-1", "t-cleaned-too")
    )
    for _ in range(2):
        rejects.add(Action("d1", b'{}\n{"text": "secret"}\n'), "reason")
    assert len(rejects.file.read_text().splitlines()) == 1
    assert rejects.file.stat().st_mode & 0o777 == 0o600
    other.add(Action("d1", b"{}\n{}\n"), "reason")
    cache = tmp_path / "tokens"
    cache.mkdir()
    (cache / "ids.bin").write_bytes(b"12345")
    remember_text(cache, "token cache", parts=["ids.bin"])
    assert (own_home / "state" / "texts.json").stat().st_mode & 0o777 == 0o600
    cli(None, "clean t-cleaned", code=2)
    told = cli(None, "clean --dry-run").out
    assert f"{cache} (token cache, 5 bytes)" in told
    assert str(rejects.file) in told
    assert cache.exists()
    assert str(other.file) not in cli(None, "clean t-cleaned --dry-run").out
    assert len(cli(None, "clean t-cleaned --yes --json").json["files"]) == 1
    assert (cache.exists(), rejects.file.exists(), other.file.exists()) == (True, False, True)
    cli(None, "clean --yes")
    assert local_texts() == []


def test_removal_leaves_files_of_another_cluster_s_index_of_the_same_name(cluster, index_name, alias, cli):
    generation = f"{index_name}-hybridr-1"
    own = [rejects_of(cluster.index_info(name)).file for name in (index_name, generation)]
    own.append(file_of_index(SHADOWS, index_name, cluster.index_info(index_name).uuid))
    others = [
        file_of_index(folder, name, "u1")
        for folder in (REJECTS, SHADOWS)
        for name in (index_name, generation)
    ]
    for file in (*own, *others):
        append_private(file, "{}")
    shown = status(cluster, index_name)
    assert {text.path for text in shown.files} == set(own)
    assert {text.path for text in shown.other_files} == set(others)
    assert f"hybridr clean '{generation}#u1' deletes it" in cli(cluster, f"status {index_name}").out
    told = cli(cluster, f"remove {index_name} --yes").out
    assert all(f"{file}: deleted" in told for file in own)
    assert all(f"{file}: stays, it belongs to another index of this name" in told for file in others)
    assert [file.exists() for file in (*own, *others)] == [False] * 3 + [True] * 4
    with pytest.raises(NotFound):
        remove(cluster, index_name)
    delete_texts(local_texts(index_name))


@pytest.mark.usefixtures("few_terms")
def test_what_is_not_built_yet_is_told_by_status_and_search(cluster, index_name, tiny, cli):
    """The alias moves before the table of terms and the calibration are there."""
    fill_index(cluster, index_name, 30)
    encoder = load_encoder(tiny)
    for term_table, missing in ((False, "soft terms and confidence"), (True, "confidence")):
        done = reindex(cluster, index_name, encoder, ReindexSettings(term_table=term_table))
        assert done.switched
        assert f"go without {missing}" in cli(cluster, f"status {index_name}").out
        assert f"go without {missing}" in cli(cluster, f"search {index_name} anchor --encoder {tiny}").err
    calibrate(cluster, done.destination, encoder)
    assert status(cluster, index_name).holdings[0].unfinished == ""
