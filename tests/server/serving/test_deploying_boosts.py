"""A boost that is deployed: clients that change nothing get it, as `hybridr search --boost` ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster
from hybridr.errors import SettingsError
from hybridr.indexing.switching import deploy_command
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, plan_deployment, undeploy
from hybridr.serving.settings import DeploySettings
from hybridr.status.standing import status
from support.corpus import drop_indices, reindexed
from support.deployed import Server, ask, ids, scores, serving_index
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX, TEXT, BOOST = "priced", "anchor needle velvet", "linear(price, 10):0.3"
MATCH = {"query": {"match": {"text": TEXT}}, "size": 20}


@pytest.fixture(scope="module")
def server(ml_cluster: Cluster) -> Iterator[Server]:
    reindexed(ml_cluster, INDEX, 100)
    with serving_index(ml_cluster, INDEX) as running:
        yield running
    drop_indices(ml_cluster, f"{INDEX}*")


def test_clients_that_change_nothing_get_the_boost(ml_cluster, server, cli):
    settings = DeploySettings(way="transparent", server=server.url, set_cluster_settings=True, recall="all")
    search = Search(ml_cluster, INDEX, HashingEncoder())
    plain, boosted = search(TEXT, 20), search(TEXT, 20, boost=BOOST)
    assert [hit.doc_id for hit in plain] != [hit.doc_id for hit in boosted]
    for formula, hits in ((BOOST, boosted), ("", plain)):
        done = deploy(ml_cluster, INDEX, settings, SearchSettings(boost=formula))
        assert done.changed, "another boost is another deployment"
        assert not deploy(ml_cluster, INDEX, settings, SearchSettings(boost=formula)).changed
        answer = ask(ml_cluster, done.index, MATCH)
        assert ids(answer) == [hit.doc_id for hit in hits]
        assert scores(answer) == pytest.approx([hit.score for hit in hits], abs=1e-4)
        info = ml_cluster.index_info(done.index)
        assert info.record.deployment.boost == formula
        [holding] = status(ml_cluster, INDEX).holdings
        assert holding.deployment.boost == formula
        assert (f", boost {BOOST} (" in cli(ml_cluster, f"status {INDEX}").out) is bool(formula)
        assert info.record.deployment.recall == "all"
        assert (f"--boost '{formula}'" in deploy_command(info, info.record.deployment)) is bool(formula)
    undeploy(ml_cluster, INDEX)


@pytest.mark.parametrize(
    ("way", "boost", "said"),
    [
        ("client", BOOST, "does not support boosts"),
        ("transparent", "log1p(text):1", "is text, log1p needs a number"),
    ],
)
def test_a_boost_that_cannot_be_added_is_refused(ml_cluster, server, way, boost, said):
    settings = DeploySettings(way=way, server=server.url)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match=said):
        plan_deployment(ml_cluster, INDEX, settings, SearchSettings(boost=boost))
