"""Known problems that the nodes here have: seen, named, and refused where something would be lost."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.known_problems import known_problems, problems_of_index
from hybridr.cluster.settings import ClusterSettings
from hybridr.doctor.diagnosis import diagnose
from hybridr.doctor.inspection import inspect_index
from hybridr.errors import ClusterError, DataError
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from support.corpus import create
from support.hashing import HashingEncoder
from support.known_problems import shown

SECURE = pytest.mark.secure
VECTOR = {
    "type": "knn_vector",
    "dimension": 4,
    "method": {"name": "hnsw", "engine": "lucene", "space_type": "l2"},
}
NMSLIB = {"name": "hnsw", "engine": "nmslib", "space_type": "l2"}
DOCUMENT = {"title": "marble gardens", "myVec": [1, 2, 3, 4], "parts": {"some_vec": [4, 3, 2, 1]}}
MIXED = {"title": {"type": "text"}, "myVec": VECTOR, "parts": {"properties": {"some_vec": VECTOR}}}


def names(cluster: Cluster, index: str) -> set[str]:
    return {problem.name for problem in problems_of_index(cluster, cluster.index_info(index))}


def make(cluster: Cluster, index: str, properties: dict[str, Any], **settings: Any) -> None:
    create(cluster, index, properties, {"index.knn": True, **settings})


def put(cluster: Cluster, index: str, document: dict[str, Any]) -> dict[str, Any]:
    """Index a document, and give its source as searches see it."""
    cluster.request("PUT", f"/{index}/_doc/1", document, params={"refresh": "true"})
    hits = cluster.request("POST", f"/{index}/_search", {"query": {"match_all": {}}})["hits"]["hits"]
    source: dict[str, Any] = hits[0]["_source"]
    return source


@shown("mixed-case-vectors")
def test_vectors_of_mixed_case_are_lost_to_copies_and_refused(cluster, index_name):
    make(cluster, index_name, MIXED)
    source = put(cluster, index_name, DOCUMENT)
    assert source == DOCUMENT | {"myVec": 1}, "the node's own fault; without it the row has to end"
    with pytest.raises(ClusterError, match="dimension mismatch"):
        cluster.request("POST", f"/{index_name}/_update/1", {"doc": {"title": "another"}})
    for settings in (ReindexSettings(), ReindexSettings(in_place=True)):
        with pytest.raises(
            DataError, match=r"known problem mixed-case-vectors \(myVec\) of OpenSearch 3.6.0 to before 3.7.0"
        ) as refused:
            reindex(cluster, index_name, HashingEncoder(), settings)
        assert "upgrade to 3.7" in (refused.value.hint or "")
    assert [info.name for info in cluster.indices(f"{index_name}*")] == [index_name], "nothing was begun"
    assert any(
        "myVec" not in line and "mixed-case" in line for line in inspect_index(cluster, index_name).advice
    )


def test_without_a_derived_source_vectors_of_mixed_case_are_copied(cluster, index_name):
    make(cluster, index_name, MIXED, **{"index.knn.derived_source.enabled": False})
    assert put(cluster, index_name, DOCUMENT) == DOCUMENT
    done = reindex(cluster, index_name, HashingEncoder())
    copy = cluster.request("GET", f"/{done.destination}/_doc/1")["_source"]
    assert {name: copy[name] for name in DOCUMENT} == DOCUMENT
    assert "mixed-case-vectors" not in names(cluster, done.destination)
    reindex(cluster, index_name, HashingEncoder(dim=8), ReindexSettings(vector_field="ourVector"))


@shown("graphs-rebuilt")
def test_the_version_of_lucene_is_looked_at(cluster, index_name):
    assert cluster.info["version"]["lucene_version"].startswith("10.4.")
    checks = {check.name: check for check in diagnose(ClusterSettings(url=cluster.url))}
    assert "(known problem graphs-rebuilt, Lucene 10.4.0" in checks["known problems"].found
    make(cluster, index_name, {"v": VECTOR})
    assert names(cluster, index_name) == set(), "what every index has is told once"


@shown("nmslib")
def test_nmslib_is_refused_by_3(cluster, index_name):
    with pytest.raises(ClusterError, match="nmslib engine is deprecated"):
        make(cluster, index_name, {"v": VECTOR | {"method": {"name": "hnsw", "engine": "nmslib"}}})


@shown("blanks-in-vector-names")
def test_names_with_blanks_are_refused_by_later_versions(cluster, index_name):
    with pytest.raises(ClusterError, match="must not include invalid characters"):
        make(cluster, index_name, {"my vector": VECTOR})


@SECURE
@shown("no-combined-fields")
def test_2_19_has_no_combined_fields(secure_node):
    older = connect(secure_node.url)
    query = {"combined_fields": {"query": "red", "fields": ["title"]}}
    with pytest.raises(ClusterError, match=r"unknown query \[combined_fields\]"):
        older.request("POST", "/_search", {"query": query})
    assert "no-combined-fields" in {problem.name for problem in known_problems(older)}
    checks = {check.name: check for check in diagnose(ClusterSettings(url=secure_node.url))}
    assert "no-combined-fields, OpenSearch 2.0.0 to before 3.2.0" in checks["known problems"].found


@SECURE
@shown("hybrid-without-inner-hits")
def test_2_19_gives_no_inner_hits_of_hybrid_queries(secure_node):
    older, index, pipeline = connect(secure_node.url), "t-known-inner", "/_search/pipeline/t-known"
    parts = {"type": "nested", "properties": {"colour": {"type": "keyword"}}}
    make(older, index, {"title": {"type": "text"}, "parts": parts, "nmslib_v": {**VECTOR, "method": NMSLIB}})
    try:
        older.request("PUT", f"/{index}/_doc/1", {"parts": [{"colour": "red"}]}, params={"refresh": "true"})
        older.request("PUT", pipeline, {"phase_results_processors": [{"normalization-processor": {}}]})
        query = {"term": {"parts.colour": "red"}}
        nested = {"nested": {"path": "parts", "query": query, "inner_hits": {}}}
        params = {"search_pipeline": "t-known"}
        body = {"query": {"hybrid": {"queries": [nested]}}}
        (hit,) = older.request("POST", f"/{index}/_search", body, params)["hits"]["hits"]
        assert "inner_hits" not in hit
        assert names(older, index) == {"hybrid-without-inner-hits", "nmslib"}
    finally:
        older.request("DELETE", f"/{index}")
        older.request("DELETE", pipeline)
