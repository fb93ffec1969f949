"""doctor on real nodes: embedded and so without native vectors; with TLS, a password and few rights."""

from __future__ import annotations

import pytest

from hybridr import ReindexSettings, SearchSettings, connect
from hybridr.cluster.connection import path_of
from hybridr.cluster.embedded.state import NodeState
from hybridr.cluster.settings import ClusterSettings
from hybridr.doctor.diagnosis import check_deployments, diagnose, trial_steps
from hybridr.doctor.health_checks import Check, vector_checks
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings
from support.corpus import drop_indices, having, reindexed
from support.rights import PASSWORD, change_role, make_users


def test_a_complete_node_passes_and_nothing_is_left_behind(cluster):
    before = [info.name for info in cluster.indices("*")]
    checks = {check.name: check for check in diagnose(ClusterSettings(url=cluster.url))}
    assert [check for check in checks.values() if check.ok is False] == []
    assert checks["cluster"].found == f"OpenSearch 3.6.0 at {cluster.url}"
    assert cluster.url in checks["node"].found
    assert checks["hybrid search"].found.endswith("fused score 1.00")
    assert checks["engines"].found == "lucene only: a faiss field would kill this embedded node"
    assert all(not check.fix for check in checks.values() if check.ok)
    assert "which was removed" in checks["rights"].found
    assert cluster.indices("hybridr-doctor-*") == []
    assert [info.name for info in cluster.indices("*")] == before
    assert cluster.request("GET", "/_search/point_in_time/_all")["pits"] == []


def test_the_probe_never_asks_for_an_engine_that_kills(cluster, index_name):
    (_, create), *_ = trial_steps(cluster, index_name, True)
    create()
    mapping = cluster.index_info(index_name).mappings["properties"]["vector"]
    assert mapping["method"]["engine"] == "lucene"


def test_a_block_of_the_cluster_is_told(cluster, cli):
    block = "cluster.blocks.create_index"
    with having(cluster, {block: True}):
        said = cli(cluster, "doctor --quiet", code=1).out
    (line,) = [line for line in said.splitlines() if line.startswith("FAIL")]
    assert all(word in line for word in ("rights", "create", "block"))


def test_the_command_prints_one_line_per_check(cluster, cli):
    lines = cli(cluster, "doctor --quiet").out.splitlines()
    report = cli(cluster, "doctor --json").json
    assert report["ok"] is True
    assert len(report["checks"]) == len(lines)
    assert all(line.split()[0] in ("ok", "note") for line in lines)


@pytest.fixture(scope="module")
def reader(secure_node: NodeState) -> ClusterSettings:
    """A user who may read one index and nothing else."""
    admin = connect(secure_node.url)
    role = {
        "cluster_permissions": ["cluster:monitor/main"],
        "index_permissions": [{"index_patterns": ["books"], "allowed_actions": ["indices:data/read/search"]}],
    }
    make_users(admin, {"doctor_reader": role})
    return ClusterSettings(url=secure_node.url, user="doctor_reader", password=PASSWORD)


@pytest.mark.secure
def test_the_older_version_with_security_passes_too(secure_node):
    checks = {check.name: check for check in diagnose(ClusterSettings(url=secure_node.url))}
    assert [check for check in checks.values() if check.ok is False] == []
    assert checks["cluster"].found == f"OpenSearch 2.19.1 at {secure_node.url}"
    assert checks["hybrid search"].ok
    assert checks["rights"].ok


@pytest.mark.secure
def test_missing_rights_are_named_as_the_cluster_names_them(reader):
    checks = {check.name: check for check in diagnose(reader)}
    assert checks["cluster"].ok
    assert checks["rights"].ok is False
    assert checks["rights"].found == "create: missing indices:admin/create"
    assert checks["health"].found == "missing cluster:monitor/health"
    assert checks["plugins"].fix == "grant cluster:monitor/nodes/info"
    assert checks["engines"].ok is None, "what cannot be seen is not promised"


