"""Which fields words are searched in, by mappings alone."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.fields import FieldChoice
from hybridr.cluster.record import IndexInfo
from hybridr.cluster.word_fields import (
    SearchedField,
    chosen_word_fields,
    is_indexed_text,
    reads_words_alone,
    searched_fields,
    word_fields,
)
from hybridr.errors import DataError, SettingsError

CUSTOM = "index.analysis.analyzer.own."
TEXT, KEYWORD = {"type": "text"}, {"type": "keyword"}


def info(properties: dict[str, Any], settings: dict[str, str] | None = None, **mappings: Any) -> IndexInfo:
    return IndexInfo("docs", settings or {}, {"properties": properties, **mappings}, {})


def hidden(*targets: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "index": False, "copy_to": list(targets), **more}


def test_a_field_that_is_indexed_stands_for_itself() -> None:
    index = info({"title": {**TEXT, "fields": {"english": TEXT}, "copy_to": "all"}, "all": TEXT})
    assert word_fields(index, ("title",)) == ("title",)


@pytest.mark.parametrize("kind", ["match_only_text", "search_as_you_type", "annotated_text"])
def test_every_kind_of_text_stands_for_itself(kind: str) -> None:
    assert word_fields(info({"body": {"type": kind}}), ("body",)) == ("body",)


def test_a_multi_field_stands_for_a_text_that_is_not_indexed_or_a_keyword() -> None:
    body = hidden(fields={"raw": KEYWORD, "english": {"type": "text", "analyzer": "english"}})
    index = info({"body": body, "name": {**KEYWORD, "fields": {"text": TEXT}}, "mark": KEYWORD})
    assert word_fields(index, ("name", "body", "mark")) == ("name.text", "body.english", "mark")


def test_whole_words_come_before_parts_of_words() -> None:
    edges = {"type": "text", "analyzer": "starts"}
    fields = {"a_suggest": {"type": "search_as_you_type"}, "b_edge": edges, "words": TEXT}
    settings = {"index.analysis.analyzer.starts.filter": '["lowercase", "edge_ngram"]'}
    assert word_fields(info({"body": hidden(fields=fields)}, settings), ("body",)) == ("body.words",)


def test_the_catch_all_of_most_fields_is_searched() -> None:
    body = hidden("all", "all_suggest")
    sources = {"title": hidden("titles", "all"), "body": body, "note": hidden("notes")}
    targets = {"titles": TEXT, "notes": TEXT, "all": TEXT, "all_suggest": {"type": "search_as_you_type"}}
    index = info(sources | targets)
    assert word_fields(index, ("title", "body", "note")) == ("all", "notes")
    assert word_fields(index, ("body",)) == ("all",)


def test_a_catch_all_that_is_itself_not_indexed_is_searched_in_its_multi_field() -> None:
    target = {"type": "keyword", "index": False, "fields": {"text": TEXT}}
    index = info({"body": {**hidden(), "copy_to": "all"}, "all": target, "other": TEXT})
    assert word_fields(index, ("body",)) == ("all.text",)


def test_nested_fields_are_searched_where_they_are_copied_to() -> None:
    comments = {"type": "nested", "properties": {"words": {**TEXT, "copy_to": "all"}, "more": TEXT}}
    index = info({"comments": comments, "all": TEXT, "body": TEXT})
    assert word_fields(index, ("body", "comments.words", "comments.more")) == ("body", "all")
    with pytest.raises(DataError, match="lies inside nested objects"):
        word_fields(index, ("comments.more",))


@pytest.mark.parametrize(
    "properties",
    [
        {"body": hidden()},
        {"body": hidden("missing")},
        {"body": hidden("all"), "all": {"type": "text", "index": False}},
        {"body": {"type": "keyword", "index": False, "doc_values": True}},
        {"raw": {"type": "object", "enabled": False}},
        {"body": {"type": "object", "enabled": False, "properties": {"text": TEXT}}},
        {"body": {"type": "flat_object"}},
        {"body": {"type": "constant_keyword", "value": "pump"}},
    ],
)
def test_what_no_query_finds_is_refused_with_what_to_type(properties: dict[str, Any]) -> None:
    index = info({**properties, "else": TEXT})
    name = "raw.text" if "raw" in properties else "body"
    name = "body.text" if properties.get("body", {}).get("type") in ("object", "flat_object") else name
    with pytest.raises(DataError, match="words cannot be searched in") as caught:
        word_fields(index, (name,))
    assert "[search] lexical_fields" in str(caught.value.hint)
    assert str(caught.value.hint).endswith("there: else")
    assert word_fields(index, ("else", name)) == ("else",)


def test_a_disabled_mapping_and_dotted_names() -> None:
    assert not is_indexed_text(info({"body": TEXT}, enabled=False), "body")
    dotted = info({"meta.title": TEXT, "a": {"properties": {"b.c": {**TEXT, "fields": {"d": TEXT}}}}})
    assert word_fields(dotted, ("meta.title", "a.b.c")) == ("meta.title", "a.b.c")
    assert is_indexed_text(dotted, "a.b.c.d")


def test_a_setting_names_fields_and_aliases() -> None:
    fields = {"all": TEXT, "everything": {"type": "alias", "path": "all"}, "body": hidden()}
    computed = {"derived": {"joined": {"type": "text"}}, "runtime": {"shout": {"type": "keyword"}}}
    index = info({**fields, "year": {"type": "long"}}, **computed)
    assert searched_fields(index, ("everything^3", "all")) == [SearchedField("all", 1.0)]
    for name, problem in (
        ("joined", "'joined' is computed by each search"),
        ("shout", "'shout' is computed by each search"),
        ("body", "'body' is not indexed"),
        ("year", "'year' is long"),
        ("gone", "no field 'gone'"),
        ("all^0", "no boost above 0"),
    ):
        with pytest.raises(SettingsError, match=problem):
            searched_fields(index, (name,))


def test_what_vectors_of_the_same_fields_were_searched_by_is_taken_again() -> None:
    index = info({"body": TEXT, "title": TEXT, "all": TEXT})
    before = FieldChoice(("body",), {}, True, ("body",), ("all",))
    assert chosen_word_fields(index, before) == ("all",)
    assert chosen_word_fields(index, before._replace(fields=("title",))) == ("title",)
    assert chosen_word_fields(index, before._replace(searched=("gone",))) == ("body",)


def analysed_by(analyzer=None, settings=None, kind="text"):
    mapping = {"type": kind} | ({"analyzer": analyzer} if analyzer else {})
    return IndexInfo("docs", settings or {}, {"properties": {"text": mapping}}, {})


def test_only_analysers_that_read_each_word_for_itself() -> None:
    assert reads_words_alone(analysed_by(), "text")
    assert reads_words_alone(analysed_by("german"), "text")
    for analyzer in ("cjk", "thai", "whitespace", "simple", "fingerprint", "kuromoji", "unknown"):
        assert not reads_words_alone(analysed_by(analyzer), "text")
    assert not reads_words_alone(analysed_by("english", kind="search_as_you_type"), "text")
    assert not reads_words_alone(analysed_by("english", kind="keyword"), "text")


@pytest.mark.parametrize(
    ("definition", "alone"),
    [
        ({"type": "english", "stopwords": ["a"]}, True),
        ({"type": "standard", "max_token_length": "5"}, False),
        ({"tokenizer": "standard", "filter": ["lowercase", "asciifolding", "porter_stem"]}, True),
        ({"type": "custom", "tokenizer": "standard", "filter": "lowercase"}, True),
        ({"tokenizer": "standard", "filter": ["lowercase", "synonyms"]}, False),
        ({"tokenizer": "standard", "filter": ["stems"]}, True),
        ({"tokenizer": "standard", "filter": ["lowercase"], "char_filter": ["html_strip"]}, False),
        ({"tokenizer": "whitespace", "filter": ["lowercase"]}, False),
        ({"tokenizer": "standard", "filter": ["shingle"]}, False),
        ({"tokenizer": "standard", "filter": ["lowercase"], "position_increment_gap": "3"}, False),
    ],
)
def test_analysers_of_the_index_itself(definition: dict[str, Any], alone: bool) -> None:
    settings = {f"{CUSTOM}{key}": value for key, value in definition.items()}
    settings |= {
        "index.analysis.filter.synonyms.type": "synonym",
        "index.analysis.filter.stems.type": "stemmer",
    }
    assert reads_words_alone(analysed_by("own", settings), "text") is alone


def test_a_filter_or_tokenizer_that_was_made_anew_is_not_the_built_in_one() -> None:
    settings = {f"{CUSTOM}tokenizer": "standard", f"{CUSTOM}filter": ["lowercase"]}
    assert reads_words_alone(analysed_by("own", settings), "text")
    synonyms = {"index.analysis.filter.lowercase.type": "synonym"}
    assert not reads_words_alone(analysed_by("own", settings | synonyms), "text")
    short = {"index.analysis.tokenizer.standard.type": "standard"}
    assert not reads_words_alone(analysed_by("own", settings | short), "text")
    whole = {"index.analysis.analyzer.default.tokenizer": "keyword"}
    assert not reads_words_alone(analysed_by(None, whole), "text")
