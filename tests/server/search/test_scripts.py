"""A cluster that forbids scripts: searches add up the same scores in several requests, with a word."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from hybridr import ReindexSettings, Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import write_record
from hybridr.cluster.record_parts import Tuned
from hybridr.errors import SettingsError
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.files.formats import read_corpus
from hybridr.indexing.reindexing import reindex
from hybridr.records import Hit, Query
from hybridr.search import checks, scripts, systems
from hybridr.search.systems import Compared, evaluate_index
from hybridr.serving.deploy.deploying import plan_deployment
from hybridr.serving.settings import DeploySettings
from support.corpus import beir_folder, bulk, drop_indices, having
from support.hashing import HashingEncoder

INDEX = "t-scripts"
TEXT = "anchor needle velvet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return beir_folder(tmp_path_factory.mktemp("scripts") / "beir")


@pytest.fixture(scope="module")
def index(cluster: Cluster, folder: Any) -> Iterator[str]:
    properties = {"text": {"type": "text"}, "year": {"type": "long"}}
    cluster.request("PUT", f"/{INDEX}", {"mappings": {"properties": properties}})
    documents = [({"index": {"_id": one.pop("_id")}}, one) for one in read_corpus(folder)]
    bulk(cluster, INDEX, [line for pair in documents for line in pair])
    reindex(cluster, INDEX, HashingEncoder(dim=32))
    yield INDEX
    drop_indices(cluster, f"{INDEX}*")


def scripts_forbidden(cluster: Cluster) -> AbstractContextManager[None]:
    """Forbid scripts for a while."""
    return having(cluster, {"search.allow_expensive_queries": False})


def shown(hits: list[Hit]) -> list[Any]:
    """What must be the same in both ways."""
    return [(hit.doc_id, hit.rank, pytest.approx(hit.score, abs=1e-4), hit.text) for hit in hits]


@pytest.mark.parametrize(
    "given",
    [{}, {"boost": "linear(year, 20):0.1"}, {"signals": ("none",), "dense_weight": 0.3}],
    ids=["default", "boost", "plain"],
)
def test_it_ranks_by_the_same_scores(cluster, index, given):
    encoder, settings = HashingEncoder(dim=32), SearchSettings(depth=40, **given)
    search = Search(cluster, index, encoder, settings=settings)
    usual, explained = search(TEXT, 10), search(TEXT, 10, explain=True)
    filtered = search(TEXT, 10, filter={"range": {"year": {"gte": 1}}})
    ranked = search.run([Query("q", TEXT)], 10)["q"]
    with scripts_forbidden(cluster):
        other = Search(cluster, index, encoder, settings=settings)
        assert other.fusion == other.using("hybrid").fusion == "absolute"
        assert set(other.signals.members) == set(search.signals.members)
        [remark] = other.remarks
        assert "ranked in several requests" in remark
        assert "search.allow_expensive_queries is false" in remark
        assert len(usual) == 10
        found = other(TEXT, 10, explain=True)
        assert shown(usual) == shown(other(TEXT, 10)) == shown(found)
        assert shown(filtered) == shown(other(TEXT, 10, filter={"range": {"year": {"gte": 1}}}))
        assert other.run([Query("q", TEXT)], 10)["q"] == pytest.approx(ranked, abs=1e-4)
    for hit, before in zip(found, explained, strict=True):
        assert hit.parts == (before.parts and pytest.approx(before.parts, abs=1e-4))
        assert hit.scores["lexical"] == pytest.approx(before.scores["lexical"], abs=1e-4)
        assert hit.scores["dense"] == pytest.approx(before.scores["dense"], abs=1e-4)
    assert Search(cluster, index, encoder, settings=settings).remarks == []


def test_pages_join_beyond_the_depth(cluster, index):
    with scripts_forbidden(cluster):
        search = Search(cluster, index, HashingEncoder(dim=32), settings=SearchSettings(depth=5))
        whole = [(hit.doc_id, hit.rank) for hit in search(TEXT, 18)]
        paged = [hit for start in range(0, 18, 7) for hit in search(TEXT, 7, offset=start)]
    assert [rank for _, rank in whole] == list(range(1, 19))
    assert len(dict(whole)) == 18
    assert [(hit.doc_id, hit.rank) for hit in paged][:18] == whole

    # The transparent way is refused and the proxy is named.
    settings = DeploySettings(way="transparent")
    with scripts_forbidden(cluster), pytest.raises(SettingsError, match="runs no scripts") as refused:
        plan_deployment(cluster, index, settings, SearchSettings(boost="linear(year, 20):0.1"))
    assert refused.value.hint == "hybridr serve --proxy lexical ranks without scripts"


def test_token_bits_are_left_out_with_a_word(cluster, index):
    done = reindex(
        cluster, index, HashingEncoder(dim=32), ReindexSettings(token_bits=True, alias=f"{INDEX}-bits")
    )
    with scripts_forbidden(cluster):
        bits, plain = (
            Search(
                cluster, done.destination, HashingEncoder(dim=32), settings=SearchSettings(signals=signals)
            )
            for signals in (("phrases", "token_bits"), ("phrases",))
        )
        [remark] = bits.remarks
        assert "without token_bits" in remark
        assert shown(bits(TEXT, 5)) == shown(plain(TEXT, 5))


def test_a_search_that_is_open_goes_on(cluster, index, monkeypatch):
    monkeypatch.setattr(scripts, "RECHECK_S", 0.0)
    search = Search(cluster, index, HashingEncoder(dim=32))
    ranked, boost = search(TEXT, 5), "linear(year, 20):0.1"
    boosted = search(TEXT, 5, boost=boost)
    assert shown(boosted) != shown(ranked)
    with scripts_forbidden(cluster):
        assert shown(search(TEXT, 5)) == shown(ranked)
        assert shown(search(TEXT, 5, boost=boost)) == shown(boosted)
        with pytest.raises(SettingsError, match="runs no scripts"):
            search.body(TEXT)
    assert search(TEXT, 5) == ranked


def test_commands_say_it(cluster, index, folder, monkeypatch, cli):
    for module in (checks, systems):
        monkeypatch.setattr(module, "encoder_for", lambda *_, **__: HashingEncoder(dim=32))
    with scripts_forbidden(cluster):
        found = evaluate_index(cluster, index, JudgedQueries(folder), Compared(("bm25", "hybrid")))
        told, data = (cli(cluster, f"search {index} {more}", TEXT) for more in ("", "--json"))
    [remark] = found.remarks
    assert remark.startswith("hybrid: ranked in several requests: the cluster runs no scripts")
    assert "the cluster runs no scripts" in told.err
    assert "the cluster runs no scripts" in data.json["remarks"][0]


def test_an_index_that_was_tuned_for_an_unknown_fusion_says_what_to_run(cluster, index):
    info = cluster.index_info(f"{index}-hybridr")
    write_record(cluster, info.name, tuning=Tuned(search={"fusion": "completed", "completed_weight": 0.9}))
    try:
        with pytest.raises(
            SettingsError, match="fusion 'completed', which this version does not have"
        ) as caught:
            Search(cluster, info.name, HashingEncoder(dim=32))
        assert str(caught.value.hint).endswith(" --reset")
    finally:
        write_record(cluster, info.name, tuning=None)
