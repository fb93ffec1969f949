"""A small application runs unchanged before, during and after a deployment; docs/query.md shows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.indexing.reindexing import reindex
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings
from support.corpus import drop_indices
from support.deployed import serving_index, settle
from support.shop import Shop, transcript

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX = "shop"
PAGE = Path(__file__).parents[3] / "docs" / "measured" / "query.md"


@pytest.fixture(scope="module")
def shop(ml_cluster: Cluster, minilm: Path) -> Iterator[Shop]:
    Shop(ml_cluster.url, INDEX).fill()
    reindex(ml_cluster, INDEX, minilm)
    yield Shop(ml_cluster.url, f"{INDEX}-hybridr")
    drop_indices(ml_cluster, f"{INDEX}*")


@pytest.fixture(scope="module")
def answers(ml_cluster: Cluster, shop: Shop, minilm: Path) -> dict[str, dict[str, Any]]:
    """The answers of the index that the application knew, of the deployed one, and of that one afterwards."""
    before = Shop(ml_cluster.url, INDEX).answers()
    found = {"before": before}
    with serving_index(ml_cluster, INDEX, minilm) as server:
        asked = DeploySettings(way="transparent", server=server.url, set_cluster_settings=True)
        deploy(ml_cluster, INDEX, asked, SearchSettings())
        shop.answers()  # its query is seen for the first time
        settle(server)
        found["deployed"] = shop.answers()
        widely = DeploySettings(way="transparent", server=server.url, recall="all")
        deploy(ml_cluster, INDEX, widely, SearchSettings())
        found["--recall all"] = shop.answers()
        found["deleted"] = {"warm": shop.sell_out("warm")}
        undeploy(ml_cluster, INDEX)
        found["after, sold out"] = shop.answers()
    return found


def test_the_application_goes_on_and_ranks_better(answers):
    before, deployed, widely = (answers[time] for time in ("before", "deployed", "--recall all"))
    for name in ("cheapest", "counted", "shown of a hit"):
        assert before[name] == deployed[name] == widely[name], name
    for name in ("found", "rooms", "nothing"):
        assert before[name] == deployed[name], name
    assert sum(widely["rooms"].values()) == widely["found"] > before["found"]
    assert widely["nothing"], "what no document has a word of has neighbours"
    assert not set(deployed["first page"]) & set(deployed["second page"])
    assert deployed["first page"] != before["first page"]
    for name in ("found", "rooms", "nothing"):
        assert answers["after, sold out"][name] == before[name], name
    assert answers["deleted"] == {"warm": before["counted"]}, "what words match, and no more"


def test_the_page_shows_what_it_answers(answers):
    said = transcript({time: answers[time] for time in ("before", "deployed", "--recall all")})
    assert said in PAGE.read_text(encoding="utf-8"), f"docs/measured/query.md should show:\n{said}"
