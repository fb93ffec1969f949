"""A template ranks as the transparent way ranks its query: every form of both collections of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, get_args

import pytest

from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.errors import DataError, SettingsError
from hybridr.indexing.reindexing import reindex
from hybridr.records import Query
from hybridr.search.clauses import NotRanked
from hybridr.search.rules.matching import RuleBook
from hybridr.search.rules.rule import Rule
from hybridr.search.settings import RecallMode
from hybridr.serving.rewriting.rewriting import BodyRanking
from support import matrix, store
from support.corpus import drop_indices
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("few_probes")]
ENCODER, COUNT, MOST = HashingEncoder(), 200, 100
ADDED = {"field_value_factor": {"field": "stock", "missing": 0}, "boost_mode": "sum"}
MATCH = {"match": {"text": "{{query}}"}}
BOOSTED = {"multi_match": {"query": "{{query}}", "fields": ["title^9", "text"]}}


def named(kind: str, body: dict[str, Any], texts: tuple[str, ...]) -> tuple[str, dict[str, Any], str] | None:
    """Return a query's name, the query as a template, and the text that it looks for."""
    written = json.dumps(body.get("query") or {})
    text = next((one for one in texts if f'"{one}"' in written), None)
    if text is None:
        return None
    return kind, json.loads(written.replace(f'"{text}"', '"{{query}}"')), text


STORE = [
    named(one.kind, one.body, (store.LAMP, store.CHAIR, store.PAN, store.LIKE_OAK, "armchair"))
    for one in [*store.searches(), *store.others()]
]
MART = [named(one.name, one.body, (matrix.TEXT, "anchor needle")) for one in [*matrix.RANKED, *matrix.KEPT]]
FORMS = [
    *(("mart", *form) for form in {json.dumps(one[1]): one for one in MART if one}.values()),
    *(("shop", *form) for form in {json.dumps(one[1]): one for one in STORE if one}.values()),
]


@pytest.fixture(scope="module")
def filled(cluster: Cluster) -> Iterator[Cluster]:
    matrix.fill_mart(cluster, "own-mart", COUNT)
    store.fill_store(cluster, "own-shop", COUNT)
    for name in ("own-mart", "own-shop"):
        reindex(cluster, name, ENCODER)
    yield cluster
    drop_indices(cluster, "own-*")


def opened(cluster: Cluster, index: str, folder: Path, query: Any, recall: RecallMode = "all") -> Search:
    file = folder / "own.json"
    file.write_text(json.dumps({"query": query}))
    settings = SearchSettings(query_template=file, recall=recall)
    return Search(cluster, index, ENCODER, settings=settings)


@pytest.fixture(scope="module")
def rankings(filled: Cluster) -> dict[tuple[str, RecallMode], BodyRanking]:
    searches = {name: Search(filled, name, ENCODER) for name in ("own-mart", "own-shop")}
    return {
        (name, finds): BodyRanking(searches[name], finds)
        for name in searches
        for finds in get_args(RecallMode)
    }


def transparent(ranking: BodyRanking, query: dict[str, Any]) -> dict[str, float] | NotRanked:
    """Rank a query as `/v1/rank` has the cluster do it, or return why it does not."""
    search = ranking.search
    body = {"query": query, "size": MOST, "_source": False}
    parsed = ranking.read(body)
    ranked = parsed if isinstance(parsed, NotRanked) else ranking.rank(parsed)
    if isinstance(ranked, NotRanked):
        return ranked
    found = search.cluster.search(search.info.name, ranked.body)
    return {hit["_id"]: hit["_score"] for hit in found["hits"]["hits"]}


def filled_in(query: dict[str, Any], text: str) -> dict[str, Any]:
    return json.loads(json.dumps(query).replace("{{query}}", text))


@pytest.mark.parametrize(("form", "recall"), [*zip(FORMS[::2], cycle(get_args(RecallMode)), strict=False)])
def test_every_form_is_ranked_as_the_transparent_way_ranks_it(filled, rankings, tmp_path, form, recall):
    index, _, query, text = form
    name = f"own-{index}"
    expected = transparent(rankings[name, recall], filled_in(query, text))
    if isinstance(expected, NotRanked) and recall == "all":
        words = transparent(rankings[name, "lexical"], filled_in(query, text))
        if not isinstance(words, NotRanked):  # neighbours would break what it demands: this is told
            search = opened(filled, name, tmp_path, query)
            assert any(expected.why in remark for remark in search.remarks)
            assert same_scores(search, text, words)
            return
    if isinstance(expected, NotRanked):
        with pytest.raises((SettingsError, DataError)) as refused:
            opened(filled, name, tmp_path, query, recall)(text, MOST)
        assert expected.why in str(refused.value)
        return
    assert same_scores(opened(filled, name, tmp_path, query, recall), text, expected)


