"""Disk estimates from what a cluster answers, without a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.mappings import bytes_kept_free
from hybridr.cluster.record import IndexInfo
from hybridr.errors import AccessDenied, ClusterError
from hybridr.indexing.preflight import (
    Disk,
    MatchingTemplate,
    check_disk,
    check_limits,
    check_templates,
    estimate_disk,
    flat_settings,
    matching_templates,
    policies_for,
)

GB = 1_000_000_000
SOURCE = IndexInfo("docs", {}, {}, {})


class Answering:
    """A cluster with two data nodes of 100 GB, 20 and 3 of them free, and a manager's disk."""

    def __init__(self, flood: str = "95%", threshold: str = "true", forbidden: str = "") -> None:
        self.flood, self.threshold, self.forbidden = flood, threshold, forbidden

    def request(self, method: str, path: str, *_: Any, **__: Any) -> Any:
        if self.forbidden and self.forbidden in path:
            raise AccessDenied("no permissions")
        if path.endswith("/_stats/store"):
            return {"_all": {"primaries": {"store": {"size_in_bytes": GB}}}}
        if path == "/_cluster/settings":
            disk = "cluster.routing.allocation.disk"
            defaults = {f"{disk}.watermark.flood_stage": "95%", f"{disk}.threshold_enabled": self.threshold}
            changed = {f"{disk}.watermark.flood_stage": self.flood}
            return {"defaults": defaults, "persistent": changed, "transient": {}}
        return {"nodes": {str(n): node for n, node in enumerate(self.nodes())}}

    def nodes(self) -> list[dict[str, Any]]:
        free = [(["data", "ingest"], 20), (["data_hot"], 3), (["cluster_manager"], 90)]
        return [
            {"roles": roles, "fs": {"total": {"total_in_bytes": 100 * GB, "available_in_bytes": left * GB}}}
            for roles, left in free
        ]


def estimated(**answers: str) -> Disk | None:
    source = IndexInfo("docs", {"index.number_of_replicas": "1"}, {}, {})
    return estimate_disk(cast(Cluster, Answering(**answers)), source, 2 * GB)


@pytest.mark.parametrize(
    ("answers", "usable"),
    [
        ({}, 15),
        ({"flood": "0.90"}, 10),
        ({"flood": "2gb"}, 23 - 2 * 2 * 1.073741824),
        ({"threshold": "false"}, 23),
    ],
)
def test_what_the_data_nodes_may_still_take(answers: dict[str, str], usable: float) -> None:
    disk = estimated(**answers)
    assert (disk.needed_bytes, disk.usable_bytes) == (6 * GB, pytest.approx(usable * GB))


@pytest.mark.parametrize("path", ["_stats", "_nodes", "_cluster"])
def test_without_the_rights_nothing_is_known_and_nothing_refused(path: str) -> None:
    assert estimated(forbidden=path) is None
    check_disk(None, "docs-hybridr-1")


def test_a_cluster_whose_nodes_take_no_new_shard() -> None:
    name = "cluster.routing.allocation.disk.watermark.high"
    with pytest.raises(ClusterError, match=f"above {name} \\(90%\\)"):
        check_disk(Disk(1 * GB, 5 * GB, "95%", takes_shards=False, high="90%"), "x")
    assert estimated() == Disk(6 * GB, 15 * GB, "95%", takes_shards=True, high="90%")


@pytest.mark.parametrize("path", ["_cluster/settings", "_cluster/health"])
def test_limits_that_may_not_be_read_are_told(path: str) -> None:
    source = IndexInfo("docs", {"index.number_of_shards": "1"}, {}, {})
    [remark] = check_limits(cast(Cluster, Answering(forbidden=path)), source)
    assert "limits of the cluster are unknown" in remark
    assert "cluster:monitor/" in remark


def test_elasticsearch_bounds_what_a_watermark_keeps_free_on_a_large_disk() -> None:
    name = "cluster.routing.allocation.disk.watermark.flood_stage"
    settings = {name: "95%", f"{name}.max_headroom": "100gb"}
    assert bytes_kept_free(settings, name, 10 * 2**40) == 100 * 2**30
    assert bytes_kept_free(settings, name, 2**40) == round(2**40 * (1 - 95 / 100))
    unbounded = settings | {f"{name}.max_headroom": "-1"}
    assert bytes_kept_free(unbounded, name, 10 * 2**40) == round(10 * 2**40 * (1 - 95 / 100))


