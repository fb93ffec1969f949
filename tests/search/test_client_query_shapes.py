"""Shapes of queries: what of a query is its shape, and how each gets its scale once, whatever is sent."""

from __future__ import annotations

import json
import time
from hashlib import sha256
from threading import Event
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import orjson
import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.errors import ClusterError
from hybridr.files.local import state_folder
from hybridr.files.remembered import SCALES
from hybridr.search import client_query
from hybridr.search.calibration import PlainQuery
from hybridr.search.clauses import ParsedQuery
from hybridr.search.client_query import (
    MAX_SHAPES,
    MAX_WAITING,
    ClientQueries,
    Shapes,
    clauses_per_word,
    max_leaf_clauses,
    query_shape,
    with_text,
)
from support.waiting import wait_until, within

FIELDS = ["title^5.0", "title.english^3.0"]
MULTI = {"multi_match": {"query": "red shoes", "fields": FIELDS, "operator": "AND", "boost": 2.0}}


def index(uuid: str = "", fields: tuple[str, ...] = ("title",)) -> tuple[Any, Any, PlainQuery]:
    """Return the cluster, the index and its plain query."""
    return None, SimpleNamespace(uuid=uuid or uuid4().hex), PlainQuery(fields, list)


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The bodies of which a scale was measured, each with the scale 3."""
    asked: list[Any] = []

    def measured(cluster: Any, info: Any, probes: Any, template: Any) -> float:
        asked.append(template.body)
        return 3.0

    monkeypatch.setattr(client_query, "measure_template_scale", measured)
    monkeypatch.setattr(client_query, "document_probes", lambda *_: iter(["texts"]))
    monkeypatch.setattr(client_query, "template_field_probes", lambda *_: ())
    monkeypatch.setattr(client_query, "PAUSE_FACTOR", 0.0)
    return asked


def settled(one: Shapes) -> Shapes:
    wait_until(lambda: not one.waiting)
    return one


def boosted(boost: float) -> dict[str, Any]:
    return {"match": {"title": {"query": "red shoes", "boost": boost}}}


def test_a_shape_has_no_text_and_nothing_that_only_says_what_matches_or_how_else_words_are_spelt() -> None:
    fuzzy = {"multi_match": {**MULTI["multi_match"], "fuzziness": "AUTO", "prefix_length": 2}}
    query = {
        "bool": {
            "should": [
                fuzzy,
                {"wildcard": {"sku": {"wildcard": "*red shoes*"}}},
                {"match": {"operator": {"query": "x"}}},
            ],
            "filter": [{"term": {"shop": 7}}],
            "must_not": [{"term": {"sold": True}}],
            "minimum_should_match": "1",
        }
    }
    assert query_shape(query, ["red shoes"]) == {
        "bool": {
            "should": [
                {"multi_match": {"query": "{{query}}", "fields": FIELDS, "boost": 2.0}},
                {"wildcard": {"sku": {"wildcard": "*{{query}}*"}}},
                {"match": {"operator": {"query": "x"}}},
            ]
        }
    }
    for field in ("title", "fuzziness"):
        named = {"match": {field: {"query": field}}}
        assert query_shape(named, [field]) == {"match": {field: {"query": "{{query}}"}}}


@pytest.mark.parametrize("kind", ["match", "match_phrase", "term", "prefix", "wildcard"])
def test_a_text_alone_in_place_of_its_options_is_no_part_of_a_shape_either(kind: str) -> None:
    query = {"nested": {"path": "notes", "query": {kind: {"notes.said": "red shoes"}}}}
    expected = {"nested": {"path": "notes", "query": {kind: {"notes.said": "{{query}}"}}}}
    assert query_shape(query, ["red shoes"]) == expected
    assert with_text(query, "red shoes", "{{query}}") == expected
    assert query_shape({"nested": {"path": "red shoes"}}, ["red shoes"]) == {"nested": {"path": "red shoes"}}


def test_another_text_leaves_conditions_on_exact_values_as_they_are() -> None:
    conditions = {"filter": [{"term": {"a": "shoes"}}], "must_not": {"prefix": {"sku": {"value": "shoes"}}}}
    words = {"match": {"title": {"query": "shoes", "operator": "and"}}}
    exact = {"term": {"name.keyword": "shoes"}}

    def query(text: str, words: Any, exact: Any) -> dict[str, Any]:
        every = [*conditions["filter"], words]
        return {"bool": {"must": {"match": {"title": text}}, "should": exact, **conditions, "filter": every}}

    boots = {"match": {"title": {"query": "boots", "operator": "and"}}}
    expected = query("boots", boots, {"term": {"name.keyword": "boots"}})
    assert with_text(query("shoes", words, exact), "shoes", "boots") == expected


def test_a_request_that_finds_and_scores_by_one_query_counts_the_clients_filters() -> None:
    info = IndexInfo("docs", {}, {"properties": {"title": {"type": "text"}}}, {})
    read = SimpleNamespace(of=lambda texts: [SimpleNamespace(words=()) for _ in texts])
    queries = ClientQueries(info, ["title"], read, None)  # type: ignore[arg-type]
    words = {"match": {"title": {"query": "red", "analyzer": "simple"}}}
    filters = [{"term": {"shop": number}} for number in range(40)]
    query = {"bool": {"must": words, "filter": filters}}
    parsed = ParsedQuery("red", filters=tuple(filters), words=words)
    whole, parts = (queries.split_query(query, parsed, single=one).leaf_clauses for one in (True, False))
    assert whole - parts >= len(filters)


def test_a_shape_is_fitted_once_in_the_background_whatever_its_text(fitted: list[Any]) -> None:
    one = Shapes(*index(), background=True)
    assert one.scale(MULTI, ["red shoes"]) is None
    assert settled(one).scale(MULTI, ["red shoes"]) == 3.0
    other = {"multi_match": {**MULTI["multi_match"], "query": "blue hats"}}
    assert one.scale(other, ["blue hats"]) == 3.0
    assert len(fitted) == 1


def test_without_a_server_it_is_fitted_at_once(fitted: list[Any]) -> None:
    assert Shapes(*index()).scale(MULTI, ["red shoes"]) == 3.0


def test_shapes_that_never_repeat_cost_little(fitted: list[Any]) -> None:
    one = Shapes(*index(), background=True)
    for boost in range(3 * MAX_SHAPES):
        assert one.scale(boosted(boost), ["red shoes"]) is None
        assert one.waiting <= MAX_WAITING
    at_once = Shapes(*index())
    scales = [at_once.scale(boosted(boost), ["red shoes"]) for boost in range(MAX_SHAPES + 9)]
    assert scales == [3.0] * MAX_SHAPES + [None] * 9
    settled(one)


def test_what_is_asked_again_and_again_stays_among_a_thousand(fitted: list[Any]) -> None:
    one = Shapes(*index(), background=True)
    for boost in range(MAX_SHAPES + 200):
        one._measure(orjson.dumps(boosted(boost)))
        one.scale(boosted(0), ["none of them"])
    assert (len(one._known), one.scale(boosted(0), ["none of them"])) == (MAX_SHAPES, 3.0)
    assert one.scale(boosted(1), ["none of them"]) is None
    settled(one)


def test_a_busy_cluster_rests_once_there_are_many(fitted: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(client_query, "AT_ONCE", 3)
    monkeypatch.setattr(client_query, "PAUSE_FACTOR", 4.0)
    monkeypatch.setattr(client_query, "time", SimpleNamespace(sleep=rests.append, monotonic=time.monotonic))
    one = Shapes(*index(), background=True)
    for boost in range(5):
        one.scale(boosted(boost), ["red shoes"])
    settled(one)
    wait_until(lambda: not one._working)  # it rests after the last one, too
    assert len(rests) == 2


def test_what_a_cluster_refuses_has_no_scale_and_what_it_fails_is_asked_again(fitted, monkeypatch):
    answers: list[Any] = [ClusterError("busy", status=429), ClusterError("no such query", status=400)]

    def refused(*_: Any) -> float:
        raise answers.pop(0)

    monkeypatch.setattr(client_query, "measure_template_scale", refused)
    one = Shapes(*index(), background=True)
    assert one.scale(MULTI, ["red shoes"]) is None
    assert settled(one).scale(MULTI, ["red shoes"]) is None
    assert settled(one).scale(MULTI, ["red shoes"]) == 0.0
    assert not answers


@pytest.mark.parametrize(
    "query",
    [
        {"bool": {"should": [MULTI, {"knn": {"v": {"k": 1}}}]}},
        {"dis_max": {"queries": [MULTI, {"script_score": {"query": MULTI, "script": {"source": "1"}}}]}},
        {"dis_max": {"queries": [MULTI, {"terms": {"sku": {"index": "secret", "id": "1", "path": "x"}}}]}},
        {"dis_max": {"queries": [MULTI, {"regexp": {"sku": {"value": "(a+)+"}}}]}},
        {"match": {"t": {"query": "x", "y": "z" * 20_000}}},
    ],
)
def test_what_a_server_does_not_ask_by_its_own_rights_has_none(fitted, query):
    assert Shapes(*index()).scale(query, ["x"]) == 0.0
    assert not fitted


def test_an_hour_later_it_is_measured_again_and_used_meanwhile(fitted: list[Any], monkeypatch) -> None:
    one = Shapes(*index(), background=True)
    one.scale(MULTI, ["red shoes"])
    settled(one)
    monkeypatch.setattr(client_query, "REMEASURE_S", -1.0)
    assert one.scale(MULTI, ["red shoes"]) == 3.0
    settled(one)
    assert len(fitted) == 2


def test_a_new_opening_of_the_same_index_knows_what_was_known_and_of_another_it_is_fitted(fitted):
    before = Shapes(*index("u"))
    before.scale(MULTI, ["red shoes"])
    same, other, wider = (
        Shapes(*index("u"), background=True),
        Shapes(*index(), background=True),
        Shapes(*index("u", ("title", "text")), background=True),
    )
    same.take_over(before)
    assert (same.scale(MULTI, ["red shoes"]), len(fitted)) == (3.0, 1)
    for count, one in enumerate((other, wider), 2):
        one.take_over(before)
        assert (settled(one).scale(MULTI, ["red shoes"]), len(fitted)) == (3.0, count)


def test_a_new_opening_waits_for_no_fitting_and_the_one_before_ends_its_own(fitted, monkeypatch):
    before, other, go_on = Shapes(*index(), background=True), Shapes(*index(), background=True), Event()
    before.scale(boosted(1), ["red shoes"])
    settled(before)
    measured = client_query.measure_template_scale

    def slowly(*asked: Any) -> float:
        assert go_on.wait(20)
        return measured(*asked)

    monkeypatch.setattr(client_query, "measure_template_scale", slowly)
    for boost in (2, 3):
        assert before.scale(boosted(boost), ["red shoes"]) is None
    with within(1):
        other.take_over(before)
    assert [other.scale(boosted(boost), ["red shoes"]) for boost in (1, 2, 3)] == [None] * 3
    assert (other.waiting, before.waiting) == (3, 0)
    go_on.set()
    assert [settled(other).scale(boosted(boost), ["red shoes"]) for boost in (1, 2, 3)] == [3.0] * 3
    assert len(fitted) <= 1 + 1 + 3, "of the other index only what it was at"


def test_what_was_recalled_is_fitted_for_another_index_once_it_was_asked(fitted, monkeypatch):
    shape = sha256(
        orjson.dumps(query_shape(boosted(1), ["red shoes"]), option=orjson.OPT_SORT_KEYS)
    ).hexdigest()
    recalled, other = Shapes(*index("known"), background=True), Shapes(*index(), background=True)
    monkeypatch.setattr(client_query, "known_scales", lambda of: {shape: 2.0} if of == recalled._name else {})
    assert recalled.scale(boosted(1), ["red shoes"]) == 2.0
    other.take_over(recalled)
    assert settled(other).scale(boosted(1), ["red shoes"]) == 3.0


def test_the_next_server_on_this_machine_knows_what_was_measured(fitted: list[Any]) -> None:
    parts = index()
    one = Shapes(*parts, background=True)
    one.scale(MULTI, ["red shoes"])
    settled(one)
    file = state_folder() / SCALES
    wait_until(lambda: parts[1].uuid in (file.read_text() if file.exists() else ""))
    assert "red" not in file.read_text(), "nothing that was typed"
    assert Shapes(*parts, background=True).scale(MULTI, ["red shoes"]) == 3.0
    assert len(fitted) == 1
    file.write_text(json.dumps({f"{parts[1].uuid} title": {"x": "y", "z": float("inf")}}))
    assert Shapes(*parts, background=True).scale(MULTI, ["red shoes"]) is None


def test_leaves_are_bounded_by_fields_and_words() -> None:
    per_word = {"title": 1, "title.english": 1, "title.synonyms": 3, "price": 1}
    assert max_leaf_clauses({"match": {"title": {"query": "a b"}}}, 2, per_word) == 2 + 2
    assert max_leaf_clauses({"match": {"title.synonyms": "a b"}}, 2, per_word) == 2 + 6
    assert max_leaf_clauses({"term": {"title": "a b"}}, 2, per_word) == 2
    named = {"multi_match": {"query": "a b", "fields": ["title.*", "price^3"]}}
    assert max_leaf_clauses(named, 2, per_word) == 1 + 2 * (1 + 3 + 1)
    for everywhere in ({"multi_match": {"query": "a", "fields": []}}, {"query_string": {"query": "a"}}):
        assert max_leaf_clauses(everywhere, 1, per_word) == 1 + 6
    fuzzy = {"match": {"title": {"query": "a", "fuzziness": "AUTO"}}}
    assert max_leaf_clauses(fuzzy, 1, per_word) == 2 + 50


def test_an_analyser_of_the_index_may_make_several_clauses_of_a_word() -> None:
    fields = {"title": {"analyzer": "english"}, "brand": {"analyzer": "own"}, "text": {}}
    mappings = {"properties": {name: {"type": "text", **of} for name, of in fields.items()}}
    info = IndexInfo("docs", {"index.analysis.analyzer.own.type": "custom"}, mappings, {})
    assert [clauses_per_word(info, field) for field in fields] == [1, 3, 1]
    info = IndexInfo("docs", {"index.analysis.analyzer.default_search.type": "custom"}, mappings, {})
    assert clauses_per_word(info, "text") == 3
