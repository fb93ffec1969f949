"""What is refused or told before anything is written into the user's own index."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings, Search
from hybridr.cluster.connection import path_of
from hybridr.cluster.record import MARK_FIELD
from hybridr.errors import ClusterError, DataError, HybridrError, SettingsError
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.status.standing import remove, status
from support.corpus import bulk, clone, put, text_number, update
from support.hashing import HashingEncoder
from support.in_place_index import IN_PLACE, VECTOR, did, empty_index, knn_index, ok


def test_dry_run_sends_nothing(cluster, index_name, tiny, cli):
    knn_index(cluster, index_name, 10)

    def state() -> Any:
        stats = cluster.request("GET", path_of(index_name, "_stats", "indexing"))
        return cluster.index_info(index_name), stats["_all"]["total"]["indexing"]["index_total"]

    before, command = state(), f"reindex {index_name} --in-place --dry-run"
    shown = cli(cluster, command).out
    for said in (f"PUT /{index_name}/_mapping", "old copy stays on disk", "disk: about", "nothing was sent"):
        assert said in shown
    todo = cli(cluster, f"{command} --json").json
    assert todo["requests"][0]["body"]["properties"].keys() == {VECTOR, MARK_FIELD}
    assert (todo["documents"], todo["dry_run"], todo["exists"]) == (10, True, False)
    assert state() == before


@pytest.mark.parametrize(
    ("settings", "mappings", "reason", "hint"),
    [
        ({"knn": False}, {}, "without index.knn, .*even closed", "clone it with index.knn"),
        ({}, {"_source": {"enabled": False}}, "does not keep its documents", ""),
        (
            {"knn": False},
            {"_source": {"enabled": False}},
            "does not keep its documents",
            "load the documents",
        ),
        ({}, {"_source": {"excludes": ["price"]}}, "does not keep its documents whole", ""),
        (
            {},
            {"properties": {VECTOR: {"type": "keyword"}}},
            f"already has a field '{VECTOR}'",
            "--vector-field",
        ),
        ({}, {"properties": {MARK_FIELD: {"type": "text"}}}, f"already has a field '{MARK_FIELD}'", ""),
        ({"blocks.write": True}, {}, "index.blocks.write", "_settings"),
        ({"append_only.enabled": True}, {}, "takes no updates of its documents", "without --in-place"),
    ],
)
def test_refusals_before_anything_is_sent(cluster, index_name, settings, mappings, reason, hint):
    properties = {"text": {"type": "text"}, **mappings.get("properties", {})}
    lasting = {name: value for name, value in settings.items() if not name.startswith("blocks")}
    empty_index(cluster, index_name, lasting, mappings | {"properties": properties})
    bulk(cluster, index_name, [{"index": {}}, {"text": "anchor basket"}])
    blocks = {name: value for name, value in settings.items() if name.startswith("blocks")}
    cluster.request("PUT", path_of(index_name, "_settings"), {"index": blocks or {"refresh_interval": "1s"}})
    before = cluster.index_info(index_name)
    with pytest.raises(HybridrError, match=reason) as refused:
        reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    assert hint in (refused.value.hint or "")
    assert cluster.index_info(index_name) == before
    if blocks:
        cluster.request("PUT", path_of(index_name, "_settings"), {"index": dict.fromkeys(blocks, False)})


def test_a_clone_with_index_knn_takes_vectors_where_its_origin_cannot(cluster, index_name):
    """The setting is final, on a closed index too; a clone may have another, as docs/reindex.md gives it."""
    copy, settings = f"{index_name}-knn", path_of(index_name, "_settings")
    empty_index(cluster, index_name, {"knn": False}, {"properties": {"text": {"type": "text"}}})
    put(cluster, index_name, {f"d{number}": {"text": text_number(number)} for number in range(3)})
    cluster.request("POST", path_of(index_name, "_close"))
    with pytest.raises(ClusterError, match="final"):
        cluster.request("PUT", settings, {"index.knn": True})
    cluster.request("POST", path_of(index_name, "_open"))
    clone(cluster, index_name, copy, **{"index.knn": True})
    assert reindex(cluster, copy, HashingEncoder(), IN_PLACE).encoded == 3
    assert ok(cluster, copy)
    assert cluster.count(index_name) == 3


def test_an_index_that_is_missing_or_empty_is_refused(cluster, index_name):
    def refused(reason: str) -> None:
        with pytest.raises(HybridrError, match=reason):
            plan(cluster, index_name, HashingEncoder(), ReindexSettings(in_place=True))

    refused("no index")
    empty_index(cluster, index_name, {}, {"properties": {"text": {"type": "text"}}})
    refused("is empty")


def test_a_copy_with_the_record_of_another_index_is_looked_at_whole(cluster, index_name, index):
    copy = f"{index_name}-copy"
    clone(cluster, index, copy)
    with pytest.raises(ClusterError, match="is a copy of"):
        reindex(cluster, copy, HashingEncoder(), IN_PLACE)
    with pytest.raises(DataError, match="is a copy of"):
        ok(cluster, copy)
    update(cluster, copy, "d4", text="changed in the copy")
    assert did(sync(cluster, copy, HashingEncoder())) == (0, 0, 1, 0)
    assert ok(cluster, copy)
    assert reindex(cluster, copy, HashingEncoder(), IN_PLACE).encoded == 0
    assert ok(cluster, index)


def test_own_meta_and_own_versions_of_clients(cluster, index):
    cluster.request("PUT", path_of(index, "_mapping"), {"_meta": {"owner": "a deployment"}})
    with pytest.raises(DataError, match="no vectors"):
        Search(cluster, index, HashingEncoder(), "dense")
    with pytest.raises(DataError, match="that hybridr did not make"):
        reindex(cluster, index, HashingEncoder(salt="other"), IN_PLACE)
    done = reindex(cluster, index, HashingEncoder(), IN_PLACE)
    assert (done.encoded, done.skipped) == (0, 40)
    assert cluster.index_info(index).mappings["_meta"]["owner"] == "a deployment"
    assert ok(cluster, index)

    # An external version that comes later stops sync.
    external = {"version": "1700000000", "version_type": "external", "refresh": "true"}
    cluster.request("PUT", path_of(index, "_doc", "d4"), {"text": "anchor"}, external)
    with pytest.raises(DataError, match="version_type=external"):
        sync(cluster, index, HashingEncoder())
    external["version"] = "1700000001"
    cluster.request("PUT", path_of(index, "_doc", "d4"), {"text": "its next version is taken"}, external)


def test_an_alias_stands_for_its_index(cluster, index_name):
    knn_index(cluster, index_name, 10)
    alias = f"{index_name}-live"
    cluster.request("PUT", path_of(index_name, "_alias", alias))
    assert reindex(cluster, alias, HashingEncoder(), IN_PLACE).destination == index_name
    update(cluster, alias, "d4", text="changed")
    assert sync(cluster, alias, HashingEncoder()).renewed == 1
    assert Search(cluster, alias, HashingEncoder(), "dense")(text_number(7), 1)[0].doc_id == "d7"
    assert status(cluster, alias).holdings[0].current == 10
    assert remove(cluster, alias)["documents"] == 10
    assert cluster.index_info(index_name).aliases == {alias: {}}


def test_options_of_a_second_index_are_refused(cluster, index_name):
    knn_index(cluster, index_name, 3)
    for option in ({"alias": "other"}, {"vector_field": "a.b"}):
        with pytest.raises(SettingsError):
            reindex(cluster, index_name, HashingEncoder(), ReindexSettings(in_place=True, **option))


def test_one_index_has_its_vectors_in_one_place(cluster, index_name, index):
    with pytest.raises(ClusterError, match="holds its own vectors"):
        reindex(cluster, index, HashingEncoder())
    with pytest.raises(ClusterError, match="another encoder") as refused:
        reindex(cluster, index, HashingEncoder(salt="other"), IN_PLACE)
    assert refused.value.hint is not None
    assert "hybridr remove" in refused.value.hint
    with pytest.raises(ClusterError, match="no older index"):
        rollback(cluster, index)
    remove(cluster, index)
    made = reindex(cluster, index, HashingEncoder(), ReindexSettings(vector_field="other")).destination
    for name in (index, made):
        with pytest.raises(ClusterError, match="already|was made by hybridr"):
            reindex(cluster, name, HashingEncoder(), IN_PLACE)
    assert status(cluster, index).holdings[0].index == made


def test_versions_that_writers_number_are_refused(cluster, index_name):
    knn_index(cluster, index_name, 10)
    external = {"version": "1700000000", "version_type": "external", "refresh": "true"}
    cluster.request("PUT", path_of(index_name, "_doc", "own"), {"text": "anchor"}, external)
    before = cluster.index_info(index_name)
    with pytest.raises(DataError, match="version_type=external"):
        reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    assert cluster.index_info(index_name) == before


def test_what_an_update_does_to_a_version_of_its_own(cluster, index_name):
    """Why they are refused: the writer's next version is no longer newer."""
    knn_index(cluster, index_name, 10)
    for version in ("1", "2"):  # one for each write: nothing tells them from the server's own
        external = {"version": version, "version_type": "external", "refresh": "true"}
        cluster.request("PUT", path_of(index_name, "_doc", "own"), {"text": f"anchor {version}"}, external)
    reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    external["version"] = "3"
    with pytest.raises(ClusterError, match="version conflict"):
        cluster.request("PUT", path_of(index_name, "_doc", "own"), {"text": "anchor 3"}, external)