def test_too_little_disk_is_refused() -> None:
    check_disk(Disk(5 * GB, 5 * GB, "95%"), "x")
    with pytest.raises(ClusterError, match=r"needs about 6.0 GB, .* have 5.0 GB below the flood stage \(95%"):
        check_disk(Disk(6 * GB, 5 * GB, "95%"), "x")


def test_templates_without_the_right_to_read_them() -> None:
    cluster = cast(Cluster, Answering(forbidden="template"))
    assert matching_templates(cluster, "x") is None
    (remark,) = check_templates(cluster, "x", SOURCE, None)
    assert "could not be looked at" in remark


RUINOUS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "index.similarity.default.type": ({"index.similarity.default.type": "boolean"}, {}),
    "index.blocks.write": ({"index.blocks.write": "true"}, {}),
    "index.hidden": ({"index.hidden": "true"}, {}),
    "index.mapping.total_fields.limit": ({"index.mapping.total_fields.limit": "2"}, {}),
    "index.sort.field": ({"index.sort.field": "price"}, {}),
    "an object 'price'": ({}, {"properties": {"price": {"properties": {"net": {"type": "float"}}}}}),
    "no object 'author'": ({}, {"properties": {"author": {"type": "text"}}}),
}


@pytest.mark.parametrize("named", RUINOUS)
def test_a_template_that_makes_another_index_is_refused(named: str) -> None:
    """Before, the dry run was content: the copy read other words, or ended blocked or refused, half made."""
    cluster, (settings, mappings) = cast(Cluster, Answering(forbidden="template")), RUINOUS[named]
    fields = {"price": {"type": "float"}, "author": {"properties": {"name": {"type": "text"}}}}
    source = IndexInfo("docs", {}, {"properties": fields}, {})
    template = MatchingTemplate("template", settings, mappings, {})
    with pytest.raises(ClusterError, match="gives 'docs-hybridr-1' what 'docs' has not") as refusal:
        check_templates(cluster, "docs-hybridr-1", source, [template])
    assert named in refusal.value.message
    harmless = MatchingTemplate("template", {"index.mapping.total_fields.limit": "5000"}, {}, {})
    assert check_templates(cluster, "docs-hybridr-1", source, [harmless])


def test_nested_settings_get_dotted_names() -> None:
    assert flat_settings({"index": {"a": "1", "b": {"c": "2"}}}) == {"index.a": "1", "index.b.c": "2"}


class Policies:
    """A cluster with index state management."""

    url = "http://somewhere"
    reading_answer = Cluster.reading_answer

    def request(self, method: str, path: str, *_: Any, **__: Any) -> Any:
        assert path == "/_plugins/_ism/policies"
        aging = {"ism_template": [{"index_patterns": ["docs*"], "priority": 1}]}
        others: list[Any] = [{"ism_template": None}, {"ism_template": [{"index_patterns": ["logs-*"]}]}, {}]
        held = {"aging": aging} | {f"other-{number}": one for number, one in enumerate(others)}
        return {"policies": [{"_id": name, "policy": policy} for name, policy in held.items()]}


def test_a_policy_that_would_age_or_delete_the_new_index_is_told() -> None:
    [caution] = policies_for(cast(Cluster, Policies()), "docs-hybridr-1", ())
    assert "policy 'aging' of index state management will take 'docs-hybridr-1'" in caution
    assert policies_for(cast(Cluster, Policies()), "shop-hybridr-1", ()) == []


class Lifecycles:
    """An Elasticsearch whose template gives new indices a policy."""

    def request(self, method: str, path: str, *_: Any, **__: Any) -> Any:
        if "_ism" in path:
            raise ClusterError("no handler found for uri")
        assert path == "/_index_template/_simulate_index/docs-hybridr-1"
        return {"template": {"settings": {"index": {"lifecycle": {"name": "gone-in-a-week"}}}}}


def test_a_policy_that_a_template_gives_to_the_new_index_is_told() -> None:
    """Before, the dry run named a setting, and the run nothing; the policy deletes the index in its time."""
    cluster, index = cast(Cluster, Lifecycles()), "docs-hybridr-1"
    templates = matching_templates(cluster, index) or ()
    [caution] = policies_for(cluster, index, [template.settings for template in templates])
    assert "policy 'gone-in-a-week' of index lifecycle management will take 'docs-hybridr-1'" in caution
    assert 'PUT /docs-hybridr-1/_settings {"index.lifecycle.name": null}' in caution