def same_scores(search: Search, text: str, expected: dict[str, float]) -> bool:
    hits = search(text, MOST)
    assert len(expected) == len(hits)
    found = {hit.doc_id: hit.score for hit in hits}
    common = found.keys() & expected.keys()
    assert len(common) >= len(found) - 2, "ties at the end of the page alone differ"
    assert {one: found[one] for one in common} == pytest.approx({one: expected[one] for one in common})
    assert sorted(found.values()) == pytest.approx(sorted(expected.values()))
    ranked = search.run([Query("q", text)], MOST)["q"]
    assert sorted(ranked.values()) == pytest.approx(sorted(expected.values()))
    return True


@pytest.mark.parametrize(
    "query", [MATCH, {"multi_match": {"query": "{{query}}", "fields": ["title^9", "text"]}}]
)
def test_explain_tells_what_functions_add(filled, tmp_path, query, cli, monkeypatch):
    added = {"function_score": {"query": query, **ADDED}}
    search = opened(filled, "own-mart", tmp_path, added)
    stocks = {
        hit["_id"]: hit["_source"]["stock"]
        for hit in filled.search("own-mart", {"size": COUNT, "_source": ["stock"]})["hits"]["hits"]
    }
    hits = search(matrix.TEXT, 20, explain=True)
    for hit in hits:
        assert hit.parts["functions"] == pytest.approx(stocks[hit.doc_id], abs=1e-3)
        assert sum(hit.parts.values()) == pytest.approx(hit.score, rel=1e-6)
    assert min(hit.parts["words"] for hit in hits if hit.parts) >= 0

    # The command shows the column.
    monkeypatch.setattr("hybridr.search.checks.encoder_for", lambda *_, **__: ENCODER)
    asked = ["search", "own-mart", matrix.TEXT, "--query-template", str(tmp_path / "own.json"), "--explain"]
    assert "functions" in cli.typed([*asked, "--url", filled.url]).out.splitlines()[0]
    without = opened(filled, "own-mart", tmp_path, query)(matrix.TEXT, 5, explain=True)
    assert all("functions" not in (hit.parts or {}) for hit in without)


def test_pages_filters_and_requests_agree(filled, tmp_path):
    added = {"function_score": {"query": MATCH, **ADDED}}
    search = opened(filled, "own-mart", tmp_path, added)
    whole = [hit.doc_id for hit in search(matrix.TEXT, 40)]
    pages = [hit.doc_id for at in range(0, 40, 8) for hit in search(matrix.TEXT, 8, offset=at)]
    assert pages == whole
    within = search(matrix.TEXT, 40, filter=matrix.BRAND)
    assert 0 < len(within)
    assert {hit.doc_id for hit in within} <= matching(filled, matrix.BRAND)
    answer = filled.search(search.info.name, search.request(matrix.TEXT, 40))
    assert [hit["_id"] for hit in answer["hits"]["hits"]] == whole
    words_alone = opened(filled, "own-mart", tmp_path, added, "lexical")(matrix.TEXT, 100)
    assert {hit.doc_id for hit in words_alone} <= matching(filled, filled_in(MATCH, matrix.TEXT))

    # Pins and bans hold beside functions.
    rule = {"name": "sale", "text": matrix.TEXT, "pin": ["d7", "d9"], "ban": ["d11"]}
    search = opened(filled, "own-mart", tmp_path, {"function_score": {"query": MATCH, **ADDED}})
    search.ruling = RuleBook([Rule(**rule)]).ruling
    hits = search(matrix.TEXT, 60)
    assert [(hit.doc_id, hit.rule) for hit in hits[:2]] == [("d7", "sale"), ("d9", "sale")]
    assert len({hit.doc_id for hit in hits}) == 60
    assert "d11" not in {hit.doc_id for hit in hits}
    body = search.request(matrix.TEXT, 60)
    answer = filled.search(search.info.name, body)["hits"]["hits"]
    assert [hit["_id"] for hit in answer] == [hit.doc_id for hit in hits]


def matching(cluster: Cluster, query: dict[str, Any]) -> set[str]:
    hits = cluster.search("own-mart", {"query": query, "size": COUNT})["hits"]["hits"]
    return {hit["_id"] for hit in hits}


def test_without_scripts_functions_are_refused_and_the_rest_is_ranked_here(filled, tmp_path, monkeypatch):
    expected = opened(filled, "own-mart", tmp_path, BOOSTED)
    with_scripts = {hit.doc_id: hit.score for hit in expected(matrix.TEXT, 20)}
    monkeypatch.setattr("hybridr.search.scripts.Scripts.refused", lambda *_: "no scripts here")
    here = {hit.doc_id: hit.score for hit in opened(filled, "own-mart", tmp_path, BOOSTED)(matrix.TEXT, 20)}
    common = with_scripts.keys() & here.keys()
    assert len(common) > 15
    assert {doc: here[doc] for doc in common} == pytest.approx({doc: with_scripts[doc] for doc in common})
    with pytest.raises(SettingsError, match="runs no scripts"):
        opened(filled, "own-mart", tmp_path, {"function_score": {"query": BOOSTED, **ADDED}})(matrix.TEXT, 5)
