"""Stored pipelines on a real node: what is put, and what is left alone."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import pytest

import hybridr_cli
from hybridr import reindex
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.default_pipeline import DEFAULT, stored_pipeline
from hybridr.deploying.deploying import deploy, undeploy
from hybridr.deploying.pipelines import delete_pipeline, put_pipeline
from hybridr.deploying.settings import DeploySettings
from hybridr.errors import ClusterError, NotFound, SettingsError
from hybridr.files.folders import asset_path
from hybridr.search.fusions.pipeline import LowerBound, Technique, hybrid_query
from hybridr.search.settings import SearchSettings
from support.corpus import fill_index, text_number
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node
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
def test_every_file_can_be_put_as_it_stands(cluster: Cluster, name: str, file) -> None:
    cluster.request("PUT", path_of("_search", "pipeline", name), file.read_text())
    assert stored_pipeline(cluster, name) == json.loads(file.read_text())


def test_put_again_changes_nothing_and_other_weights_do(cluster: Cluster, name: str) -> None:
    planned = put_pipeline(cluster, name, Technique(), dry_run=True)
    with pytest.raises(NotFound, match=f"no search pipeline '{name}'"):
        stored_pipeline(cluster, name)
    first = put_pipeline(cluster, name, Technique())
    assert first.changed
    assert first.requests == planned.requests
    assert not put_pipeline(cluster, name, Technique()).changed
    assert put_pipeline(cluster, name, Technique(weights=(0.25, 0.75))).changed
    assert '"weights": [0.25, 0.75]' in json.dumps(stored_pipeline(cluster, name))
    bounded = Technique(lower_bounds=(LowerBound("apply", 0), LowerBound("clip", 0.5)))
    assert put_pipeline(cluster, name, bounded).changed
    assert not put_pipeline(cluster, name, bounded).changed
    assert delete_pipeline(cluster, name).changed
    with pytest.raises(NotFound, match=f"no search pipeline '{name}'"):
        delete_pipeline(cluster, name)


def test_somebody_elses_pipeline_stays(cluster: Cluster, name: str) -> None:
    theirs = {"description": "theirs", "request_processors": [{"filter_query": {"query": {"match_all": {}}}}]}
    cluster.request("PUT", path_of("_search", "pipeline", name), theirs)
    with pytest.raises(ClusterError, match="not hybridr's"):
        put_pipeline(cluster, name, Technique())
    with pytest.raises(ClusterError, match="not hybridr's"):
        delete_pipeline(cluster, name)
    assert stored_pipeline(cluster, name) == theirs
    assert put_pipeline(cluster, name, Technique(), replace=True).changed
    with pytest.raises(SettingsError, match="no name of one pipeline"):
        delete_pipeline(cluster, "*")


def test_a_pipeline_in_use_stays(cluster: Cluster, name: str, index_name: str) -> None:
    fill_index(cluster, index_name, 20)
    put_pipeline(cluster, name, Technique())
    cluster.request("PUT", path_of(index_name, "_settings"), {DEFAULT: name})
    with pytest.raises(ClusterError, match=f"'{name}' is the default of {index_name}"):
        delete_pipeline(cluster, name)
    assert put_pipeline(cluster, name, Technique("l2")).changed, "its weights may change"
    cluster.request("PUT", path_of(index_name, "_settings"), {DEFAULT: None})
    reindex(cluster, index_name, HashingEncoder())
    done = deploy(cluster, index_name, DeploySettings(), SearchSettings())
    for change in (
        lambda: put_pipeline(cluster, done.pipeline, Technique("l2"), replace=True),
        lambda: delete_pipeline(cluster, done.pipeline),
    ):
        with pytest.raises(ClusterError, match="belongs to the deployment") as refused:
            change()
        assert "hybridr undeploy" in (refused.value.hint or "")
    undeploy(cluster, index_name)


def test_a_missing_pipeline_and_one_for_other_sub_queries_say_what_helps(
    cluster: Cluster, name: str, index_name: str
) -> None:
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
        assert "undeploy takes it off" in (error.hint or "")
    put_pipeline(cluster, name, Technique(weights=(0.5, 0.25, 0.25)))
    error = refused({"query": hybrid_query(legs, 10)}, name)
    assert "number of weights [3] must match number of sub-queries [2]" in error.message
    assert "--weights" in (error.hint or "")
    bounds = (LowerBound(), LowerBound(), LowerBound())
    put_pipeline(cluster, name, Technique(weights=(0.5, 0.25, 0.25), lower_bounds=bounds))
    error = refused({"query": hybrid_query([*legs, *legs], 10)}, name)
    assert "expected bounds array to contain 4 elements" in error.message
    assert "--lower-bounds" in (error.hint or "")


def test_our_own_searches_leave_a_default_pipeline_out(cluster: Cluster, index_name: str) -> None:
    fill_index(cluster, index_name, 3)
    cluster.request("PUT", path_of(index_name, "_settings"), {DEFAULT: "nowhere"})
    body = {"query": {"match_all": {}}}
    assert cluster.count(index_name) == 3
    assert len(cluster.search(index_name, body)["hits"]["hits"]) == 3
    assert [len(found["hits"]["hits"]) for found in cluster.msearch(index_name, [body, body])] == [3, 3]


def test_the_commands(cluster: Cluster, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    on = ["--url", cluster.url]
    put = ["pipeline", "put", name, "--normalization", "l2", "--weights", "0.3,0.7"]
    assert hybridr_cli.main([*put, "--dry-run", *on]) == 0
    assert capsys.readouterr().out.endswith("nothing was sent\n")
    assert hybridr_cli.main([*put, *on]) == 0
    assert hybridr_cli.main([*put, *on, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["changed"] is False
    assert hybridr_cli.main(["pipeline", "show", name, *on, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == stored_pipeline(cluster, name)
    assert hybridr_cli.main(["pipeline", "delete", name, *on]) == 0
    assert hybridr_cli.main(["pipeline", "show", name, *on]) == 1
    assert f"no search pipeline '{name}'" in capsys.readouterr().err
