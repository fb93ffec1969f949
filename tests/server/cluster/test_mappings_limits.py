"""Limits on real nodes of both products: in the dry run, the first time, the second time, and by `sync`."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings, Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import read_documents, read_pages, sources_by_id
from hybridr.errors import ClusterError, SettingsError
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.verification import verify
from hybridr.search.settings import SearchSettings
from hybridr.status.standing import remove, status
from support.corpus import fill_index, having, put_documents, update
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.elastic]
ENCODER, COUNT = HashingEncoder(), 40
PLAIN = ReindexSettings(term_table=False)
FIELDS: dict[str, Any] = {"text": {"type": "text"}, "price": {"type": "float"}, "tags": {"type": "keyword"}}


def put(cluster: Cluster, index: str, settings: dict[str, Any]) -> None:
    cluster.request("PUT", path_of(index, "_settings"), settings)


def made(
    cluster: Cluster, name: str, count: int = 30, fields: dict[str, Any] | None = None, **index: Any
) -> None:
    """Make an index of three fields and further ones."""
    settings = {"number_of_replicas": 0, "number_of_shards": 1, **index}
    fill_index(cluster, name, count, settings=settings, mappings={"properties": {**FIELDS, **(fields or {})}})


def keywords(count: int) -> dict[str, Any]:
    return {f"k{number}": {"type": "keyword"} for number in range(count)}


def refused(cluster: Cluster, name: str, settings: ReindexSettings = PLAIN) -> ClusterError:
    """Check that the plan and the run are refused alike, before anything is made; give the reason."""
    before = [info.name for info in cluster.indices(f"{name}*")]
    with pytest.raises(ClusterError) as planned:
        plan(cluster, name, ENCODER, settings)
    with pytest.raises(ClusterError) as ran:
        reindex(cluster, name, ENCODER, settings)
    assert ran.value.message == planned.value.message
    assert [info.name for info in cluster.indices(f"{name}*")] == before
    return planned.value


@pytest.mark.parametrize(
    ("limits", "passages"),
    [
        ({"mapping.total_fields.limit": 6}, False),
        ({"mapping.nested_fields.limit": 0, "mapping.depth.limit": 1}, True),
    ],
)
def test_a_limit_of_the_mapping_that_is_used_up_leaves_room_in_the_copy(
    cluster, index_name, limits, passages
):
    made(cluster, index_name, fields=keywords(3), **limits)
    settings = PLAIN.model_copy(update={"passages": passages})
    done = reindex(cluster, index_name, ENCODER, settings)
    assert (done.documents, done.switched) == (30, True)
    again = reindex(cluster, index_name, ENCODER, settings.model_copy(update={"m": 8}))
    assert (again.documents, again.switched) == (30, True), "the second time too"
    assert again.destination != done.destination


def test_sync_follows_a_source_whose_limit_was_raised(cluster, index_name):
    made(cluster, index_name, fields=keywords(3), **{"mapping.total_fields.limit": 6})
    destination = reindex(cluster, index_name, ENCODER, PLAIN).destination
    put(cluster, index_name, {"index.mapping.total_fields.limit": 40})
    more = {f"n{number}": {"type": "keyword"} for number in range(30)}
    cluster.request("PUT", path_of(index_name, "_mapping"), {"properties": more})
    update(cluster, index_name, "d7", text="a document of many fields", n3="x", n29="y")
    sync(cluster, index_name, ENCODER)
    info = cluster.index_info(destination)
    assert more.keys() <= info.mappings["properties"].keys()
    assert verify(cluster, index_name, ENCODER).ok


def test_fields_in_place_meet_the_limit_before_anything_is_sent(cluster, index_name):
    inside = ReindexSettings(in_place=True, term_table=False)
    made(cluster, index_name, fields=keywords(3), knn=True, **{"mapping.total_fields.limit": 7})
    error = refused(cluster, index_name, inside)
    assert "index.mapping.total_fields.limit is 7" in error.message
    put(cluster, index_name, {"index.mapping.total_fields.limit": 8})
    assert reindex(cluster, index_name, ENCODER, inside).encoded == 30
    update(cluster, index_name, "d3", text="written by a client afterwards")
    assert sync(cluster, index_name, ENCODER).renewed == 1
    assert reindex(cluster, index_name, ENCODER, inside).encoded == 0, "the second time its fields are there"


def test_fields_that_searches_compute_leave_room_for_the_copy_s(product, name):
    """They count as fields: a source of 998 has no room for vectors under the default of 1,000."""
    section, field = "runtime", {"type": "keyword"}
    if product.dialect.name == "plain":
        section, field = "derived", {"type": "keyword", "script": {"source": "emit('x')"}}
    computed = {f"c{number}": field for number in range(995)}
    fill_index(product, name, 30, mappings={"properties": FIELDS, section: computed})
    done = reindex(product, name, ENCODER, PLAIN)
    assert (done.documents, done.switched) == (30, True)
    more = {f"m{number}": field for number in range(2)}
    product.request("PUT", path_of(name, "_mapping"), {section: more})
    sync(product, name, ENCODER)
    assert more.keys() <= product.index_info(done.destination).mappings[section].keys()


def test_a_limit_below_what_the_source_has_is_named(cluster, index_name):
    """It was lowered later: no note could be written into the mapping."""
    made(cluster, index_name, fields=keywords(6))
    put(cluster, index_name, {"index.mapping.total_fields.limit": 4})
    error = refused(cluster, index_name)
    assert "index.mapping.total_fields.limit is 4, needed: 9" in error.message
    assert '"index.mapping.total_fields.limit": 9' in (error.hint or "")


@pytest.mark.parametrize("block", ["read_only", "read"])
def test_a_block_of_the_source_is_named(cluster, index_name, block):
    made(cluster, index_name)
    put(cluster, index_name, {f"index.blocks.{block}": True})
    error = refused(cluster, index_name)
    put(cluster, index_name, {f"index.blocks.{block}": None})
    assert f"index.blocks.{block}" in error.message + (error.hint or "")


@pytest.mark.parametrize("setting", ["cluster.blocks.read_only_allow_delete", "cluster.blocks.create_index"])
def test_a_block_of_the_cluster_is_named(product, name, setting):
    made(product, name)
    if setting.endswith("create_index") and product.dialect.name != "plain":
        with pytest.raises(ClusterError, match="not recognized"), having(product, {setting: True}):
            pass
        return
    with having(product, {setting: True}):
        error = refused(product, name)
    assert f"{setting} is true" in error.message
    assert setting in (error.hint or "")


def test_shards_of_all_generations_count(cluster, index_name):
    made(cluster, index_name)
    open_shards = cluster.request("GET", "/_cluster/health")["active_shards"]
    setting = "cluster.max_shards_per_node"
    with having(cluster, {setting: open_shards}):
        assert f"{setting} is {open_shards}" in refused(cluster, index_name).message
    with having(cluster, {setting: open_shards + 1}):
        reindex(cluster, index_name, ENCODER, PLAIN)
        second = PLAIN.model_copy(update={"m": 8})
        error = refused(cluster, index_name, second)
        assert f"{setting} is {open_shards + 1:,} on 1 data node" in error.message
        assert "hybridr remove" in (error.hint or "")
        assert reindex(cluster, index_name, ENCODER, PLAIN).encoded == 0, "the first generation goes on"
    with having(cluster, {setting: open_shards + 2}):
        assert reindex(cluster, index_name, ENCODER, second).switched


def test_replicas_that_are_put_back_count(cluster, index_name):
    made(cluster, index_name)
    put(cluster, index_name, {"index.number_of_replicas": 1})
    shards = cluster.request("GET", "/_cluster/health")
    there = shards["active_shards"] + shards["unassigned_shards"]
    with having(cluster, {"cluster.max_shards_per_node": there + 1}):
        assert "room for 2 more" in refused(cluster, index_name).message


def test_every_reading_fits_into_a_small_window(product, name):
    window = 7
    made(product, name, COUNT, max_result_window=window)
    done = reindex(product, name, ENCODER, PLAIN)
    assert (done.documents, done.encoded, done.switched) == (COUNT, COUNT, True)
    assert any(f"index.max_result_window is {window}" in line for line in done.cautions)
    put_documents(product, name, range(20), " changed")
    sync(product, name, ENCODER)
    assert verify(product, name, ENCODER).ok
    assert status(product, name)
    ids = [f"d{number}" for number in range(COUNT)]
    assert sources_by_id(product, done.destination, ids).keys() == set(ids)
    assert len(list(read_documents(product, name))) == COUNT
    for fusion in (None, "pipeline") if product.dialect.name == "plain" else (None,):
        settings = SearchSettings(fusion=fusion) if fusion else SearchSettings()
        search = Search(product, name, ENCODER, settings=settings)
        k = min(10, window)
        assert len(search("changed", k)) == k
    again = reindex(product, name, ENCODER, PLAIN.model_copy(update={"m": 8}))
    assert (again.documents, again.switched) == (COUNT, True)
    remove(product, name)


def test_a_page_beyond_a_small_window_is_put_together(product, name):
    made(product, name, 160, max_result_window=40)
    reindex(product, name, ENCODER, PLAIN)
    search = Search(product, name, ENCODER, settings=SearchSettings(depth=30))
    if search.context.fusion.asks_once:
        found = [hit.doc_id for hit in search("anchor basket", 120)]
        assert len(found) == len(set(found)) == 120
    else:  # without scripts the lists of two legs are joined here, and none is longer than the window
        with pytest.raises(SettingsError, match="beyond index.max_result_window") as refusal:
            search("anchor basket", 120)
        assert '"index.max_result_window": 120' in (refusal.value.hint or "")


def test_a_small_window_of_rescoring_caps_that_of_searches(product, name):
    window = 5
    made(product, name, COUNT, max_rescore_window=window)
    done = reindex(product, name, ENCODER, PLAIN)
    assert any(f"index.max_rescore_window is {window}" in line for line in done.cautions)
    search = Search(product, name, ENCODER)
    if search.context.fusion.asks_once:
        assert search.body("anchor basket", 10)["rescore"]["window_size"] == window
    assert len(search("anchor basket", 10)) == 10


def test_views_live_no_longer_than_the_cluster_allows(product, name):
    plain = product.dialect.name == "plain"
    made(product, name, COUNT)
    with having(product, {"point_in_time.max_keep_alive" if plain else "search.max_keep_alive": "6m"}):
        reading = product.with_patience(0.0)
        reading.view_keep_alive = "10m"
        assert sum(map(len, read_pages(reading, name, page=COUNT // 3))) == COUNT
        assert reading.view_keep_alive == "6m"
        assert reindex(reading, name, ENCODER, PLAIN).switched


@pytest.mark.usefixtures("few_terms")
def test_soft_terms_fit_into_the_clauses_that_a_cluster_takes(cluster, index_name):
    made(cluster, index_name, 60)
    done = reindex(cluster, index_name, ENCODER)
    assert done.term_table.table
    with having(cluster, {"indices.query.bool.max_clause_count": 50}):
        search = Search(cluster, index_name, ENCODER)
        assert "soft_terms" in search.signals.members
        assert search.context.max_clauses == 50 - 24
        assert search("anchor basket candle dragon engine forest garden harbor", 5)


@pytest.mark.usefixtures("few_terms")
def test_a_table_of_terms_without_room_for_its_index_is_told(cluster, index_name):
    made(cluster, index_name)
    open_shards = cluster.request("GET", "/_cluster/health")["active_shards"]
    with having(cluster, {"cluster.max_shards_per_node": open_shards + 1}):
        remarks = plan(cluster, index_name, ENCODER, ReindexSettings()).remarks
        done = reindex(cluster, index_name, ENCODER)
    assert any("cluster.max_shards_per_node leaves no room" in remark for remark in remarks)
    assert done.switched
    assert "cluster.max_shards_per_node" in done.term_table.described


def test_in_place_too(cluster, index_name):
    made(cluster, index_name, COUNT, knn=True, max_result_window=15, max_rescore_window=12)
    done = reindex(cluster, index_name, ENCODER, ReindexSettings(in_place=True, term_table=False))
    assert done.encoded == COUNT
    assert any("index.max_rescore_window is 12" in line for line in done.cautions)
    put_documents(cluster, index_name, range(20), " changed")
    assert sync(cluster, index_name, ENCODER).renewed == 20
    assert verify(cluster, index_name, ENCODER).ok
    assert len(Search(cluster, index_name, ENCODER)("changed", 10)) == 10
    remove(cluster, index_name)
