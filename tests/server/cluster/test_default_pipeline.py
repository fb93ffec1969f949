"""Search pipelines on a real node: the files can be put, errors say what helps, our searches need none."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.default_pipeline import DEFAULT, stored_pipeline
from hybridr.errors import ClusterError, NotFound
from hybridr.files.local import asset_path
from hybridr.search.fusions.pipeline import hybrid_query
from support.corpus import fill_index, text_number

FILES = sorted(asset_path("pipelines").glob("*.json"))


@pytest.fixture
def name(cluster: Cluster) -> Iterator[str]:
    """Give a fresh name of a pipeline; it is deleted afterwards."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    yield name
    try:
        cluster.request("DELETE", path_of("_search", "pipeline", name))
    except NotFound:
        pass


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_file_can_be_put_as_it_stands(cluster, name, file):
    cluster.request("PUT", path_of("_search", "pipeline", name), file.read_text())
    assert stored_pipeline(cluster, name) == json.loads(file.read_text())


def test_a_missing_pipeline_and_one_for_other_sub_queries_say_what_helps(cluster, name, index_name):
    fill_index(cluster, index_name, 3)
    legs = [{"match": {"text": text_number(1)}}] * 2  # the server says nothing where nothing is found

    def refused(body: dict, index_pipeline: str | None = None) -> ClusterError:
        cluster.request("PUT", path_of(index_name, "_settings"), {DEFAULT: index_pipeline})
        with pytest.raises(ClusterError) as caught:
            cluster.request("POST", path_of(index_name, "_search"), body)
        return caught.value

    for error in (
        refused({"query": {"match_all": {}}, "search_pipeline": "nowhere"}),
        refused({"query": {"match_all": {}}}, "nowhere"),
    ):
        assert "Pipeline nowhere is not defined" in error.message
        assert "undeploy removes it" in (error.hint or "")
    put_one_for_three(cluster, name, {"technique": "min_max"})
    error = refused({"query": hybrid_query(legs, 10)}, name)
    assert "number of weights [3] must match number of sub-queries [2]" in error.message
    assert "one weight per sub-query" in (error.hint or "")
    bounds = [{"mode": "apply", "min_score": 0.0}] * 3
    put_one_for_three(cluster, name, {"technique": "min_max", "parameters": {"lower_bounds": bounds}})
    error = refused({"query": hybrid_query([*legs, *legs], 10)}, name)
    assert "expected bounds array to contain 4 elements" in error.message
    assert "one bound per sub-query" in (error.hint or "")


def put_one_for_three(cluster: Cluster, name: str, normalization: dict[str, Any]) -> None:
    """Store a pipeline that joins three lists."""
    combination = {"technique": "arithmetic_mean", "parameters": {"weights": [0.5, 0.25, 0.25]}}
    processor = {"normalization-processor": {"normalization": normalization, "combination": combination}}
    cluster.request("PUT", path_of("_search", "pipeline", name), {"phase_results_processors": [processor]})
