"""A `deploy` or `undeploy` that is killed, or overtaken by another one, after any of its requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.default_pipeline import CACHE, DEFAULT, pipeline_path, stored_pipeline
from hybridr.cluster.destinations import resolve
from hybridr.errors import ClusterError, DataError
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, deployment_of, undeploy
from hybridr.serving.settings import DeploySettings
from support.commands import Killed, kill, with_interruption
from support.corpus import filled_and_reindexed
from support.hashing import HashingEncoder

CHANGES = ("PUT", "DELETE")


def after_change(cluster: Cluster, number: int, act: Callable[[Any], Any]) -> Cluster:
    """Return a connection that calls `act` after its change of this number."""
    return with_interruption(cluster, lambda method, _: method in CHANGES, act, number=number, after=True)


@pytest.fixture(scope="module")
def index(cluster: Cluster) -> Iterator[str]:
    """An index that every test leaves undeployed."""
    with filled_and_reindexed(cluster, "t-killed", 20, HashingEncoder(), settings={CACHE: "true"}) as name:
        yield resolve(cluster, name).name


def deploys(cluster: Cluster, index: str, weight: float = 0.25) -> None:
    deploy(cluster, index, DeploySettings(), SearchSettings(dense_weight=weight))


def require_as_before(cluster: Cluster, index: str) -> None:
    info = cluster.index_info(index)
    assert (info.record.deployment, info.settings.get(DEFAULT), info.settings[CACHE]) == (None, None, "true")
    assert stored_pipeline(cluster, f"hybridr-{index}") is None


def is_usable(cluster: Cluster, index: str) -> bool:
    body = {"query": {"match": {"text": "text"}}}
    return "hits" in cluster.request("POST", path_of(index, "_search"), body)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("deployed", [False, True])
def test_what_a_killed_deploy_changed_is_put_back(cluster, index, number, deployed):
    if deployed:
        deploys(cluster, index, 0.5)
    with pytest.raises(Killed):
        deploys(after_change(cluster, number, kill), index)
    if number % 2:
        deploys(cluster, index)
        assert deployment_of(cluster, cluster.index_info(index)).missing == []
    undeploy(cluster, index)
    require_as_before(cluster, index)


@pytest.mark.parametrize("number", range(4))
def test_a_killed_undeploy_is_ended_by_the_next(cluster, index, number):
    deploys(cluster, index)
    with pytest.raises(Killed):
        undeploy(after_change(cluster, number, kill), index)
    with suppress(DataError):
        undeploy(cluster, index)
    require_as_before(cluster, index)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("act", [deploys, undeploy])
def test_of_two_runs_the_later_one_goes_on(cluster, index, number, act):
    with pytest.raises(ClusterError, match="ran at the same time") as caught:
        deploys(after_change(cluster, number, lambda _: act(cluster, index)), index, 0.75)
    assert "run the same command again" in (caught.value.hint or "")
    assert is_usable(cluster, index)
    if act is deploys:
        assert deployment_of(cluster, cluster.index_info(index)).missing == []
        assert not deploy(cluster, index, DeploySettings(), SearchSettings(dense_weight=0.25)).changed
        undeploy(cluster, index)
    require_as_before(cluster, index)


@pytest.mark.parametrize("number", range(3))
def test_a_deploy_during_an_undeploy_goes_on(cluster, index, number):
    deploys(cluster, index)
    with pytest.raises(ClusterError, match="ran at the same time"):
        undeploy(after_change(cluster, number, lambda _: deploys(cluster, index, 0.75)), index)
    assert is_usable(cluster, index)
    assert deployment_of(cluster, cluster.index_info(index)).missing == []
    undeploy(cluster, index)
    require_as_before(cluster, index)


def test_a_pipeline_that_somebody_changed_is_stored_anew(cluster, index):
    deploys(cluster, index)
    before, path = stored_pipeline(cluster, f"hybridr-{index}"), pipeline_path(f"hybridr-{index}")
    cluster.request("PUT", path, {"description": before["description"], "request_processors": []})
    deploys(cluster, index)
    assert stored_pipeline(cluster, f"hybridr-{index}") == before
    undeploy(cluster, index)
