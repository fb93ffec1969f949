"""An index that keeps its documents in part, or makes them anew of its fields: nothing of them vanishes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.errors import ClusterError, DataError
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.stages.transfer import export_text, import_vectors
from hybridr.indexing.stages.vectors import encode_texts
from hybridr.indexing.verification import verify
from support.corpus import bulk, create, sources
from support.hashing import HashingEncoder

TEXT = ReindexSettings(fields=("text",))
FIELDS = {"text": {"type": "text"}, "secret": {"type": "text"}}
Filter = dict[str, list[str]]


def filtered(cluster: Cluster, index: str, rule: Filter) -> None:
    """An index that indexes `secret` and gives `text` back alone."""
    settings = {"number_of_replicas": 0, "knn": True}
    create(cluster, index, FIELDS, settings, _source=rule)
    bulk(cluster, index, [{"index": {"_id": "1"}}, {"text": "anchor basket", "secret": "candle"}])


def ways(cluster: Cluster, index: str, folder: Path) -> dict[str, Callable[[], Any]]:
    """Give what makes something of the documents of an index."""
    encoder = HashingEncoder()
    return {
        "reindex": lambda: reindex(cluster, index, encoder, TEXT),
        "dry run": lambda: plan(cluster, index, encoder, TEXT),
        "in place": lambda: reindex(cluster, index, encoder, ReindexSettings(in_place=True)),
        "export-text": lambda: export_text(cluster, index, folder),
    }


@pytest.mark.parametrize("way", ways(None, "", Path()))  # type: ignore[arg-type]
@pytest.mark.parametrize(
    "rule", [{"excludes": ["secret"]}, {"includes": ["text"]}], ids=["excludes", "includes"]
)
def test_a_filtered_source_is_refused_before_anything_is_written(cluster, index_name, tmp_path, way, rule):
    filtered(cluster, index_name, rule)
    before = cluster.index_info(index_name)
    with pytest.raises(DataError, match="does not keep its documents whole") as refused:
        ways(cluster, index_name, tmp_path / "out")[way]()
    (kind, [name]) = next(iter(rule.items()))
    assert f"_source.{kind}: {name}" in refused.value.message
    assert "load the documents again" in str(refused.value.hint)
    assert cluster.index_info(index_name) == before
    assert [one.name for one in cluster.indices(f"{index_name}*")] == [index_name]
    assert not (tmp_path / "out").exists()


def test_vectors_of_a_filtered_source_are_not_imported(cluster, index_name, tmp_path, monkeypatch):
    filtered(cluster, index_name, {"excludes": ["secret"]})
    with monkeypatch.context() as before:
        before.setattr("hybridr.indexing.stages.transfer.require_whole_source", lambda info: None)
        export_text(cluster, index_name, tmp_path, TEXT)
    encode_texts(tmp_path, HashingEncoder())
    with pytest.raises(DataError, match="does not keep its documents whole"):
        import_vectors(cluster, index_name, tmp_path, HashingEncoder())
    assert [one.name for one in cluster.indices(f"{index_name}*")] == [index_name]


def test_of_a_derived_source_all_that_is_searched_is_copied(cluster, index_name):
    fields = FIELDS | {"tags": {"type": "keyword"}, "day": {"type": "date"}, "place": {"type": "geo_point"}}
    create(
        cluster, index_name, fields, {"number_of_replicas": 0, "derived_source.enabled": True, "knn": True}
    )
    document = {"text": "anchor", "secret": ["candle", "b"], "tags": ["b", "a"], "day": "2024-01-02"}
    bulk(cluster, index_name, [{"index": {"_id": "1"}}, document | {"place": "1,2"}])
    with pytest.raises(ClusterError, match="derived source"):
        reindex(cluster, index_name, HashingEncoder(), ReindexSettings(in_place=True))
    assert plan(cluster, index_name, HashingEncoder(), TEXT).details["settings_left_out"] == [
        "derived_source.enabled"
    ]
    done = reindex(cluster, index_name, HashingEncoder(), TEXT)
    assert sources(cluster, done.destination) == sources(cluster, index_name)
    near = {"geo_distance": {"distance": "1km", "place": {"lat": 1, "lon": 2}}}
    for query in (
        {"match": {"secret": "candle"}},
        {"term": {"tags": "a"}},
        {"term": {"day": "2024-01-02"}},
        near,
    ):
        assert cluster.count(done.destination, query) == cluster.count(index_name, query) == 1
    bulk(cluster, index_name, [{"index": {"_id": "2"}}, {"text": "basket"}])
    assert sync(cluster, index_name, HashingEncoder()).copied == 1
    assert verify(cluster, index_name, HashingEncoder()).ok
