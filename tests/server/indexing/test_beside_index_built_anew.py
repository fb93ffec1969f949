"""A source that its owner builds anew, under the same name or behind an alias: searches follow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr import ReindexSettings, Rule, Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.doctor.health_checks import vector_checks
from hybridr.errors import ClusterError, NotFound
from hybridr.indexing import switching
from hybridr.indexing.planning import Plan
from hybridr.indexing.reindexing import ReindexResult, plan, reindex, sync
from hybridr.indexing.targets import beside
from hybridr.search.rules.rules import add_rules
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy
from hybridr.serving.settings import DeploySettings
from hybridr.status import standing
from hybridr.status.leftovers import rollback
from hybridr.status.standing import remove, status
from support.commands import before_call
from support.corpus import bulk, drop_indices, fill_index, put_documents, reindexed, sources, update
from support.hashing import HashingEncoder

DISCARD = ReindexSettings(discard=True)
LEFT = {"filter": {"term": {"tags": "a"}}}


def again(cluster: Cluster, name: str, settings: ReindexSettings | None = None) -> ReindexResult:
    return reindex(cluster, name, HashingEncoder(), settings)


def built_anew(cluster: Cluster, name: str, count: int) -> None:
    """Delete the index and make it again, as a nightly build does."""
    cluster.request("DELETE", path_of(name))
    fill_index(cluster, name, count)


def point(cluster: Cluster, alias: str, new: str, old: str = "", **definition: Any) -> None:
    actions: list[dict[str, Any]] = [{"remove": {"index": old, "alias": alias}}] if old else []
    actions.append({"add": {"index": new, "alias": alias, **definition}})
    cluster.request("POST", "/_aliases", {"actions": actions})


def holders(cluster: Cluster, alias: str) -> list[str]:
    return [info.name for info in cluster.indices(alias)]


@pytest.fixture
def swapped(cluster: Cluster, index_name: str) -> str:
    """An alias of the owner, reindexed by that name, which then stands for a second index."""
    old, new = f"{index_name}-v1", f"{index_name}-v2"
    fill_index(cluster, old, 6)
    point(cluster, index_name, old)
    assert again(cluster, index_name).alias == f"{index_name}-hybridr"
    fill_index(cluster, new, 9)
    point(cluster, index_name, new, old)
    return index_name


def test_a_source_made_again_takes_the_alias_with_its_filter(cluster, index_name):
    first = reindexed(cluster, index_name, 5).destination
    alias, part = f"{index_name}-hybridr", f"{index_name}-part"
    point(cluster, alias, first, **LEFT)
    point(cluster, part, first, **LEFT)
    deploy(cluster, index_name, DeploySettings(), SearchSettings())
    add_rules(cluster, index_name, [Rule(name="r1", text="anchor", pin=("d5",))])
    built_anew(cluster, index_name, 8)
    done = again(cluster, index_name)
    assert (done.switched, done.along) == (True, (part,))
    assert cluster.index_info(done.destination).aliases == {alias: LEFT, part: LEFT}
    assert done.deployment.command == f"hybridr deploy {index_name} --way client"
    assert Search(cluster, index_name, HashingEncoder())("anchor", 1)[0].doc_id == "d5"
    stood = status(cluster, index_name)
    assert ([held.index for held in stood.holdings], stood.earlier) == ([done.destination], [first])
    assert rollback(cluster, index_name)["to"] == index_name
    assert cluster.index_info(index_name).aliases[alias] == LEFT


def test_an_index_of_an_earlier_source_goes_by_its_name_and_alone(cluster, index_name, cli, few_terms):
    """A removal by the name of the source began with the term table of that index, and `doctor` said that no
    search used it.
    """
    first = reindexed(cluster, index_name, 5).destination
    built_anew(cluster, index_name, 8)
    with pytest.raises(NotFound, match="made nothing") as nothing:
        remove(cluster, index_name, dry_run=True)
    assert nothing.value.hint == f"hybridr remove {first}"
    (check,) = [check for check in vector_checks(cluster) if check.name == f"vectors {first}"]
    assert f"vectors of an earlier index '{index_name}'" in check.found
    assert check.fix == f"hybridr reindex {index_name}, then hybridr remove {first}"
    second = again(cluster, index_name).destination
    assert f"hybridr remove {first} deletes it" in cli(cluster, "status", index_name).out
    planned = remove(cluster, first, dry_run=True)
    assert (planned["indices"], planned["refusal"], planned["removed"]) == ([first], None, False)
    assert remove(cluster, first) == {**planned, "removed": True}
    assert not cluster.exists(first)
    assert holders(cluster, f"{index_name}-hybridr") == [second]
    assert (status(cluster, index_name).earlier, len(sources(cluster, index_name))) == ([], 8)


def test_the_only_index_of_an_earlier_source_gives_other_aliases_back(cluster, index_name):
    first = reindexed(cluster, index_name, 5).destination
    point(cluster, f"{index_name}-shop", first, **LEFT)
    built_anew(cluster, index_name, 3)
    remove(cluster, first)
    assert cluster.index_info(index_name).aliases == {f"{index_name}-shop": LEFT}
    assert not cluster.exists(first)


def test_an_alias_of_the_owner_that_moved_on_takes_ours_along(cluster, swapped):
    alias, old, new = f"{swapped}-hybridr", f"{swapped}-v1", f"{swapped}-v2"
    done = again(cluster, swapped)
    assert (done.alias, done.destination) == (alias, f"{new}-hybridr-1")
    assert (holders(cluster, alias), len(sources(cluster, alias))) == ([done.destination], 9)
    put_documents(cluster, new, [20])
    assert sync(cluster, swapped, HashingEncoder()).copied == 1
    other = again(cluster, swapped, ReindexSettings(m=8)).destination
    assert holders(cluster, alias) == [other]
    remove(cluster, old)
    assert (holders(cluster, alias), cluster.exists(old)) == ([other], True)
    assert rollback(cluster, swapped)["to"] == done.destination
    assert rollback(cluster, swapped)["to"] == new
    assert holders(cluster, alias) == [new]
    remove(cluster, swapped)
    assert holders(cluster, alias) == []


def test_the_name_of_the_new_index_alone_takes_no_alias(cluster, swapped):
    done = again(cluster, f"{swapped}-v2")
    assert done.alias == f"{swapped}-v2-hybridr"
    assert holders(cluster, f"{swapped}-hybridr") == [f"{swapped}-v1-hybridr-1"]
    fill_index(cluster, f"{swapped}-payroll", 3)
    with pytest.raises(ClusterError, match="was not made from") as refused:
        again(cluster, f"{swapped}-payroll", ReindexSettings(alias=f"{swapped}-hybridr"))
    assert f"point it to '{swapped}-payroll' first, by POST /_aliases" in str(refused.value.hint)


def written_to(cluster: Cluster, kind: str, name: str) -> tuple[str, str, str]:
    """Let a client write, build the source anew; give the source's name, its first index, and our alias."""
    alias = f"{name}-hybridr"
    source, first = name, f"{name}-hybridr-1"
    if kind == "same name":
        reindexed(cluster, name, 6)
    else:
        source, first = f"{name}-v2", f"{name}-v1-hybridr-1"
        fill_index(cluster, f"{name}-v1", 6)
        point(cluster, name, f"{name}-v1")
        again(cluster, name)
    bulk(cluster, alias, [{"index": {"_id": "own"}}, {"text": "zephyr", "price": 1, "tags": ["a"]}])
    put_documents(cluster, alias, [3], suffix=" by a client")
    if kind == "same name":
        built_anew(cluster, name, 8)
    else:
        fill_index(cluster, source, 8)
        point(cluster, name, source, f"{name}-v1")
    return source, first, alias


