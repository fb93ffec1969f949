"""Known traps of indices with vectors: each is named where it is seen, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import VERSION
from hybridr.doctor.health_checks import IndexStatistics, check_vectors
from support.indices import RECORD

CLUSTER: Any = SimpleNamespace(
    dialect=SimpleNamespace(product="OpenSearch"),
    info={"version": {"number": "3.7.0", "lucene_version": "9.12"}},
)
VECTOR = {"type": "knn_vector", "dimension": 1536, "method": {"name": "hnsw", "engine": "lucene"}}
EF_SEARCH = "index.knn.algo_param.ef_search"
ADVANCED = "index.knn.advanced.approximate_threshold"


def seen(settings=None, vector=None, **changes):
    record = RECORD | {"dim": 1536} | changes.pop("record", {})
    usual = {"index.uuid": "2", "index.knn": "true", "index.number_of_shards": "2"}
    mappings = {"_meta": {"hybridr": record}, "properties": {"v": VECTOR | (vector or {})}}
    info = IndexInfo("docs-hybridr", usual | (settings or {}), mappings, {})
    counted = {"status": "green", "segments": 10, "documents": 100, "deleted": 3}
    return IndexStatistics(info, **{**counted, "source": source(), **changes})


def source(*destinations: str, uuid: str = "1") -> IndexInfo:
    """The source, and the uuids of the indices with vectors that it knows."""
    meta = {"_meta": {"hybridr": {"destinations": destinations, "version": VERSION}}} if destinations else {}
    return IndexInfo("docs", {"index.uuid": uuid}, meta, {})


def test_a_sound_index_passes() -> None:
    check = check_vectors(CLUSTER, seen())
    assert (check.ok, check.found) == (True, "100 documents in 10 segments, no known trap")


@pytest.mark.parametrize(
    ("one", "found", "fix"),
    [
        (seen({"index.knn": "false"}), "index.knn is not set", "hybridr reindex docs-hybridr"),
        (seen({ADVANCED: "-1"}), "no graph is built", f'{{"{ADVANCED}": 0}}'),
        (seen({EF_SEARCH: "10"}), "ef_search is 10", f'"{EF_SEARCH}": 100'),
        (
            seen(vector={"method": {"engine": "nmslib"}}),
            "(known problem nmslib, OpenSearch 2.19.0 and later)",
            "hybridr reindex NAME --engine lucene",
        ),
        (seen(segments=60), "30 segments per shard", "max_num_segments=1"),
        (seen(deleted=70), "41% of the documents in the graph", "only_expunge_deletes"),
        (seen(status="yellow"), "replicas have no node", '"index.number_of_replicas": 0'),
        (seen({"index.blocks.write": "true"}), "index.blocks.write", '{"index.blocks.write": null}'),
        (seen({"index.blocks.read_only_allow_delete": "true"}), "cannot write", "read_only_allow_delete"),
        (seen(source=source("other")), "which does not list it", "hybridr status docs"),
        (
            seen(source=source(uuid="another")),
            "it holds vectors of an earlier index 'docs'",
            "hybridr reindex docs, then hybridr remove docs-hybridr",
        ),
        (seen(source=None), "its source 'docs' is gone", "restore the source first"),
        (seen(record={"in_place": True}), "a copy of 'docs', with its record", "hybridr sync docs-hybridr"),
    ],
)
def test_each_trap_is_named_with_its_way_out(one: IndexStatistics, found: str, fix: str) -> None:
    check = check_vectors(CLUSTER, one)
    assert check.ok is None
    assert found in check.found
    assert check.found.startswith(f"{one.documents:,} documents in {one.segments} segments: ")
    assert fix in check.fix
    assert ";" not in check.found


def test_what_is_no_trap_is_not_named() -> None:
    for one in (
        seen({ADVANCED: "0"}),
        seen({EF_SEARCH: "512"}),
        seen({"index.blocks.write": "false"}, source=source("2", "other")),
        seen(record={"in_place": True, "source_uuid": "2"}),
    ):
        assert check_vectors(CLUSTER, one).ok
