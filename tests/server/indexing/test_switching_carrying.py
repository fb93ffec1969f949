"""The second reindex: whatever clients wrote into an index with vectors is in the next one, or the command
refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.errors import ClusterError
from hybridr.indexing import switching
from hybridr.indexing.reindexing import ReindexResult, reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.targets import beside
from hybridr.indexing.verification import verify
from hybridr.status.standing import remove, status
from support.commands import before_call, with_interruption
from support.corpus import bulk, delete, fill_index, put_documents, sources, update
from support.hashing import HashingEncoder

ENCODER, OTHER = HashingEncoder(), HashingEncoder(salt="other")
TWO_SHARDS: dict[str, Any] = {"number_of_replicas": 0, "number_of_shards": 2}


@pytest.fixture
def name(cluster: Cluster, index_name: str) -> str:
    """Name an index with 20 documents."""
    fill_index(cluster, index_name, 20, settings=TWO_SHARDS)
    return index_name


@pytest.fixture
def alias(cluster: Cluster, name: str) -> str:
    """Name what clients of its first copy write to."""
    return again(cluster, name, ENCODER).alias or ""


def again(cluster: Cluster, name: str, encoder: HashingEncoder = OTHER, **settings: Any) -> ReindexResult:
    return reindex(cluster, name, encoder, ReindexSettings(fields=("text",), term_table=False, **settings))


def write_through(cluster: Cluster, alias: str) -> None:
    """An insert, an update of the whole and of a part, and a delete."""
    bulk(cluster, alias, [{"index": {"_id": "own"}}, {"text": "zephyr by a client"}])
    put_documents(cluster, alias, [3], suffix=" by a client")
    update(cluster, alias, "d4", price=99.0)
    delete(cluster, alias, "d5")


def texts(cluster: Cluster, index: str) -> dict[str, dict[str, Any]]:
    cluster.refresh(index)
    return sources(cluster, index)


def test_a_second_reindex_shows_the_alias_what_it_showed(cluster, name):
    again(cluster, name, ENCODER, alias=f"{name}-app")
    write_through(cluster, f"{name}-app")
    before, source = texts(cluster, f"{name}-app"), texts(cluster, name)
    done = again(cluster, name, alias=f"{name}-app")
    assert done.destination == f"{name}-hybridr-2"
    assert done.carried == {"changed": 3, "deleted": 1, "conflicts": 0}
    assert done.from_clients == 3
    assert texts(cluster, f"{name}-app") == before
    assert texts(cluster, name) == source, "the source stays as it is"
    assert verify(cluster, name, OTHER).problems() == []
    first, second = status(cluster, name).holdings
    none = {"changed": 0, "deleted": 0, "conflicts": 0, "deletes_known": True}
    assert first.writes == none
    assert second.writes == none | {"changed": 3, "deleted": 1}
    assert second.current == second.documents == 20


def test_removal_refuses_while_any_generation_holds_what_clients_wrote_before_a_sync(
    cluster, name, alias, cli
):
    write_through(cluster, alias)
    again(cluster, name)
    expected = texts(cluster, alias)
    with pytest.raises(ClusterError, match="changed 3 documents in .*-hybridr-2' and deleted 1") as said:
        remove(cluster, name)
    assert "--copy-back" in str(said.value.hint)
    assert cli(cluster, f"remove {name} --yes", code=1).out == "", "refused before anything is listed"
    assert texts(cluster, alias) == expected
    said = cli(cluster, f"remove {name} --yes --copy-back").out
    assert "3 documents copied back to the source, 1 deleted there" in said
    assert texts(cluster, name) == expected
    assert [info.name for info in cluster.indices(f"{name}*")] == [name]


def test_written_by_name_into_an_index_that_was_left(cluster, name, alias):
    write_through(cluster, alias)
    again(cluster, name)
    left = f"{name}-hybridr-1"
    put_documents(cluster, left, [3, 7], suffix=" late")
    bulk(cluster, left, [{"index": {"_id": "late"}}, {"text": "yellow"}])
    delete(cluster, left, "d8")
    delete(cluster, left, "own")
    with pytest.raises(ClusterError, match="changed 3 documents in .*-hybridr-1' and deleted 1"):
        remove(cluster, name)
    assert status(cluster, name).holdings[0].writes == {
        "changed": 3,
        "deleted": 1,
        "conflicts": 0,
        "deletes_known": True,
    }
    sync(cluster, name, OTHER)
    shown = texts(cluster, alias)
    assert (shown["d3"]["text"][-5:], shown["d7"]["text"][-5:], shown["late"]) == (
        " late",
        " late",
        {"text": "yellow"},
    )
    assert not {"d8", "own", "d5"} & shown.keys()
    assert not any(status(cluster, name).holdings[0].writes[one] for one in ("changed", "deleted"))
    assert verify(cluster, name, OTHER).problems() == []


def test_the_same_reindex_again_keeps_what_clients_wrote(cluster, name, alias):
    write_through(cluster, alias)
    put_documents(cluster, name, [9], suffix=" by the source")
    delete(cluster, name, "d10")
    done = again(cluster, name, ENCODER)
    assert done.destination == f"{name}-hybridr-1"
    shown = texts(cluster, alias)
    assert {"own", "d3"} <= shown.keys()
    assert not {"d5", "d10"} & shown.keys()
    assert shown["d9"]["text"].endswith(" by the source")
    assert verify(cluster, name, ENCODER).problems() == []


def test_verify_and_status_tell_the_same_after_a_delete(cluster, name, alias):
    delete(cluster, alias, "d5")
    for _ in range(2):
        found = verify(cluster, name, ENCODER)
        assert found.problems() == []
        assert [one.looked_at for one in found.findings if one.name == "deleted by clients"] == [1]
        (held,) = status(cluster, name).holdings
        assert (held.writes["deleted"], held.lag and held.lag.inserts) == (1, 0)
        sync(cluster, name, ENCODER)
    put_documents(cluster, name, [5], suffix=" changed since")
    assert [line[:7] for line in verify(cluster, name, ENCODER).problems()] == ["count: ", "missing"]
    sync(cluster, name, ENCODER)
    assert verify(cluster, name, ENCODER).problems() == []


def test_back_and_forth(cluster, name, alias):
    """A rollback is not refused for what the older index has; what came later is in both afterwards."""
    write_through(cluster, alias)
    again(cluster, name)
    assert rollback(cluster, name)["writes"]["changed"] == 0
    again(cluster, name)
    put_documents(cluster, alias, [3, 6], suffix=" later")
    delete(cluster, alias, "own")
    expected = texts(cluster, alias)
    with pytest.raises(ClusterError, match="changed 2 documents .* deleted 1"):
        rollback(cluster, name)
    assert rollback(cluster, name, copy_back=True)["to"] == f"{name}-hybridr-1"
    assert texts(cluster, alias) == expected
    sync(cluster, name, ENCODER)
    assert texts(cluster, alias) == expected
    assert verify(cluster, name, ENCODER).problems() == []


def test_written_while_the_alias_moves(cluster, name, alias, monkeypatch):
    write_through(cluster, alias)
    bulk(cluster, alias, [{"index": {"_id": "other"}}, {"text": "velvet"}])
    original = switching.switch_alias

    def switch(*arguments: Any) -> None:
        put_documents(cluster, alias, [11], suffix=" before")
        original(*arguments)
        left = f"{name}-hybridr-1"
        put_documents(cluster, left, [3, 12], suffix=" under way")
        delete(cluster, left, "d13")
        delete(cluster, left, "own")
        put_documents(cluster, alias, [14], suffix=" after")

    monkeypatch.setattr(switching, "switch_alias", switch)
    again(cluster, name)
    shown = texts(cluster, alias)
    assert shown["d11"]["text"].endswith(" before")
    assert all(shown[one]["text"].endswith(" under way") for one in ("d3", "d12"))
    assert shown["d14"]["text"].endswith(" after")
    assert not {"d5", "d13", "own"} & shown.keys()
    assert shown["other"] == {"text": "velvet"}


def test_an_older_index_that_is_filled_again_from_a_later_one(cluster, name, alias):
    """What was carried there bears the number of a later index."""
    again(cluster, name)
    bulk(cluster, alias, [{"index": {"_id": "own"}}, {"text": "zephyr"}])
    delete(cluster, alias, "d5")
    expected = texts(cluster, alias)
    assert again(cluster, name, ENCODER).destination == f"{name}-hybridr-1"
    assert texts(cluster, alias) == expected
    assert verify(cluster, name, ENCODER).problems() == []


def test_verify_asks_for_words_that_the_index_has(cluster, name):
    """The longest text of the source is no longer in the index, since a client changed it there."""
    bulk(cluster, name, [{"index": {"_id": "long"}}, {"text": "unheard word " * 9}])
    alias = again(cluster, name, ENCODER).alias or ""
    bulk(cluster, alias, [{"index": {"_id": "long"}}, {"text": "short"}])
    sync(cluster, name, ENCODER)
    assert verify(cluster, name, ENCODER).problems() == []


def test_copied_back_twice_without_a_round_between(cluster, name, alias):
    """What hybridr copied to the source is no change of the source; what others write there is one."""
    again(cluster, name)
    put_documents(cluster, alias, [3, 4, 5, 6], suffix=" first")
    assert rollback(cluster, name, copy_back=True)["returned"]["changed"] == 4
    put_documents(cluster, alias, [3], suffix=" second")
    put_documents(cluster, alias, [5], suffix=" second")
    delete(cluster, alias, "d4")
    put_documents(cluster, name, [5], suffix=" by the source")
    expected = texts(cluster, alias)
    done = rollback(cluster, name, copy_back=True)
    assert done["returned"] == {"changed": 1, "deleted": 1, "conflicts": 1, "deletes_known": True}
    shown = texts(cluster, name)
    assert shown["d5"]["text"].endswith(" by the source")
    assert shown | {"d5": expected["d5"]} == expected


@pytest.mark.parametrize("copy_back", [False, True], ids=["a round", "a way back"])
def test_written_after_a_way_back(cluster, name, alias, copy_back, cli):
    """`sync`, or `remove` that copies back, keeps what clients wrote and deleted after a copy back."""
    again(cluster, name)
    put_documents(cluster, alias, [3, 4], suffix=" first")
    rollback(cluster, name, copy_back=True)
    put_documents(cluster, alias, [3], suffix=" second")
    delete(cluster, alias, "d4")
    expected = texts(cluster, alias)
    if copy_back:
        cli(cluster, f"remove {name} --yes --copy-back")
        assert texts(cluster, name) == expected
    else:
        sync(cluster, name, ENCODER)
        assert texts(cluster, alias) == expected
        assert not cluster.index_info(alias).record.taken
        assert verify(cluster, name, ENCODER).problems() == []


def test_removal_names_what_both_sides_changed(cluster, name, alias):
    numbers = list(range(1, 8))
    put_documents(cluster, alias, numbers, suffix=" by a client")
    put_documents(cluster, name, numbers, suffix=" by the source")
    put_documents(cluster, alias, [9], suffix=" by a client alone")
    with pytest.raises(ClusterError, match="both changed 7 documents: d1, d2, d3, d4, d5 and 2 more") as said:
        remove(cluster, name, copy_back=True)
    assert f"hybridr remove {name} --discard" in str(said.value.hint)
    assert texts(cluster, name)["d9"]["text"].endswith(" by a client alone")
    for number in numbers[:4]:
        put_documents(cluster, name, [number], suffix=" by a client")
    with pytest.raises(ClusterError, match="both changed 3 documents: d5, d6, d7"):
        remove(cluster, name, copy_back=True)
    remove(cluster, name, discard=True)
    assert texts(cluster, name)["d5"]["text"].endswith(" by the source")
    assert texts(cluster, name)["d1"]["text"].endswith(" by a client")


def test_the_commands_say_what_is_behind_and_what_would_be_refused(cluster, name, alias, cli):
    again(cluster, name)
    put_documents(cluster, name, [100], suffix=" by the source")
    delete(cluster, name, "d9")
    put_documents(cluster, alias, [3, 4], suffix=" by a client")
    at, older = ["--url", cluster.url], f"{name}-hybridr-1"
    said = cli.typed(["remove", name, *at, "--dry-run"]).out
    assert "without --dry-run this is refused: clients changed 2 documents" in said
    assert f"'{name}' does not have that" in said
    assert "refused" not in cli.typed(["remove", name, *at, "--dry-run", "--copy-back"]).out
    assert f"'{older}' does not have that" in cli.typed(["rollback", name, *at], 1).err
    lacks = f"{older} lacks {{}} inserts, 0 updates and {{}} deletes of its source"
    planned = cli.typed(["rollback", name, *at, "--dry-run"]).out
    assert f"{lacks.format(1, 1)}, which it would get first, without vectors, and 0 of its doc" in planned
    said = cli.typed(["rollback", name, *at, "--copy-back"]).out
    assert f"{lacks.format(0, 0)}, and 3 of its documents have no vector yet: hybridr sync {alias}" in said
    (first, _) = status(cluster, name).holdings
    assert first.current == first.documents - 3
    sync(cluster, name, ENCODER)
    assert verify(cluster, name, ENCODER).problems() == []


@pytest.mark.parametrize("begun_before", [False, True])
def test_what_clients_write_where_another_reindex_moved_the_alias_comes_along(
    cluster, name, alias, monkeypatch, begun_before
):
    put_documents(cluster, alias, [3, 4], suffix=" first")
    rival = ReindexSettings(m=12)

    def overtaken() -> None:
        assert reindex(cluster, name, ENCODER, rival).switched
        put_documents(cluster, alias, [3, 50], suffix=" then")
        delete(cluster, alias, "d6")

    if begun_before:
        with monkeypatch.context() as patch:
            patch.setattr(beside, "require_verified", Mock(side_effect=ClusterError("stopped")))
            with pytest.raises(ClusterError, match="stopped"):
                reindex(cluster, name, ENCODER, rival)
    before_call(monkeypatch, beside, "require_verified", overtaken, once=True)
    done = reindex(cluster, name, ENCODER, ReindexSettings(m=8))
    there = texts(cluster, alias)
    assert done.switched
    assert {doc_id: there[doc_id]["text"][-5:] for doc_id in ("d3", "d50")} == {"d3": " then", "d50": " then"}
    assert "d6" not in there
    remove(cluster, name, copy_back=True)
    assert texts(cluster, name) == there


def before_request(cluster: Cluster, ending: str, act: Callable[[Any], Any]) -> Cluster:
    """Return a connection that calls `act` once, with the body, right before a request to such a path."""
    return with_interruption(cluster, lambda _, path: path.endswith(ending), act)


def test_of_two_that_make_the_alias_the_later_one_has_it_alone(cluster, name):
    alias = f"{name}-hybridr"

    def overtaken(_: Any) -> None:
        assert again(cluster, name, ENCODER, m=8).switched
        put_documents(cluster, alias, [3, 50], suffix=" by a client")
        delete(cluster, alias, "d6")
        delete(cluster, name, "d7")

    done = again(before_request(cluster, "/_aliases", overtaken), name, ENCODER)
    assert [info.name for info in cluster.indices(alias)] == [done.destination]
    there = texts(cluster, alias)
    assert there.keys() == {*texts(cluster, name), "d50"} - {"d6"}
    assert (there["d3"]["text"].endswith(" by a client"), "d7" in there) == (True, False)


def test_what_a_dying_process_wrote_late_is_taken_away_by_the_next_round(cluster, name):
    """Its page was on its way while the source deleted a document and another process did all the work."""
    deleted, alias = [], f"{name}-hybridr"

    def overtaken(body: Any) -> None:
        deleted.append(json.loads(body.splitlines()[0])["index"]["_id"])
        delete(cluster, name, deleted[0])
        assert again(cluster, name, ENCODER).switched

    dying = before_request(cluster, "/_bulk", overtaken)
    sending = dying.request

    def request(method: str, path: str, *rest: Any, **options: Any) -> Any:
        answer = sending(method, path, *rest, **options)
        if deleted:
            raise KeyboardInterrupt
        return answer

    dying.request = request  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        again(dying, name, ENCODER)
    assert texts(cluster, alias).keys() - texts(cluster, name).keys() == {*deleted}
    assert sync(cluster, name, ENCODER).deleted == 1
    assert texts(cluster, alias) == texts(cluster, name)