def test_what_clients_wrote_beside_the_earlier_source_is_not_left_in_silence(cluster, index_name):
    source, first, alias = written_to(cluster, "alias", index_name)
    for verb in (plan, reindex):
        with pytest.raises(ClusterError, match=f"lacks 2 documents as clients wrote .* '{first}'") as refused:
            verb(cluster, index_name, HashingEncoder(), ReindexSettings())
    assert holders(cluster, alias) == [first]
    request, body = str(refused.value.hint).split(" copies")[0].split(" ", 2)[1:]
    cluster.request("POST", request, json.loads(body), {"refresh": "true"})
    assert sources(cluster, source)["own"] == {"text": "zephyr", "price": 1, "tags": ["a"]}
    done = again(cluster, index_name)
    assert sources(cluster, alias) == sources(cluster, source)
    assert sources(cluster, alias)["d3"]["text"].endswith(" by a client")
    assert done.switched


def test_an_earlier_index_that_clients_wrote_in_is_removed_only_with_discard(cluster, index_name):
    source, first, alias = written_to(cluster, "same name", index_name)
    assert again(cluster, index_name, DISCARD).switched
    assert sources(cluster, alias) == sources(cluster, source)
    assert sources(cluster, first)["own"]["text"] == "zephyr"
    assert "--discard deletes them" in remove(cluster, first, dry_run=True)["refusal"]["hint"]
    with pytest.raises(ClusterError, match="lacks 2 documents"):
        remove(cluster, first)
    assert cluster.exists(first)
    remove(cluster, first, discard=True)
    assert not cluster.exists(first)