@pytest.mark.secure
def test_a_right_that_stops_half_way_leaves_nothing_behind(secure_node, reader):
    admin = connect(secure_node.url)
    allowed = [
        "indices:admin/create",
        "indices:admin/delete",
        "indices:data/write/*",
        "indices:admin/refresh*",
    ]
    role = {
        "cluster_permissions": ["cluster:monitor/main", "indices:data/write/bulk"],
        "index_permissions": [{"index_patterns": ["hybridr-doctor-*"], "allowed_actions": allowed}],
    }
    change_role(admin, "doctor_reader", role)
    checks = {check.name: check for check in diagnose(reader)}
    found = checks["rights"].found
    assert "create:" not in found
    assert "write:" not in found
    assert "read: missing indices:data/read/search" in found
    assert "point in time: missing indices:data/read/point_in_time/create" in found
    assert "alias: missing indices:admin/aliases" in found
    assert admin.indices("hybridr-doctor-*") == []


@pytest.mark.secure
def test_a_wrong_password_is_one_line_without_the_password(secure_node, monkeypatch, cli):
    monkeypatch.setenv("HYBRIDR_USER", "admin")
    monkeypatch.setenv("HYBRIDR_PASSWORD", "a-wrong-password")
    said = cli(secure_node, "doctor --quiet", code=1)
    (line,) = [line for line in said.out.splitlines() if line.startswith("FAIL")]
    assert "does not know this user or password (401)" in line
    assert "FIX: set HYBRIDR_USER and HYBRIDR_PASSWORD" in line
    assert "a-wrong-password" not in said.out + said.err


def test_indices_with_vectors_are_looked_at(cluster, index_name):
    made = reindexed(cluster, index_name, 20).destination

    def checks() -> dict[str, Check]:
        return {check.name: check for check in diagnose(ClusterSettings(url=cluster.url))}

    found = checks()
    assert found[f"vectors {made}"].ok
    assert found[f"vectors {made}"].found.startswith("20 documents in ")
    assert found["graph memory"].ok
    assert found["scripts"].ok
    settings = {
        "index.number_of_replicas": 1,
        "index.knn.advanced.approximate_threshold": -1,
        "index.blocks.write": True,
    }
    stranger, copied = f"{index_name}-hybridr-9", cluster.index_info(made).mappings
    cluster.request("PUT", path_of(stranger), {"mappings": copied, "settings": {"index.knn": True}})
    cluster.request("PUT", path_of(made, "_settings"), settings)
    forbidden = {"search.allow_expensive_queries": False}
    with having(cluster, forbidden):
        found = checks()
    assert "no graph is built" in found[f"vectors {made}"].found
    assert "replicas have no node" in found[f"vectors {made}"].found
    assert "index.blocks.write: hybridr sync cannot write" in found[f"vectors {made}"].found
    assert f"names '{index_name}' as its source, which does not list it" in found[f"vectors {stranger}"].found
    assert found["scripts"].ok is None
    assert "search.allow_expensive_queries is false" in found["scripts"].found
    assert [check for check in found.values() if check.ok is False] == []


@pytest.mark.parametrize(("in_place", "start"), [(False, ""), (True, ""), (True, ".")])
def test_hidden_and_closed_indices_with_vectors_are_looked_at(cluster, index_name, in_place, start):
    """A hidden or closed index with vectors in place was left out, and so was its deployment; then one whose
    name begins with a dot.
    """
    index_name = f"{start}{index_name}"
    hidden = {"settings": {"number_of_replicas": 0, "index.knn": True, "index.hidden": True}}
    made = reindexed(cluster, index_name, 20, chosen=ReindexSettings(in_place=in_place), **hidden).destination
    assert made == (index_name if in_place else f"{index_name}-hybridr-1")

    def check() -> Check:
        (found,) = [check for check in vector_checks(cluster) if check.name == f"vectors {made}"]
        return found

    assert check().found.startswith("20 documents")
    deploy(cluster, index_name, DeploySettings(), SearchSettings())
    assert [found.ok for found in check_deployments(cluster) if found.name == f"deployment {made}"] == [True]
    cluster.request("POST", path_of(index_name, "_close"))
    assert check().ok is None
    assert f"POST /{index_name}/_open" in check().fix
    cluster.request("POST", path_of(made, "_close"))
    assert (check().ok, check().fix) == (None, f"POST /{made}/_open")
    assert "it is closed" in check().found
    for name in (index_name, made):
        cluster.request("POST", path_of(name, "_open"))
    undeploy(cluster, index_name)
    if start:
        drop_indices(cluster, index_name)
