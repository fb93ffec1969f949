"""`--rerank cross` on a real node: the scores of `assemble`, added to those of a search, in time or told."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve, write_record
from hybridr.errors import DataError, ModelError, SettingsError
from hybridr.files.formats import write_beir
from hybridr.records import Document, Query
from hybridr.search.rerankers.cross import CrossReranker
from hybridr.search.retrieval import Retrieval
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from support.corpus import text_number
from support.golden_ddr import SOURCE, golden
from support.golden_ddr import cross_encoder as exported

TEXT, OWN = "garden marble zephyr", {"folder": exported(), "candidates": 12, "weight": 3.0}


@pytest.fixture(scope="module")
def plain(cluster: Cluster, searchable: Any) -> Search:
    name, encoder = searchable
    return Search(cluster, name, encoder, settings=SearchSettings(depth=40))


def test_the_logit_is_that_of_assemble_and_is_added(plain):
    before, after = plain(TEXT, 40), plain.reranked("cross", **OWN)(TEXT, 40, explain=True)
    logits = golden("rerank").score([(TEXT, text_number(int(hit.doc_id[1:]))) for hit in before[:12]])
    wanted = dict(zip([hit.doc_id for hit in before], logits.tolist(), strict=False))
    found = {hit.doc_id: hit for hit in after}
    assert {doc: found[doc].scores["cross"] for doc in wanted} == pytest.approx(wanted, abs=1e-5)
    factor = plain.reranked("cross", **OWN).reordering.members[0].factor  # type: ignore[attr-defined]
    for hit in before[:12]:
        added = factor * (wanted[hit.doc_id] - min(wanted.values()))
        assert found[hit.doc_id].score == pytest.approx(hit.score + added, abs=1e-3)
        assert (found[hit.doc_id].parts or {})["cross"] == pytest.approx(added, abs=1e-3)
    assert [hit.doc_id for hit in after[:12]] != [hit.doc_id for hit in before[:12]]
    assert {hit.doc_id for hit in after[:12]} == {hit.doc_id for hit in before[:12]}
    assert [hit.doc_id for hit in after[12:]] == [hit.doc_id for hit in before[12:]], "not read, in place"
    assert [hit.score for hit in after] == sorted((hit.score for hit in after), reverse=True)


def test_its_spread_is_that_of_the_vectors(plain):
    one = plain.reranked("cross", folder=exported(), candidates=40)
    hits = one(text_number(77), 40, explain=True)
    added = np.std([(hit.parts or {})["cross"] for hit in hits])
    assert 0.02 < added < 0.5, "half of the cosines' spread, as weights of .5 give it, or near"

    # Pages join and runs are the same.
    search = plain.reranked("cross", **OWN)
    whole = search(TEXT, 50)
    paged = [hit for start in range(0, 50, 7) for hit in search(TEXT, 7, offset=start)][:50]
    assert [(hit.doc_id, hit.rank) for hit in paged] == [(hit.doc_id, hit.rank) for hit in whole]
    assert list(search.run([Query("q", TEXT), Query("r", "anchor")], 10)["q"]) == [
        hit.doc_id for hit in whole[:10]
    ]


@pytest.mark.parametrize("mode", ["lexical", "dense"])
def test_one_leg_takes_it_too(plain, mode):
    before, after = plain.using(mode)(TEXT, 12), plain.using(mode).reranked("cross", **OWN)(TEXT, 12)
    hybrid = {hit.doc_id: hit.scores["cross"] for hit in plain.reranked("cross", **OWN)(TEXT, 12)}
    gained = {hit.doc_id: hit.score for hit in after}
    scale = plain.using(mode).reordering.scales(plain.using(mode).context.compile([TEXT], 12))[0]
    factor = plain.reranked("cross", **OWN).reordering.members[0].factor / scale  # type: ignore[attr-defined]
    shared = [hit for hit in before if hit.doc_id in hybrid]
    logits = {hit.doc_id: hit.scores["cross"] or 0.0 for hit in after}
    least = min(logits.values())
    assert shared
    for hit in shared:
        assert logits[hit.doc_id] == pytest.approx(hybrid[hit.doc_id], abs=1e-5)
        added = factor * (logits[hit.doc_id] - least)
        assert gained[hit.doc_id] == pytest.approx(hit.score + added, abs=1e-3)


def test_what_is_not_read_in_time_keeps_its_place_and_is_told(plain, cluster, searchable):
    name, encoder = searchable
    settings = SearchSettings(depth=40, rerank="cross", rerank_settings={**OWN, "budget_s": 1e-9})
    app = create_app(encoder, ServeSettings(index=name), cluster=cluster, search=settings)
    found = TestClient(app).post("/search", json={"query": TEXT, "k": 5})
    hits = found.json()["hits"]
    assert [hit["doc_id"] for hit in hits] == [hit.doc_id for hit in plain(TEXT, 5)]
    assert found.json()["warning"] == "5 of 5 hits were not read by the cross-encoder within 1e-09 s"
    assert "5 of 5 hits" in found.headers["Warning"]
    late = Search(cluster, name, encoder, settings=settings)
    in_time = plain.reranked("cross", **OWN)
    assert late.run([Query("q", TEXT)], 5) == in_time.run([Query("q", TEXT)], 5), "measuring takes its time"
    assert not in_time.reordering.late_remarks(in_time(TEXT, 5))


def test_the_command_line_the_server_and_evaluate_have_it(
    plain, cluster, searchable, cli, monkeypatch, tmp_path
):
    name, encoder = searchable
    expected = [hit.doc_id for hit in plain.using("lexical").reranked("cross", **OWN)(TEXT, 5)]
    own = ",".join(f"{one}={value}" for one, value in OWN.items())
    monkeypatch.setenv("HYBRIDR_SEARCH_RERANK_SETTINGS", own)
    monkeypatch.setenv("HYBRIDR_SEARCH_DEPTH", "40")
    on = ["--url", cluster.url, "--json"]
    asked = ["search", name, TEXT, "-k", "5", "--mode", "lexical", "--rerank", "cross"]
    assert [hit["doc_id"] for hit in cli.typed([*asked, *on]).json["hits"]] == expected
    settings = SearchSettings(depth=40, rerank="cross", rerank_settings=OWN)
    app = create_app(encoder, ServeSettings(index=name), cluster=cluster, search=settings)
    found = TestClient(app).post("/search", json={"query": TEXT, "k": 5, "mode": "lexical"}).json()
    assert [hit["doc_id"] for hit in found["hits"]] == expected
    assert found["hits"][0]["cross_score"] is not None
    body = {"query": {"match": {"text": TEXT}}}
    ranked = json.loads(TestClient(app).post("/v1/rank", content=json.dumps(body)).json()["body"])
    assert "rescore" in ranked, "what clients send is ranked as ever, without it"
    assert "warning" not in found
    write_beir(tmp_path, [Document(expected[0], "a")], [Query("q", TEXT)], {"q": {expected[0]: 1}})
    systems = ["--systems", "lexical,lexical+cross", "--measures", "P@1,nDCG@10"]
    table = cli.typed(["evaluate", name, "--beir", str(tmp_path), *systems, *on]).json["systems"]
    assert table["lexical+cross"]["P@1"] == 1.0


def test_what_cannot_rank_is_told(plain, cluster, searchable, monkeypatch):
    name, encoder = searchable
    with pytest.raises(SettingsError, match=r"needs the folder of a cross-encoder"):
        plain.reranked("cross")
    for weight in (0, float("nan"), float("inf"), -1):
        with pytest.raises(SettingsError, match="weight: input should be"):
            plain.reranked("cross", folder=exported(), weight=weight)
    with pytest.raises(SettingsError, match="unknown setting 'wieght', did you mean 'weight'"):
        plain.reranked("cross", folder=exported(), wieght=1)
    with pytest.raises(ModelError, match="holds no pair scorer"):
        plain.reranked("cross", folder=SOURCE)
    stock = Search(cluster, name, encoder, settings=SearchSettings(fusion="pipeline"))
    with pytest.raises(SettingsError, match="adds to true scores, which the fusion 'pipeline' does not give"):
        stock.reranked("cross", **OWN)
    searching, rescored = plain.reranked("cross", **OWN), CrossReranker.rescored
    less = lambda self, lists: [hits[1:] for hits in rescored(self, lists)]  # noqa: E731
    monkeypatch.setattr(CrossReranker, "rescored", less)
    with pytest.raises(ModelError, match="the re-ranker 'cross' was given 12 hits and returned 11"):
        searching(TEXT, 5)

    # Hits without texts are told.
    monkeypatch.setattr(Retrieval, "fetch_contents", lambda self, lists: {})
    with pytest.raises(DataError, match="the hits hold no text that could be read"):
        plain.reranked("cross", **OWN)(TEXT, 5)


def test_a_record_names_no_folder_of_this_machine(cluster, searchable):
    name, encoder = searchable
    info = resolve(cluster, name)
    planted = {"rerank": "cross", "rerank_settings": {"folder": str(exported()), "weight": 3}}
    write_record(cluster, info.name, tuning={"search": planted})
    try:
        with pytest.raises(SettingsError, match="needs the folder of a cross-encoder"):
            Search(cluster, name, encoder)
    finally:
        write_record(cluster, info.name, tuning=None)
