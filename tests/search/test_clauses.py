"""Which queries look for one text, and for the rest a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridr.search.clauses import REASONS, NotRanked, ParsedQuery, QueryReader, scores_as
from hybridr.search.client_query import dense_filter
from hybridr.search.fusions.pipeline import hybrid_query

TYPES = {"text": "text", "title": "text", "title.english": "text", "category": "keyword", "price": "float"}
TYPES |= {"category.text": "text", "specs.value": "text", "typed": "search_as_you_type"}
READER = QueryReader({"text", "title"}, TYPES)
MATCH = {"match": {"text": "two words"}}
TITLE = {"match": {"title": "two words"}}
AND = {"match": {"text": {"query": "two words", "operator": "and", "boost": 2}}}
ALL_OF = {"match": {"text": {"query": "two words", "operator": "and"}}}
SHOES = {"term": {"category": "shoes"}}
CHEAP = {"range": {"price": {"lt": 10}}}
POPULAR = {"field_value_factor": {"field": "price"}}
ADDING = {"function_score": {"query": MATCH, "functions": [POPULAR], "boost_mode": "sum"}}
ALL = 3.4028235e38


def added(*clauses: Any) -> tuple[str, Any]:
    """What adds to the score of the text."""
    return ("must", {"bool": {"should": list(clauses)}})


def two(*filters: Any, **more: Any) -> ParsedQuery:
    return ParsedQuery("two words", filters, **more)


def boolean(**clauses: Any) -> dict[str, Any]:
    return {"bool": clauses}


def functions(**more: Any) -> dict[str, Any]:
    return {"function_score": more}


BRAND = {"match": {"category": "shoes"}}
AT_LEAST_TWO = {"match": {"text": {"query": "two words", "minimum_should_match": "2"}}}
LEAST = "minimum_should_match"
MOST_BOOST = {"functions": [POPULAR], "max_boost": ALL}
BY_CHANCE = {"boost_mode": "sum", "random_score": {}}
STORED = {"script": {"id": "stored"}}
LESS = {"negative": SHOES, "negative_boost": 0.2}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (MATCH, two()),
        (AND, two(required_match="operator")),
        (AT_LEAST_TWO, two(required_match=LEAST)),
        ({"multi_match": {"query": "w", "fields": ["title^3", "text^3"]}}, ParsedQuery("w")),
        ({"multi_match": {"query": "w", "type": "most_fields", "fuzziness": 0}}, ParsedQuery("w")),
        ({"multi_match": {"query": "w", "fields": []}}, ParsedQuery("w")),
        ({"multi_match": {"query": "w", "operator": "AND"}}, ParsedQuery("w", required_match="operator")),
        ({"combined_fields": {"query": "w", "fields": ["title", "text"]}}, ParsedQuery("w")),
        ({"query_string": {"query": "two wi-fi words"}}, ParsedQuery("two wi-fi words")),
        ({"query_string": {"query": "w", "default_field": "*"}}, ParsedQuery("w")),
        ({"query_string": {"query": "w", "fields": ["text^1.0"]}}, ParsedQuery("w")),
        ({"query_string": {"query": "two words", "default_operator": "and"}}, two(required_match="operator")),
        ({"simple_query_string": {"query": "what is it?", "fields": ["text"]}}, ParsedQuery("what is it?")),
        ({"dis_max": {"queries": [MATCH, TITLE], "tie_breaker": 0.3}}, two()),
        ({"dis_max": {"queries": [ALL_OF, TITLE]}}, two(required_match="operator")),
        (boolean(must=MATCH), two()),
        (boolean(should=[MATCH]), two()),
        (boolean(should=[MATCH, TITLE], minimum_should_match=1), two()),
        (boolean(should=[MATCH, TITLE], minimum_should_match="2"), two(required_match=LEAST)),
        (boolean(must=[MATCH, TITLE]), two(required_match="several_fields")),
        (boolean(must=[MATCH], filter=[SHOES, CHEAP]), two(SHOES, CHEAP)),
        (boolean(must=[MATCH, SHOES], must_not=CHEAP), two(SHOES, excluded=(CHEAP,))),
        (boolean(must=[MATCH], should=[SHOES]), two(wrappers=(added(SHOES),))),
        (boolean(should=[MATCH, SHOES]), two(wrappers=(added(SHOES),))),
        (
            boolean(must=[MATCH], should=[SHOES, CHEAP], minimum_should_match=1),
            two(wrappers=(added(SHOES, CHEAP),), required_match=LEAST),
        ),
        (boolean(must=[MATCH, BRAND]), two(BRAND, wrappers=(added(BRAND),))),
        (boolean(must=[boolean(must=[AND])]), two(required_match="operator")),
        (boolean(must=[boolean(must=MATCH, filter=SHOES)], filter=CHEAP), two(SHOES, CHEAP)),
        (functions(query=MATCH, **MOST_BOOST), two(wrappers=(("query", functions(**MOST_BOOST)),))),
        (functions(query=MATCH, **BY_CHANCE), two(wrappers=(("query", functions(**BY_CHANCE)),))),
        ({"script_score": {"query": MATCH, **STORED}}, two(wrappers=(("query", {"script_score": STORED}),))),
        ({"boosting": {"positive": MATCH, **LESS}}, two(wrappers=(("positive", {"boosting": LESS}),))),
    ],
)
def test_one_text_is_found_with_its_filters_and_demands(query: dict[str, Any], expected: ParsedQuery) -> None:
    assert READER.read(query) == expected


PHRASE = {"match_phrase": {"title": {"query": "two words", "boost": 3}}}
BOOSTED = {"multi_match": {"query": "two words", "fields": ["title^3", "text"]}}
STEMMED = "title.english"
BOTH = {"dis_max": {"queries": [BOOSTED, SHOES]}}
PART = {"nested": {"path": "specs", "query": {"match": {"specs.value": {"query": "two words"}}}}}


@pytest.mark.parametrize(
    ("query", "words", "required_match"),
    [
        (BOOSTED, BOOSTED, None),
        (PHRASE, PHRASE, "phrase"),
        (PART, PART, "clauses"),
        (BOTH, BOTH, None),
        ({"match": {STEMMED: "two words"}}, {"match": {STEMMED: {"query": "two words"}}}, None),
        ({"bool": {"must": [BOOSTED], "filter": [SHOES]}}, BOOSTED, None),
        ({"bool": {"must": [MATCH], "should": [PHRASE]}}, {"bool": {"should": [MATCH, PHRASE]}}, None),
        ({"bool": {"should": [MATCH, PHRASE]}}, {"bool": {"should": [MATCH, PHRASE]}}, None),
        ({"bool": {"must": [MATCH, BOOSTED]}}, {"bool": {"should": [MATCH, BOOSTED]}}, "several_fields"),
        (functions(query=BOOSTED, functions=[POPULAR], min_score=3), BOOSTED, "functions"),
        *(
            ({"multi_match": {"query": "two words", **more}},) * 2 + (required_match,)
            for more, required_match in [
                ({"fields": ["tit*", "category"]}, None),
                ({"fields": ["category", "title.english"]}, None),
                ({"fields": ["typed", "typed._2gram"], "type": "bool_prefix"}, "phrase"),
                ({"fields": ["text"], "fuzziness": "AUTO"}, None),
                ({"fields": ["text"], "analyzer": "english"}, None),
                ({"fields": ["text^0"]}, None),
                ({"type": "phrase"}, "phrase"),
            ]
        ),
    ],
)
def test_a_query_that_asks_in_its_own_way_scores_in_its_own_way(query, words, required_match):
    one = READER.read(query)
    assert isinstance(one, ParsedQuery), one
    assert (one.text, one.words, one.required_match) == ("two words", words, required_match)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ('"two words" -others', "two words"),
        ("two AND (words OR letters)^3", "two words letters"),
        ("title:two category:shoes +text:word~2", "two word"),
        ("two NOT three !four wor*", "two wor"),
    ],
)
def test_of_a_language_of_its_own_the_words_that_are_wanted_are_the_text(query: str, text: str) -> None:
    one = READER.read({"query_string": {"query": query}})
    assert (one.text, one.typed, one.required_match) == (text, (query,), "syntax")


def test_several_texts_are_one_where_all_are_demanded_or_any_may_match() -> None:
    other = {"match": {"category.text": "shoes"}}
    one = READER.read({"bool": {"must": [MATCH, other]}})
    assert (one.text, one.typed, one.required_match) == ("two words shoes", ("two words", "shoes"), "texts")
    beside = READER.read({"bool": {"must": [MATCH], "should": [other]}})
    assert beside == ParsedQuery("two words", wrappers=(added(other),))


@pytest.mark.parametrize("kind", ["bool", "dis_max"])
def test_functions_that_multiply_one_of_several_clauses_stay_in_it(kind: str) -> None:
    popular = {"function_score": {"query": MATCH, "functions": [POPULAR], "boost_mode": "multiply"}}
    less = {"boosting": {"positive": MATCH, **LESS}}
    wished = {"bool": {"must": [MATCH], "should": [SHOES]}}
    for one in (popular, less, wished):
        query = {kind: {{"bool": "should", "dis_max": "queries"}[kind]: [one, TITLE]}}
        assert READER.read(query) == two(required_match="clauses", words=query, typed=("two words",)), one


def test_functions_in_the_place_of_the_score_rank_where_a_script_uses_it() -> None:
    def replaced(source: str) -> dict[str, Any]:
        script = {"script_score": {"script": {"source": source, "params": {"_score": 1}}}}
        return {"function_score": {"query": MATCH, "functions": [script], "boost_mode": "replace"}}

    [(part, _)] = READER.read(replaced("_score * 2")).wrappers
    assert part == "query"
    assert reason_of(READER.read(replaced("doc['n'].value"))) == "functions"


def reason_of(parsed: ParsedQuery | NotRanked) -> str:
    assert isinstance(parsed, NotRanked)
    return parsed.reason


def why(parsed: ParsedQuery | NotRanked) -> str:
    assert isinstance(parsed, NotRanked)
    return parsed.why


def test_a_reason_names_the_field_or_the_clause() -> None:
    assert why(READER.read({"constant_score": {"filter": MATCH}})).startswith("constant_score: ")
    assert why(READER.read({"bool": {"should": [ADDING, TITLE]}})).startswith("function_score in ")
    assert why(READER.read({"match": {"category": "shoes"}})).startswith("category is keyword: ")
    assert why(READER.read({"match": {"nothing": "shoes"}})).startswith("nothing is not mapped: ")
    assert why(READER.read({"geo_distance": {}})).startswith("geo_distance: ")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ({"match_all": {}}, "kind"),
        (SHOES, "kind"),
        ({"percolate": {"field": "q", "document": {"text": "two words"}}}, "kind"),
        ({"match": {"category": "shoes"}}, "field"),
        ({"match": {"text": 7}}, "no_text"),
        ({"match": {"text": "  "}}, "no_text"),
        ({"constant_score": {"filter": MATCH}}, "only_a_filter"),
        ({"query_string": {"query": "two", "fields": ["category"]}}, "field"),
        ({"dis_max": {"queries": []}}, "no_text"),
        ({"query_string": {"query": "category:shoes"}}, "syntax"),
        ({"query_string": {"query": "price:[1 TO 3]"}}, "syntax"),
        ({"dis_max": {"queries": [SHOES]}}, "kind"),
        ({"dis_max": {"queries": [MATCH, ADDING]}}, "scores"),
        ({"bool": {"should": [{"match": {"text": f"text {n}"}} for n in range(5)]}}, "texts"),
        ({"nested": {"path": "specs", "query": SHOES}}, "kind"),
        ({"bool": {"filter": [MATCH]}}, "only_a_filter"),
        ({"bool": {"must_not": [MATCH]}}, "kind"),
        ({"bool": {"should": [MATCH, {"knn": {"v": {"vector": [1.0], "k": 1}}}]}}, "scores"),
        ({"bool": {"must": [MATCH] * 51}}, "clauses"),
        ({"function_score": {"query": MATCH, "boost_mode": "replace"}}, "functions"),
        ({"boosting": {"positive": SHOES, "negative": MATCH, "negative_boost": 0.5}}, "kind"),
        ({"bool": {"should": [ADDING, TITLE]}}, "scores"),
        (boolean(should=[{"script_score": {"query": MATCH, "script": {"source": "1"}}}, TITLE]), "scores"),
        ({"hybrid": {"queries": [MATCH]}}, "kind"),
        ({"knn": {"v": {"vector": [1.0], "k": 1}}}, "kind"),
        ({"match": MATCH["match"], "term": {}}, "kind"),
        ({"bool": "text"}, "kind"),
        ({}, "kind"),
    ],
)
def test_every_other_query_has_a_reason(query: Any, reason: str) -> None:
    assert reason_of(READER.read(query)) == reason
    assert reason in REASONS


@pytest.mark.parametrize(
    "query", ["text", 7, None, {"multi_match": {"query": "w", "fields": 5}}, {"bool": {"must": 5}}]
)
def test_what_is_no_query_is_an_error(query: Any) -> None:
    with pytest.raises(TypeError):
        READER.read(query)


@given(st.text(min_size=1).filter(str.strip))
def test_a_text_stays_a_text_whatever_is_in_it(text: str) -> None:
    query = {"bool": {"must": [{"match": {"text": text}}], "filter": [SHOES]}}
    one = READER.read(query)
    assert one.text == text
    made = hybrid_query([query, {"knn": {"v": {"vector": [1.0], "k": 3, "filter": dense_filter(one)}}}], 3)
    assert json.loads(json.dumps(made))["hybrid"]["queries"][0] == json.loads(json.dumps(query))


KEYS = "bool must should filter match text query fields queries functions positive".split()
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(
    "match multi_match combined_fields query_string dis_max bool function_score boosting".split()
)


@given(KINDS, ANY)
def test_wrong_types_in_any_place_are_no_text(kind: str, body: Any) -> None:
    try:
        found = READER.read({kind: body})
    except (TypeError, ValueError, AttributeError):
        return  # the caller lets such a search go on as it was
    assert isinstance(found, ParsedQuery) or found.reason in REASONS


def test_what_multiplies_scores_stands_around_the_new_ones() -> None:
    def multiplied(query: Any) -> Any:
        return {"boosting": {"positive": functions(query=query, functions=[POPULAR]), **LESS}}

    one = READER.read(multiplied(MATCH))
    assert one.wrappers == (("query", functions(functions=[POPULAR])), ("positive", {"boosting": LESS}))


def test_what_scores_a_query_is_what_scores_its_text_unless_more_does() -> None:
    text, phrase, shop = {"match": {"title": "x"}}, {"match_phrase": {"title": "x"}}, {"term": {"shop": 7}}
    both = {"bool": {"should": [text, phrase]}}
    assert scores_as(text, text)
    assert scores_as({"bool": {"must": text, "filter": [shop], "must_not": shop}}, text)
    assert scores_as({"bool": {"must": [{"bool": {"should": [text]}}]}}, text)
    assert scores_as({"bool": {"must": [text], "should": [phrase], "filter": shop}}, both)
    assert not scores_as({"bool": {"must": [text], "boost": 2.0}}, text)
    assert not scores_as({"bool": {"must": [text, shop]}}, text)
    assert not scores_as({"bool": {"must": [text], "should": [phrase]}}, text)
    assert not scores_as({"function_score": {"query": text}}, text)
