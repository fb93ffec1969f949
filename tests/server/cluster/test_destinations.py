"""Whose word counts when an index says that it holds the vectors of another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster, IndexView, path_of
from hybridr.cluster.destinations import (
    destination_pattern,
    is_destination_of,
    put_record,
    register_destination,
    resolve,
)
from hybridr.cluster.record import IndexInfo, Record
from hybridr.errors import AccessDenied, ClusterError, DataError, HybridrError
from hybridr.indexing.beside_index import index_of_job
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.settings import ReindexSettings
from hybridr.indexing.targets import beside
from hybridr.indexing.verification import verify
from hybridr.status.leftovers import rollback
from hybridr.status.standing import remove, status
from support.commands import before_call
from support.corpus import add_alias, bulk, fill_index, put_documents, reindexed, sources
from support.hashing import HashingEncoder

ENCODER = HashingEncoder()


@pytest.fixture
def source(cluster: Cluster, index_name: str) -> str:
    reindexed(cluster, index_name, 10, ENCODER)
    return index_name


def claim(cluster: Cluster, source: str, number: int = 99, alias: str = "", **changes: Any) -> str:
    """Make an index as a stranger does who has read everything: the true record with changes of his."""
    true = cluster.index_info(f"{source}-hybridr-1")
    name, alias = f"{source}-hybridr-{number}", alias or f"{source}-stranger"
    record = true.record.changed(
        **{"alias": alias, "aliases": {alias: "made"}, "deployment": None, **changes}
    )
    body = {
        "settings": {"index": {"number_of_replicas": 0, "knn": True}},
        "mappings": {**true.mappings, "_meta": true.meta_with(record)},
        "aliases": {alias: {}},
    }
    cluster.request("PUT", path_of(name), body)
    bulk(cluster, name, [{"index": {"_id": "evil"}}, {"text": "anchor basket", "price": 1, "tags": []}])
    return name


def unnamed(cluster: Cluster, source: str) -> IndexInfo:
    """Leave a source as a reindex does that may not write into it: it names no destination."""
    info = cluster.index_info(source)
    put_record(cluster, info, info.record.without("destinations"))
    return cluster.index_info(source)


@pytest.mark.attack(4)
def test_a_stranger_with_all_that_can_be_read_does_not_answer_for_a_source(cluster, source):
    stranger = claim(cluster, source, previous=f"{source}-secret")
    assert resolve(cluster, source).name == f"{source}-hybridr-1"
    assert "evil" not in {hit.doc_id for hit in Search(cluster, source, ENCODER)("anchor basket", 50)}
    found = status(cluster, source)
    assert [one.index for one in found.holdings] == [f"{source}-hybridr-1"]
    assert found.strangers == [stranger]
    assert sync(cluster, source, ENCODER).destination == f"{source}-hybridr-1"
    assert rollback(cluster, source, copy_back=True)["from"] == f"{source}-hybridr-1"
    assert "evil" not in sources(cluster, source)


def test_a_stranger_named_by_himself_is_refused(cluster, source):
    stranger = claim(cluster, source)
    claim(cluster, source, 100, alias=f"{source}-third", source_uuid="x")
    verbs: list[Callable[[str], Any]] = [
        lambda name: sync(cluster, name, ENCODER),
        lambda name: rollback(cluster, name, copy_back=True),
        lambda name: remove(cluster, name),
        lambda name: status(cluster, name),
        lambda name: reindex(cluster, name, ENCODER),
        lambda name: plan(cluster, name, ENCODER, ReindexSettings()),
    ]
    for verb in verbs:
        with pytest.raises(DataError, match=f"'{stranger}' says that it .* '{source}', which does not know"):
            verb(stranger)
    for verb in (verbs[0], verbs[1], verbs[3]):
        with pytest.raises(DataError, match="is not the index that"):
            verb(f"{source}-hybridr-100")
    assert remove(cluster, f"{source}-hybridr-100", discard=True)["indices"] == [f"{source}-hybridr-100"]
    assert set(sources(cluster, source)) == {f"d{number}" for number in range(10)}


@pytest.mark.attack(5)
def test_a_rollback_goes_to_no_index_that_has_nothing_to_do_with_the_source(cluster, source):
    fill_index(cluster, f"{source}-secret", 1)
    info = cluster.index_info(f"{source}-hybridr-1")
    history = [{**event, "back_to": f"{source}-secret"} for event in info.record.history]
    put_record(cluster, info, info.record.changed(previous=f"{source}-secret", history=history))
    with pytest.raises(DataError, match=f"pointed to '{source}-secret' before, which is neither"):
        rollback(cluster, source, dry_run=True)


def test_an_alias_that_a_stranger_holds_moves_only_on_demand_and_shows_no_more_than_before(
    cluster, index_name
):
    reindexed(cluster, index_name, 10, ENCODER)
    stranger = claim(cluster, index_name, alias=f"{index_name}-mine")
    deployed = {"way": "client", "pipeline": "somebody-elses"}
    info = cluster.index_info(stranger)
    put_record(cluster, info, info.record.changed(deployment=deployed))
    add_alias(cluster, stranger, f"{index_name}-mine", filter={"term": {"tags": "a"}}, routing="x")
    other = HashingEncoder(salt="other")
    settings = ReindexSettings(alias=f"{index_name}-mine")
    with pytest.raises(ClusterError, match=f"does not list that index and lacks 1 document .* '{stranger}'"):
        reindex(cluster, index_name, other, settings)
    done = reindex(cluster, index_name, other, settings.model_copy(update={"discard": True}))
    made = cluster.index_info(done.destination)
    assert made.record.previous == index_name
    assert made.record.deployment is None
    kept = {"filter": {"term": {"tags": "a"}}, "index_routing": "x", "search_routing": "x"}
    assert made.aliases == {f"{index_name}-mine": kept}, "what the alias hid stays hidden"
    assert done.deployment.pipeline is None, "said and not done"


def test_an_alias_that_was_given_away_while_the_index_was_filled_is_not_taken(
    cluster, index_name, monkeypatch
):
    fill_index(cluster, index_name, 3)
    fill_index(cluster, f"{index_name}-payroll", 1)
    payroll, alias = f"{index_name}-payroll", f"{index_name}-hybridr"
    before_call(monkeypatch, beside, "require_verified", lambda: add_alias(cluster, payroll, alias))
    with pytest.raises(ClusterError, match=f"points to '{index_name}-payroll', which was not made from"):
        reindex(cluster, index_name, ENCODER)
    assert [one.name for one in cluster.indices(f"{index_name}-hybridr")] == [f"{index_name}-payroll"]


def test_a_source_of_before_is_believed_until_it_names_one(cluster, source):
    assert unnamed(cluster, source).record == Record()
    put_documents(cluster, source, [10])
    assert resolve(cluster, source).name == f"{source}-hybridr-1"
    assert sync(cluster, source, ENCODER).copied == 1
    made = cluster.index_info(f"{source}-hybridr-1")
    assert cluster.index_info(source).record.destinations == (made.uuid,)
    claim(cluster, source)
    assert resolve(cluster, source).name == made.name


@pytest.mark.attack(4)
def test_two_live_claims_upon_a_source_of_before_are_refused_by_name(cluster, source):
    unnamed(cluster, source)
    claim(cluster, source)
    names = f"{source}-hybridr-1, {source}-hybridr-99"
    verbs: list[Callable[[], Any]] = [
        lambda: Search(cluster, source, ENCODER),
        lambda: sync(cluster, source, ENCODER),
        lambda: rollback(cluster, source),
        lambda: rollback(cluster, f"{source}-hybridr-99", copy_back=True),
        lambda: verify(cluster, source),
        lambda: remove(cluster, source),
    ]
    for verb in verbs:
        with pytest.raises(DataError, match=f"several indices claim .* of '{source}': {names}"):
            verb()
    assert cluster.exists(f"{source}-hybridr-99")


def test_reindex_and_remove_leave_the_source_s_record_as_it_was(cluster, source):
    first = cluster.index_info(f"{source}-hybridr-1").uuid
    reindex(cluster, source, HashingEncoder(salt="other"))
    second = cluster.index_info(f"{source}-hybridr-2").uuid
    assert cluster.index_info(source).record.destinations == (first, second)
    rollback(cluster, source, drop=True)
    assert cluster.index_info(source).record.destinations == (first,)
    remove(cluster, source)
    assert "_meta" not in cluster.index_info(source).mappings or not cluster.index_info(source).other_meta


def view_of(cluster: Cluster, source: str) -> IndexView:
    return IndexView.of(cluster, source, destination_pattern(source))


def test_an_index_that_a_killed_run_made_and_did_not_name_is_taken_up_while_empty(cluster, source):
    true, info = cluster.index_info(f"{source}-hybridr-1"), cluster.index_info(source)
    put_record(cluster, info, info.record.changed(destinations=("of-another-one",)))
    info = cluster.index_info(source)
    assert not is_destination_of(true, info)
    assert index_of_job(cluster, view_of(cluster, source), info, true.record.job) is None
    empty = f"{source}-hybridr-2"
    body = {"mappings": true.mappings, "settings": {"index": {"number_of_replicas": 0, "knn": True}}}
    cluster.request("PUT", path_of(empty), body)
    found = index_of_job(cluster, view_of(cluster, source), info, true.record.job)
    assert found.name == empty
    bulk(cluster, empty, [{"index": {"_id": "evil"}}, {"text": "anchor"}])
    assert index_of_job(cluster, view_of(cluster, source), info, true.record.job) is None


class Forbidding(Cluster):
    """A cluster in which nobody may write mappings."""

    def request(self, method: str, path: str, *given: Any, **more: Any) -> Any:
        if method == "PUT" and path.endswith("_mapping"):
            raise AccessDenied("the cluster forbids it (403)", status=403)
        return super().request(method, path, *given, **more)


def test_a_source_that_may_not_be_written_to_is_believed_or_refused(cluster, source):
    made = cluster.index_info(f"{source}-hybridr-1")
    denied = Forbidding(cluster.client, cluster.url)
    register_destination(denied, made)  # it is named already
    other = replace(made, settings={**made.settings, "index.uuid": "other"})
    with pytest.raises(HybridrError, match="forbids"):
        register_destination(denied, other)
    unnamed(cluster, source)
    register_destination(denied, made)
    assert not cluster.index_info(source).record.destinations
    assert resolve(cluster, source).name == made.name
