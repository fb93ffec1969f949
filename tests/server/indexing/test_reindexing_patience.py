"""Lost answers, and two processes that work on one destination."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from hybridr import ReindexSettings, connect
from hybridr.cluster import connection
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import read_documents
from hybridr.cluster.writing import Action, Rejects
from hybridr.errors import ClusterError, Unreachable
from hybridr.indexing import switching
from hybridr.indexing.job import Filling, Job, Pending, stored_states
from hybridr.indexing.recipe import TextRecipe
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.targets import beside
from hybridr.indexing.targets.beside import settle_conflicts
from support.corpus import fill_index, put_documents, reindexed, sources
from support.hashing import HashingEncoder


def test_every_first_answer_is_lost(cluster, index_name, monkeypatch):
    """Each request is carried out, but the connection breaks before it is answered; even the alias's move."""
    fill_index(cluster, index_name, 20)
    mine = connect(cluster.url)
    lost: set[tuple[str, str]] = set()
    send = mine.client.send

    def breaking(method: str, path: str, *given: Any) -> Any:
        answer = send(method, path, *given)
        if (method, path) in lost:
            return answer
        lost.add((method, path))
        raise Unreachable("the connection broke")

    monkeypatch.setattr(mine.client, "send", breaking)
    monkeypatch.setattr(connection, "RETRY_WAIT_S", (0.02, 20.0))
    for salt in ("", "another"):  # the second time the alias is taken off the first destination
        lost.clear()
        done = reindex(mine, index_name, HashingEncoder(salt=salt), ReindexSettings(patience_s=30))
        assert {("POST", "/_aliases"), ("PUT", path_of(done.destination))} <= lost
        assert (done.switched, done.documents) == (True, 20)
        assert [info.name for info in cluster.indices(done.alias)] == [done.destination]
        assert sources(cluster, done.destination) == sources(cluster, index_name)


def test_an_alias_that_somebody_moves_elsewhere_is_left_there(cluster, index_name, monkeypatch):
    first = reindexed(cluster, index_name, 3)
    original = switching.switch_alias

    def switch(cluster: Cluster, alias: str, *given: Any) -> None:
        add = {"add": {"index": index_name, "alias": alias}}
        cluster.request("POST", "/_aliases", {"actions": [{"remove": {"index": "*", "alias": alias}}, add]})
        original(cluster, alias, *given)

    monkeypatch.setattr(switching, "switch_alias", switch)
    with pytest.raises(ClusterError, match=f"somebody else has moved the alias '.*' to '{index_name}'"):
        reindex(cluster, index_name, HashingEncoder(salt="other"))
    assert [info.name for info in cluster.indices(first.alias)] == [index_name]


def test_two_at_once_make_one_destination(cluster, index_name, monkeypatch):
    fill_index(cluster, index_name, 200)
    both, original, done = threading.Barrier(2, timeout=60), beside.Beside.begin, []
    waited = threading.local()

    def begin(*given: Any) -> Any:
        if not hasattr(waited, "once"):
            waited.once = both.wait()  # both have planned to make the same index
        return original(*given)

    monkeypatch.setattr(beside.Beside, "begin", begin)

    def run() -> None:
        settings = ReindexSettings(read_documents=20, accept_rejects=True)
        encoder = HashingEncoder(refused=("n7", "n17", "n27"))
        done.append(reindex(connect(cluster.url), index_name, encoder, settings))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(each.destination, each.switched, each.rejected) for each in done] == [
        (f"{index_name}-hybridr-1", True, 3)
    ] * 2
    assert len(cluster.indices(f"{index_name}-hybridr-*")) == 1


def test_fill_settings_that_a_killed_run_left_on_a_live_index(cluster, index_name):
    done = reindexed(cluster, index_name, 3)
    path = path_of(done.destination, "_settings")
    cluster.request("PUT", path, {"index": {"refresh_interval": "-1", "number_of_replicas": 0}})
    assert reindex(cluster, index_name, HashingEncoder()).switched
    assert "index.refresh_interval" not in cluster.index_info(done.destination).settings


def test_a_live_index_whose_owner_wants_no_refresh_keeps_its_replicas(cluster, index_name):
    done = reindexed(cluster, index_name, 3)
    path = path_of(done.destination, "_settings")
    cluster.request("PUT", path, {"index": {"refresh_interval": "-1", "number_of_replicas": 1}})
    put_documents(cluster, index_name, [5])
    replicas = []

    def look(_: object) -> None:
        replicas.append(cluster.index_info(done.destination).settings["index.number_of_replicas"])

    assert reindex(cluster, index_name, HashingEncoder(before=look)).destination == done.destination
    assert set(replicas) == {"1"}
    cluster.request("PUT", path, {"index": {"number_of_replicas": 0}})


def test_an_old_page_does_not_replace_what_another_process_wrote(cluster, index_name, monkeypatch):
    fill_index(cluster, index_name, 3)
    old = next(each for each in read_documents(cluster, index_name) if each.doc_id == "d1")
    put_documents(cluster, index_name, [1], suffix=" newer")
    done = reindex(cluster, index_name, HashingEncoder())
    recipe = TextRecipe(HashingEncoder(), ReindexSettings(), ("text",))
    job = Job(cluster, index_name, done.destination, recipe, Rejects(Path("unused")))
    answers = iter([{}])  # at first it looks as if the copy had been deleted
    monkeypatch.setattr(beside, "stored_states", lambda *given: next(answers, stored_states(*given)))
    filling = Filling()
    (encoded,) = recipe.read(["an older text"])
    settle_conflicts(job, [Pending(old, None, encoded)], filling)
    assert filling.rejected == 0
    cluster.refresh(done.destination)
    assert sources(cluster, done.destination)["d1"]["text"].endswith(" newer")


def test_rejects_of_two_at_once_and_of_a_killed_run_stay(tmp_path):
    def ids(*given: str) -> None:
        assert sorted(Rejects(file).ids()) == sorted(given)

    def action(doc_id: str) -> Action:
        return Action(doc_id, b"{}\n{}\n")

    file = tmp_path / "rejects.jsonl"
    before, one, other = Rejects(file), Rejects(file), Rejects(file)
    before.add(action("old"), "reason")
    one.clear()
    one.add(action("a"), "reason")
    other.clear()
    ids("old", "a")
    other.add(action("a"), "reason")
    other.add(action("b"), "reason")
    assert (one.ids(), other.ids()) == (["a"], ["a", "b"])
    other.save()
    ids("a", "b")
    assert file.stat().st_mode & 0o777 == 0o600
    one.clear()
    one.save()
    assert not file.exists()