def test_what_clients_write_while_an_earlier_index_is_removed_keeps_it(cluster, index_name, monkeypatch):
    first = reindexed(cluster, index_name, 5).destination
    built_anew(cluster, index_name, 5)
    alias = f"{index_name}-hybridr"
    before_call(monkeypatch, standing, "cleanup_requests", lambda: put_documents(cluster, alias, [30]))
    with pytest.raises(ClusterError, match="lacks 1 document"):
        remove(cluster, first)
    assert holders(cluster, f"{index_name}-hybridr") == [first]


def test_what_clients_write_during_the_fill_stops_the_switch(cluster, index_name, monkeypatch):
    first = reindexed(cluster, index_name, 5).destination
    built_anew(cluster, index_name, 5)

    alias = f"{index_name}-hybridr"
    before_call(monkeypatch, beside, "require_verified", lambda: put_documents(cluster, alias, [30]))
    with pytest.raises(ClusterError, match="lacks 1 document as clients wrote"):
        again(cluster, index_name)
    assert holders(cluster, f"{index_name}-hybridr") == [first]
    assert again(cluster, index_name, DISCARD).switched


def test_what_clients_write_right_before_the_switch_is_told_after_it(cluster, index_name, monkeypatch):
    first = reindexed(cluster, index_name, 5).destination
    built_anew(cluster, index_name, 5)
    alias = f"{index_name}-hybridr"
    before_call(monkeypatch, switching, "switch_alias", lambda: put_documents(cluster, alias, [30]))
    with pytest.raises(ClusterError, match=f"lacks 1 document as clients wrote them in '{first}'"):
        again(cluster, index_name)
    assert holders(cluster, f"{index_name}-hybridr") == [f"{index_name}-hybridr-2"]
    assert again(cluster, index_name).destination == f"{index_name}-hybridr-2"
    with pytest.raises(ClusterError, match="lacks 1 document"):
        remove(cluster, first)


def test_only_what_is_lacking_is_named_to_be_copied(cluster, index_name):
    reindexed(cluster, index_name, 8)
    alias = f"{index_name}-hybridr"
    update(cluster, alias, "d7", price=3.0)
    sync(cluster, index_name, HashingEncoder())
    bulk(cluster, alias, [{"index": {"_id": "own"}}, {"text": "zephyr"}])
    built_anew(cluster, index_name, 5)
    with pytest.raises(ClusterError, match="lacks 1 document") as refused:
        again(cluster, index_name)
    assert '{"ids":{"values":["own"]}}' in str(refused.value.hint)


def test_the_dry_run_names_the_moves(cluster, swapped):
    todo: Plan = plan(cluster, swapped, HashingEncoder(), ReindexSettings())
    moves = todo.requests[-1]["body"]["actions"]
    assert [move.get("remove", {}).get("index") for move in moves] == [f"{swapped}-v1-hybridr-1", None]
    drop_indices(cluster, f"{swapped}-v1-hybridr-1")
    assert again(cluster, swapped).switched
