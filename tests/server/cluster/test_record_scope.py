"""An alias with a filter or a routing shows no more through hybridr than it does through REST."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from hybridr import ReindexSettings, Search, SearchSettings
from hybridr.cluster import fields
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import put_record, resolve
from hybridr.cluster.reading import read_documents, sample_documents
from hybridr.cluster.record_parts import Tuned
from hybridr.doctor.inspection import inspect_index
from hybridr.errors import ClusterError
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.files.formats import write_beir
from hybridr.index import Index
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from hybridr.records import Query, silent
from hybridr.relevance.corpus import read_index
from hybridr.relevance.settings import TuneSettings
from hybridr.relevance.tuning import reset_tuning, tune
from hybridr.search.systems import Compared, evaluate_index
from hybridr.serving.deploy import ingesting
from hybridr.status.standing import remove, status
from support.corpus import add_alias, reindexed, text_number
from support.hashing import HashingEncoder

SOURCE = "t-shared"
TENANT = {f"d{number}" for number in range(0, 60, 3)}
ENCODER = HashingEncoder(dim=16)


@pytest.fixture(scope="module")
def shared(cluster: Cluster) -> Iterator[Cluster]:
    """An index on three shards with vectors, and aliases that show parts of it and of its destination."""
    settings = {"number_of_replicas": 0, "number_of_shards": 3}
    made = reindexed(cluster, SOURCE, 60, ENCODER, settings=settings).destination
    tenant, routed = {"filter": {"term": {"tags": "t0"}}}, {"search_routing": "one,two"}
    for place, index in (("source", SOURCE), ("made", made)):
        for name, part in (("tenant", tenant), ("routed", routed), ("both", tenant | routed)):
            add_alias(cluster, index, f"t-{name}-{place}", **part)
    yield cluster
    remove(cluster, SOURCE, discard=True)
    cluster.request("DELETE", path_of(SOURCE))


def shown(cluster: Cluster, alias: str) -> set[str]:
    """What the server itself shows through an alias."""
    found = cluster.request("POST", path_of(alias, "_search"), {"size": 100, "_source": False})
    return {hit["_id"] for hit in found["hits"]["hits"]}


ALIASES = [f"t-{name}-{place}" for name in ("tenant", "routed", "both") for place in ("source", "made")]


@pytest.mark.attack(1, 2)
@pytest.mark.parametrize("alias", ALIASES)
def test_no_way_to_search_shows_more_than_the_alias(shared, alias):
    expected = shown(shared, alias)
    assert 0 < len(expected) < 60
    info = resolve(shared, alias)
    assert info.scope
    assert info.name.endswith("-hybridr-1")
    text = text_number(1)  # of a document that no tenant sees
    ways: list[tuple[Any, ...]] = [("lexical", None), ("lexical", "rm3"), ("dense", None), ("hybrid", None)]
    searches = [Search(shared, alias, ENCODER, mode, feedback) for mode, feedback in ways]
    searches += [
        Search(shared, alias, ENCODER, settings=SearchSettings(**given))
        for given in ({"fusion": "pipeline"}, {"fusion": "absolute", "depth": 5, "signals": ("all",)})
    ]
    for search in searches:
        hits = [hit.doc_id for hit in search(text, 60)]
        assert set(hits) <= expected
        assert set(search.run([Query("q", text)], 60)["q"]) <= expected
        if search.mode != "lexical":  # neighbours are looked for among what the alias shows
            assert len(hits) >= min(search.settings.depth, len(expected))
    hybrid = Search(shared, alias, ENCODER)
    assert set(hybrid.candidates([text])[0].documents) <= expected
    own = {"term": {"tags": "a"}}
    assert {hit.doc_id for hit in hybrid(text, 60, filter=own)} <= expected
    assert {hit.doc_id for hit in hybrid(text, 20, offset=5)} <= expected
    if not info.scope.routing:  # the body is for clients, who route by the name they ask
        answer = shared.search(SOURCE + "-hybridr", hybrid.body(text, 60))
        assert {hit["_id"] for hit in answer["hits"]["hits"]} <= expected


@pytest.mark.parametrize("alias", ALIASES)
def test_nothing_reads_more_than_the_alias(shared, alias, monkeypatch):
    expected = shown(shared, alias)
    info = resolve(shared, alias)
    assert {one.doc_id for one in read_documents(shared, alias)} == expected
    assert {one.doc_id for one in read_documents(shared, info)} == expected
    assert {one.doc_id for one in sample_documents(shared, info, 5)} <= expected
    assert {one.doc_id for one in read_index(shared, alias, (), silent)} == expected
    assert shared.count(info) == inspect_index(shared, alias).documents == len(expected)
    monkeypatch.setattr(fields, "CHOOSING_SAMPLE", 5)
    assert inspect_index(shared, alias).sampled == 5


def test_evaluate_measures_what_the_alias_shows(shared, tmp_path, monkeypatch):
    monkeypatch.setattr("hybridr.search.systems.encoder_for", lambda *_, **__: ENCODER)
    judged = {"q": {f"d{number}": 1 for number in (3, 6, 1)}}
    write_beir(tmp_path, [], [Query("q", text_number(3))], judged)
    compared = Compared(("bm25", "dense", "hybrid"))
    found = evaluate_index(shared, "t-tenant-source", JudgedQueries(tmp_path), compared)
    for run in found.runs.values():
        assert set(run["q"]) <= TENANT


@pytest.mark.parametrize("verb", [verify, status, rollback, remove])
def test_what_works_on_all_of_an_index_refuses_a_part(shared, verb):
    for alias in ("t-tenant-source", "t-routed-made"):
        with pytest.raises(ClusterError, match=r"is an alias with a (filter|routing): this works on all of"):
            verb(shared, alias)


def test_undeploy_refuses_a_part_before_it_takes_anything_away(shared, monkeypatch):
    monkeypatch.setattr(ingesting, "undeploy_ingest", lambda *_, **__: pytest.fail("the pipeline went"))
    with pytest.raises(ClusterError, match=r"is an alias with a filter: this works on all of"):
        Index(shared, "t-tenant-source").undeploy()


def test_tune_writes_for_all_searches_and_refuses_a_part(shared):
    made = f"{SOURCE}-hybridr-1"
    before = shared.index_info(made).record
    put_record(shared, shared.index_info(made), before.changed(tuning=Tuned(search={"weight": 0.1})))
    plain = TuneSettings()
    for alias in ("t-tenant-source", "t-routed-made"):
        for verb in (partial(tune, encoder=ENCODER, settings=plain), reset_tuning):
            with pytest.raises(ClusterError, match=r"is an alias with a (filter|routing): this works on all"):
                verb(shared, alias)
        dry = plain.model_copy(update={"dry_run": True})
        assert tune(shared, alias, encoder=ENCODER, settings=dry).index == made
    assert shared.index_info(made).record.tuning == Tuned(search={"weight": 0.1})
    put_record(shared, shared.index_info(made), before)


@pytest.mark.attack(3)
def test_reindex_refuses_a_part(shared):
    before = {info.name for info in shared.indices("*")}
    with pytest.raises(
        ClusterError, match="is an alias with filter and search_routing, but 't-both-source-hyb"
    ):
        reindex(shared, "t-both-source", HashingEncoder(salt="other"))
    with pytest.raises(ClusterError, match="is an alias with a filter: this works on all of"):
        reindex(shared, "t-tenant-source", ENCODER, ReindexSettings(in_place=True))
    assert {info.name for info in shared.indices("*")} == before


def test_a_pattern_does_not_lose_an_alias_s_filter(shared):
    with pytest.raises(ClusterError, match="by aliases, of which some show only a part of it"):
        Search(shared, "t-tenant-so*", ENCODER)
    assert resolve(shared, "t-shar*d").scope == resolve(shared, SOURCE).scope
