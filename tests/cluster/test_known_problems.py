"""The table of known problems: versions, mappings and settings that bring a row into force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster.known_problems import (
    KnownProblem,
    all_problems,
    known_problems,
    problems_of_index,
    require_no_loss,
)
from hybridr.cluster.record import IndexInfo
from hybridr.errors import DataError
from support import known_problems as page

KNN = {"type": "knn_vector"}
DERIVED = {"index.knn.derived_source.enabled": "true"}
FAISS = {"name": "hnsw", "engine": "faiss"}


def cluster_of(number: str, product: str = "OpenSearch", lucene: str = "9.12.0") -> Any:
    version = {"number": number, "lucene_version": lucene}
    return SimpleNamespace(dialect=SimpleNamespace(product=product), info={"version": version})


def info_of(properties: dict[str, Any], settings: dict[str, str] | None = None, **mappings: Any) -> IndexInfo:
    return IndexInfo("docs", settings or {}, {"properties": properties, **mappings}, {})


def test_rows_are_fifteen_or_more_each_with_a_source_and_a_name_of_its_own() -> None:
    names = [problem.name for problem in all_problems()]
    assert len(names) == len(set(names)) >= 15
    assert all(problem.source.startswith("https://") for problem in all_problems())


def test_the_page_has_the_table_and_six_rows_are_shown_on_nodes() -> None:
    text = page.PAGE.read_text(encoding="utf-8")
    assert text == page.page_now(), "python tests/support/known_problems.py"
    assert text.count(f"`{page.TESTS}/") >= 6


@pytest.mark.parametrize(
    ("number", "known"),
    [("3.5.9", False), ("3.6.0", True), ("3.6.1-SNAPSHOT", True), ("3.7.0", False), ("3.10.0", False)],
)
def test_a_row_holds_from_a_version_to_before_the_one_that_mends_it(number: str, known: bool) -> None:
    info = info_of({"myVec": KNN}, DERIVED)
    names = [problem.name for problem in problems_of_index(cluster_of(number), info)]
    assert ("mixed-case-vectors" in names) is known


NESTED = {"type": "nested", "properties": {"v": KNN}}
OF_FAISS = {**KNN, "method": FAISS}
DENSE = {"v": {"type": "dense_vector"}}
INT8 = {"v": {"type": "dense_vector", "index_options": {"type": "int8_hnsw"}}}


@pytest.mark.parametrize(
    ("row", "number", "info"),
    [
        ("template-vectors", "3.3.0", info_of({}, dynamic_templates=[{"v": {"mapping": KNN}}])),
        ("vectors-not-in-source", "9.2.0", info_of(DENSE)),
        ("inner-hits-of-vectors", "3.6.0", info_of({"n": NESTED}, _source={"excludes": ["n.*"]})),
        ("nested-after-update", "3.0.0", info_of({"n": {"type": "nested", "properties": {"v": OF_FAISS}}})),
        ("nested-without-vectors", "3.7.0", info_of({"n": NESTED})),
        ("empty-quantized-segments", "3.6.0", info_of({"v": {**OF_FAISS, "mode": "on_disk"}})),
        ("closed-vector-files", "3.5.0", info_of({"v": KNN})),
        ("segment-replication-merge", "2.17.1", info_of({"v": KNN}, {"index.replication.type": "SEGMENT"})),
        ("at-sign-vectors", "2.19.1", info_of({"@v": OF_FAISS})),
        ("search-after-deletes", "2.18.0", info_of({"v": OF_FAISS})),
        ("merge-after-deletes", "2.11.0", info_of({"v": OF_FAISS})),
        ("blanks-in-vector-names", "2.16.0", info_of({"my vec": KNN})),
        ("hybrid-with-nested-fields", "2.11.0", info_of({"n": {"type": "nested"}})),
        ("excluded-vectors", "8.15.0", info_of(DENSE, _source={"excludes": ["v"]})),
        ("int8-merge", "8.12.0", info_of(INT8)),
        ("statistics-of-vectors", "8.15.1", info_of(DENSE)),
    ],
)
def test_each_row_comes_into_force_by_mapping_and_settings(row: str, number: str, info: IndexInfo) -> None:
    cluster = cluster_of(number, "Elasticsearch" if number[0] in "89" else "OpenSearch")
    assert row in {problem.name for problem in problems_of_index(cluster, info)}
    assert problems_of_index(cluster, info_of({"title": {"type": "text"}})) == []
    assert row not in {problem.name for problem in problems_of_index(cluster_of("99.0.0", "Other"), info)}


@pytest.mark.parametrize(
    ("row", "cluster"),
    [
        ("graphs-rebuilt", cluster_of("9.4.0", "Elasticsearch", "10.4.0")),
        ("graphs-thinned", cluster_of("3.8.0", "OpenSearch", "10.5.1")),
        ("diverging-replicas", cluster_of("9.5.2", "Elasticsearch")),
        ("hybrid-nested-aggregations", cluster_of("2.17.1")),
    ],
)
def test_what_every_index_has_is_of_the_cluster(row: str, cluster: Any) -> None:
    assert row in {problem.name for problem in known_problems(cluster) if not problem.of_indices}


def test_only_what_loses_something_is_refused() -> None:
    require_no_loss(cluster_of("3.5.0"), info_of({"v": KNN}))
    require_no_loss(cluster_of("3.6.0"), info_of({"myVec": KNN}, DERIVED, _source={"excludes": ["x"]}))
    with pytest.raises(DataError, match=r"known problem mixed-case-vectors \(a\.myVec\) of OpenSearch 3.6"):
        require_no_loss(cluster_of("3.6.0"), info_of({"a": {"properties": {"myVec": KNN}}}, DERIVED))
    elastic = cluster_of("9.2.0", "Elasticsearch")
    require_no_loss(elastic, info_of(DENSE, {"index.mapping.exclude_source_vectors": "false"}))
    with pytest.raises(DataError, match="vectors-not-in-source"):
        require_no_loss(elastic, info_of(DENSE))


def test_an_unknown_key_of_a_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="Extra inputs"):
        KnownProblem.model_validate({**all_problems()[0].model_dump(), "until": "3.7"})
