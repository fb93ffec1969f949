"""Preflight on a real node: templates that would interfere, disk and time in the dry run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.doctor.forecasting import START_S
from hybridr.errors import ClusterError
from hybridr.indexing import beside_index
from hybridr.indexing.preflight import Disk
from hybridr.indexing.reindexing import plan, reindex
from support.corpus import fill_index, sources, touching_pipeline
from support.hashing import HashingEncoder


@pytest.fixture(params=["composable", "legacy"])
def template(request: pytest.FixtureRequest, cluster: Cluster, index_name: str) -> Iterator[Any]:
    """Put a template of either kind over the names of destinations; removed afterwards."""
    composable = request.param == "composable"
    path = path_of("_index_template" if composable else "_template", f"{index_name}-template")

    def put(**what: Any) -> None:
        body = {"template": what, "priority": 900} if composable else what
        cluster.request("PUT", path, {"index_patterns": [f"{index_name}-hybridr-*"], **body})

    yield put
    cluster.request("DELETE", path)


def test_a_template_that_ruins_the_copy_is_refused(cluster, index_name, template):
    fill_index(cluster, index_name, 3)
    template(aliases={f"{index_name}-logs": {}})
    with pytest.raises(ClusterError, match="searches of it would find documents twice") as said:
        reindex(cluster, index_name, HashingEncoder())
    assert "index_patterns" in str(said.value.hint)
    template(mappings={"_source": {"enabled": False}})
    with pytest.raises(ClusterError, match="switches _source off"):
        reindex(cluster, index_name, HashingEncoder())
    assert not cluster.indices(f"{index_name}-hybridr-*")


RUINOUS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "index.analysis.analyzer.default.type": ({"analysis.analyzer.default.type": "keyword"}, {}),
    "_routing.required": ({}, {"_routing": {"required": True}}),
}


@pytest.mark.parametrize("named", RUINOUS)
def test_a_template_that_makes_another_index_is_refused(
    cluster: Cluster, index_name: str, template: Any, named: str
) -> None:
    """Before, the dry run was content: the copy read other words, or ended blocked or refused, half made."""
    fill_index(cluster, index_name, 3)
    settings, mappings = RUINOUS[named]
    template(settings=settings, mappings=mappings)
    with pytest.raises(
        ClusterError, match=f"gives '{index_name}-hybridr-1' what '{index_name}' has not"
    ) as said:
        plan(cluster, index_name, HashingEncoder(), ReindexSettings())
    assert named in said.value.message
    remedied(cluster, index_name, str(said.value.hint))


def test_a_template_of_the_source_is_none_of_another_index(
    cluster: Cluster, index_name: str, template: Any
) -> None:
    """It has made the source too; and a limit may be higher."""
    settings = {"analysis.analyzer.default.type": "standard", "similarity.default.type": "BM25"}
    fill_index(cluster, index_name, 3, settings={"number_of_replicas": 0, **settings})
    template(settings={**settings, "index.mapping.total_fields.limit": 5_000})
    assert reindex(cluster, index_name, HashingEncoder()).switched


def test_a_template_of_data_streams_is_refused(cluster: Cluster, index_name: str) -> None:
    """As the built-in one of Elasticsearch, `logs-*-*`, is for the copy of `logs-shop`."""
    fill_index(cluster, index_name, 3)
    path = path_of("_index_template", f"{index_name}-stream")
    body = {"index_patterns": [f"{index_name}-*"], "priority": 900, "data_stream": {}}
    cluster.request("PUT", path, body)
    try:
        with pytest.raises(ClusterError, match="a data stream, which only takes new documents") as said:
            plan(cluster, index_name, HashingEncoder(), ReindexSettings())
        remedied(cluster, index_name, str(said.value.hint))
    finally:
        cluster.request("DELETE", path)


def remedied(cluster: Cluster, index: str, hint: str) -> None:
    """Send the request that a hint names, and reindex."""
    path, body = hint.partition("PUT ")[2].split(" ", 1)
    cluster.request("PUT", path, json.loads(body))
    try:
        assert reindex(cluster, index, HashingEncoder()).switched
    finally:
        cluster.request("DELETE", path)


def test_a_harmless_template_is_told_and_does_not_change_the_copies(cluster, index_name, template):
    pipeline = touching_pipeline(cluster, index_name)
    fill_index(cluster, index_name, 3)
    template(
        settings={"index.final_pipeline": pipeline, "index.default_pipeline": pipeline},
        mappings={"properties": {"extra": {"type": "keyword"}}},
    )
    (remark,) = plan(cluster, index_name, HashingEncoder(), ReindexSettings()).remarks
    assert "index.final_pipeline" in remark
    assert "fields extra" in remark
    done = reindex(cluster, index_name, HashingEncoder())
    assert sources(cluster, done.destination) == sources(cluster, index_name)
    changes = dict.fromkeys(("default_pipeline", "final_pipeline"))
    cluster.request("PUT", path_of(done.destination, "_settings"), {"index": changes})
    cluster.request("DELETE", f"/_ingest/pipeline/{pipeline}")


def test_too_little_disk_is_refused_before_anything_is_made(cluster, index_name, monkeypatch):
    fill_index(cluster, index_name, 3)
    monkeypatch.setattr(beside_index, "estimate_disk", lambda *_: Disk(10**12, 10**9, "95%"))
    with pytest.raises(ClusterError, match="needs about 1000.0 GB"):
        reindex(cluster, index_name, HashingEncoder())
    assert not cluster.indices(f"{index_name}-hybridr-*")


@pytest.mark.usefixtures("fresh_vectors")
def test_the_dry_run_tells_disk_and_time(cluster, index_name, tiny, cli):
    fill_index(cluster, index_name, 50)
    command = ["reindex", index_name, "--encoder", str(tiny), "--url", cluster.url]
    command.append("--dry-run")
    shown = cli.typed([*command, "--json"]).json
    assert shown["disk"]["needed_bytes"] > 50 * 32 * 4
    assert shown["disk"]["usable_bytes"] > shown["disk"]["needed_bytes"]
    assert shown["seconds"] > 0
    assert shown["templates"] == []
    told = cli.typed([*command, "--max-docs-per-second", "0.5"]).out
    assert f"start and switch   {START_S:>8,.1f} s" in told
    assert "encode and write      100.0 s" in told, "as slowly as was asked"
    assert "usable below the flood stage" in told


@pytest.mark.elastic
def test_templates_are_asked_for_once(product: Cluster, name: str, sent: list[tuple[str, str]]) -> None:
    """Before, Elasticsearch was asked again for the policies that they give."""
    fill_index(product, name, 3)
    sent.clear()
    plan(product, name, HashingEncoder(), ReindexSettings())
    assert sum("_simulate_index" in path for _, path in sent) == 1
