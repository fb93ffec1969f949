"""What a shop sends, without and with a transparent deployment: all that looks for a text is ranked, and
nothing else of any answer changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError
from hybridr.indexing.reindexing import reindex
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings
from support.corpus import drop_indices
from support.deployed import Server, ids, scores, serving_index, settle
from support.hashing import HashingEncoder
from support.matrix import told
from support.store import FIELDS_ASKED, Sent, fill_store, multi, others, searches

pytestmark = [pytest.mark.node, pytest.mark.ml, pytest.mark.usefixtures("few_probes")]
SOURCE, INDEX, COUNT = "store", "store-hybridr-1", 400
SHOWN = ("aggregations", "suggest", "_shards", "timed_out")


@pytest.fixture(scope="module")
def store(ml_cluster: Cluster) -> Iterator[Cluster]:
    fill_store(ml_cluster, SOURCE, COUNT)
    reindex(ml_cluster, SOURCE, HashingEncoder())
    yield ml_cluster
    drop_indices(ml_cluster, f"{SOURCE}*")


@pytest.fixture(scope="module")
def server(store: Cluster) -> Iterator[Server]:
    with serving_index(store, SOURCE) as running:
        yield running


class Answers(NamedTuple):
    """A request's answers before the deployment and after it, and what the server said of it."""

    old: Any
    new: Any
    reasons: list[str | None]


@pytest.fixture(scope="module")
def answers(store: Cluster, server: Server) -> Iterator[dict[str, Answers]]:
    sent = [*searches(), *others()]
    before = [asked(store, one) for one in sent]
    settings = DeploySettings(way="transparent", server=server.url, set_cluster_settings=True)
    deploy(store, SOURCE, settings, SearchSettings())
    metrics, said = server.app.state.embedder.metrics, list[str | None]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "count_ranking", said.append)
        for _ in range(5):  # what is seen for the first time is calibrated; a busy machine is slow
            said.clear()
            for one in sent:
                asked(store, one)
            settle(server)
            if "calibrating" not in said:
                break
        found = {}
        for one, old in zip(sent, before, strict=True):
            said.clear()
            found[one.kind] = Answers(old, asked(store, one), list(said))
    yield found
    undeploy(store, SOURCE)


def asked(cluster: Cluster, one: Sent) -> Any:
    try:
        return cluster.request("POST", f"{path_of(INDEX)}/{one.api}", one.body or None, one.params)
    except ClusterError as failure:
        return failure.status


def test_all_that_looks_for_a_text_is_ranked(answers):
    kinds = [one.kind for one in searches()]
    left = {kind: answers[kind].reasons for kind in kinds if answers[kind].reasons[:1] != [None]}
    assert len(kinds) >= 60
    assert left == {}
    assert [one.kind for one in others() if None in answers[one.kind].reasons] == []
    changed = [kind for kind in kinds if ids(answers[kind].old) != ids(answers[kind].new)]
    assert len(changed) > len(kinds) / 2


@pytest.mark.parametrize("one", [*searches(), *others()], ids=lambda one: one.kind)
def test_nothing_else_changes(answers, one):
    old, new, _ = answers[one.kind]
    assert type(old) is type(new), (old, new)
    if isinstance(old, int):
        assert old == new
        return
    assert old.keys() == new.keys()
    assert told({name: old.get(name) for name in SHOWN}) == told({name: new.get(name) for name in SHOWN})
    assert old["hits"].get("total") == new["hits"].get("total")
    assert len(old["hits"]["hits"]) == len(new["hits"]["hits"])
    assert not any("hybridr_vector" in hit.get("_source", {}) for hit in new["hits"]["hits"])
    if not one.ranked:
        assert ids(old) == ids(new)
        return
    assert old["hits"]["hits"], "something is found"
    assert {part for hit in old["hits"]["hits"] for part in hit} == {
        part for hit in new["hits"]["hits"] for part in hit
    }
    before = {hit["_id"]: hit.get("highlight") for hit in old["hits"]["hits"]}
    for hit in new["hits"]["hits"]:
        assert hit.get("highlight") == before.get(hit["_id"], hit.get("highlight"))


def test_a_long_misspelt_text_in_many_fields_is_not_too_much_for_the_cluster(store, answers):
    long = "redd leathr armchir cst iron fryng pann wth wrm lght"
    body = {"query": multi(long, [*FIELDS_ASKED, "brand", "sku"], fuzziness="AUTO", max_expansions=10)}
    plain = store.search(INDEX, body)
    for _ in range(2):
        assert (
            store.request("POST", path_of(INDEX, "_search"), body)["hits"]["total"] == plain["hits"]["total"]
        )


def test_ties_change_no_order_and_pages_after_a_hit_go_on_where_it_stands(store, answers):
    tied = next(one.body for one in searches() if one.kind == "sort by score, then by price")
    whole = store.request("POST", path_of(INDEX, "_search"), tied | {"size": 60})
    alone = answers["sort by score"].new
    assert scores(whole)[:10] == pytest.approx(scores(alone), rel=1e-5)
    pairs = [hit["sort"] for hit in whole["hits"]["hits"]]
    assert pairs == sorted(pairs, key=lambda pair: (-pair[0], pair[1]))
    pages, after = list[str](), dict[str, Any]()
    for _ in range(3):
        page = store.request("POST", path_of(INDEX, "_search"), tied | {"size": 20} | after)
        pages += ids(page)
        after = {"search_after": page["hits"]["hits"][-1]["sort"]}
    assert pages == ids(whole)
    assert page["hits"]["total"] == whole["hits"]["total"]
