"""Known traps of indices with vectors: each is named where it is seen, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.diagnosis.traps import VERSION_TRAPS, Seen, check_vectors

RECORD = {
    **{"role": "vectors", "source": "docs", "source_uuid": "1", "job": "j", "state": "complete"},
    **{"encoder": "f", "dim": 1536, "similarity": "cosine", "vector_field": "v", "fields": ["text"]},
}
VECTOR = {"type": "knn_vector", "dimension": 1536, "method": {"name": "hnsw", "engine": "lucene"}}
EF_SEARCH = "index.knn.algo_param.ef_search"
ADVANCED = "index.knn.advanced.approximate_threshold"


def seen(
    settings: dict[str, Any] | None = None, vector: dict[str, Any] | None = None, **changes: Any
) -> Seen:
    record = RECORD | changes.pop("record", {})
    usual = {"index.uuid": "2", "index.knn": "true", "index.number_of_shards": "2"}
    mappings = {"_meta": {"hybridr": record}, "properties": {"v": VECTOR | (vector or {})}}
    info = IndexInfo("docs-hybridr", usual | (settings or {}), mappings, {})
    counted = {"version": (3, 6, 0), "status": "green", "segments": 10, "documents": 100, "deleted": 3}
    return Seen(info, **{**counted, "source": source(), **changes})


def source(*destinations: str, uuid: str = "1") -> IndexInfo:
    """The source, and the uuids of the indices with vectors that it knows."""
    meta = {"_meta": {"hybridr": {"destinations": destinations}}} if destinations else {}
    return IndexInfo("docs", {"index.uuid": uuid}, meta, {})


def test_a_sound_index_passes() -> None:
    check = check_vectors(seen())
    assert (check.ok, check.found) == (True, "100 documents in 10 segments, no known trap")


@pytest.mark.parametrize(
    ("one", "found", "fix"),
    [
        (seen({"index.knn": "false"}), "index.knn is not set", "hybridr reindex docs-hybridr"),
        (seen({ADVANCED: "-1"}), "no graph is built", f'{{"{ADVANCED}": 0}}'),
        (
            seen({"index.knn.algo_param.ef_search": "10"}),
            "ef_search is 10",
            '"index.knn.algo_param.ef_search": 100',
        ),
        (
            seen(vector={"method": {"engine": "nmslib"}}),
            "v is of nmslib",
            "hybridr reindex docs --engine lucene",
        ),
        (seen(segments=60), "30 segments a shard", "max_num_segments=1"),
        (seen(deleted=70), "41% of what is walked", "only_expunge_deletes"),
        (seen(status="yellow"), "replicas have no node", '"index.number_of_replicas": 0'),
        (seen(record={"vectors": "on_disk"}), "k-NN#3414", "hybridr verify docs-hybridr --recall"),
        (seen(record={"vectors": "on_disk"}, version=(2, 19, 1)), "k-NN#2720", "--recall"),
        (seen({"index.blocks.write": "true"}), "index.blocks.write", '{"index.blocks.write": null}'),
        (seen({"index.blocks.read_only_allow_delete": "true"}), "cannot write", "read_only_allow_delete"),
        (seen(source=source("other")), "which does not know it", "hybridr status docs"),
        (seen(source=source(uuid="another")), "which does not know it", "hybridr status docs"),
        (seen(source=None), "its source 'docs' is gone", "restore it first"),
        (seen(record={"in_place": True}), "a copy of 'docs', with its record", "hybridr sync docs-hybridr"),
    ],
)
def test_each_trap_is_named_with_its_way_out(one: Seen, found: str, fix: str) -> None:
    check = check_vectors(one)
    assert check.ok is None
    assert found in check.found
    assert check.found.startswith(f"{one.documents:,} documents in {one.segments} segments: ")
    assert fix in check.fix
    assert ";" not in check.found


def test_what_is_no_trap_is_not_named() -> None:
    for one in (
        seen(record={"vectors": "on_disk", "dim": 384}, version=(2, 19, 1)),
        seen({"index.knn.derived_source.enabled": "false"}, record={"vectors": "on_disk"}),
        seen({ADVANCED: "0"}),
        seen({EF_SEARCH: "512"}),
        seen({"index.blocks.write": "false"}, source=source("2", "other")),
        seen(record={"in_place": True, "source_uuid": "2"}),
    ):
        assert check_vectors(one).ok


HIDDEN = {"_source": {"excludes": ["v"]}}
ON_DISK = {"record": {"vectors": "on_disk", "dim": 1536}}
BY_VERSION = [
    ("k-NN#2720", ON_DISK, [(2, 17, 0), (2, 19, 1)], [(3, 0, 0), (3, 6, 0)]),
    ("k-NN#3414", ON_DISK, [(3, 0, 0), (3, 9, 0)], [(2, 19, 1)]),
    ("k-NN#3316", HIDDEN, [(3, 0, 0), (3, 6, 0), (3, 7, 9)], [(2, 19, 1), (3, 8, 0)]),
    ("k-NN#3191", {}, [(3, 5, 0), (3, 5, 9)], [(3, 4, 0), (3, 6, 0)]),
]


@pytest.mark.parametrize(("issue", "index", "inside", "outside"), BY_VERSION, ids=lambda one: str(one)[:9])
def test_a_trap_of_k_nn_is_told_by_its_versions_alone(
    issue: str, index: dict[str, Any], inside: list[Any], outside: list[Any]
) -> None:
    def told(version: tuple[int, int, int]) -> str:
        one = seen(version=version, **({} if "_source" in index else index))
        one.info.mappings.update({"_source": index["_source"]} if "_source" in index else {})
        return check_vectors(one).found

    assert all(issue in told(version) for version in inside)
    assert not any(issue in told(version) for version in outside)


def test_every_trap_of_a_version_is_tried_inside_and_outside_of_it() -> None:
    assert all(any(issue in trap.found for issue, *_ in BY_VERSION) for trap in VERSION_TRAPS)
    assert len(BY_VERSION) == len(VERSION_TRAPS)


def test_excludes_without_derived_source_are_no_trap() -> None:
    one = seen({"index.knn.derived_source.enabled": "false"})
    one.info.mappings.update(HIDDEN)
    assert "k-NN#3316" not in check_vectors(one).found
