"""Choosing text fields, without a cluster."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from hybridr.cluster.fields import (
    check_fields,
    choose_without_reading,
    count_words,
    field_choice,
    read_contents,
)
from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import VERSION
from hybridr.errors import DataError

WORDS = "engine boat captain noise bridge water sail wind harbour rope anchor deck cabin mast crew".split()


def info(properties: dict, *, meta: dict | None = None, **settings: str) -> IndexInfo:
    mappings = {"properties": properties}
    if meta:
        mappings["_meta"] = {"hybridr": {**meta, "version": VERSION}}
    return IndexInfo("books", {f"index.{name}": value for name, value in settings.items()}, mappings, {})


def texts(*names: str) -> dict:
    return {name: {"type": "text"} for name in names}


def prose(seed: int, length: int = 30) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=length)) + f" {seed}"


def chosen(index: IndexInfo, sources: list[dict]):
    return field_choice(None, index, sources=sources, view=SimpleNamespace(indices=lambda pattern: []))


def test_the_mapping_is_flattened_with_analysers_multi_fields_and_nesting() -> None:
    index = info(
        {
            "title": {"type": "text", "analyzer": "german", "fields": {"raw": {"type": "keyword"}}},
            "author": {"properties": {"name": {"type": "text"}, "born": {"type": "date"}}},
            "notes": {"type": "nested", "properties": {"body": {"type": "match_only_text"}}},
            "anything": {"type": "object"},
        },
        **{"analysis.analyzer.default.type": "french"},
    )
    assert [tuple(one) for one in index.mapped_fields] == [
        ("anything", "object", "", (), False),
        ("author.born", "date", "", (), False),
        ("author.name", "text", "french", (), False),
        ("notes.body", "match_only_text", "french", (), True),
        ("title", "text", "german", ("raw",), False),
    ]


def test_contents_count_what_is_filled_and_what_is_not_text() -> None:
    sources = [{"t": "one two"}, {"t": ["three", 4, None]}, {"t": ""}, {"t": 5}, {}]
    found = read_contents(sources, ["t"])["t"]
    assert (found.filled, found.not_text) == (3, 2)
    assert (found.texts, found.words) == (["one two", "three", "", "", ""], 1.5)


def test_usual_names_are_taken_before_all_others() -> None:
    index = info(texts("text", "title", "contents", "body"))
    sources = [{"title": "", "text": "short", "contents": prose(i), "body": prose(-i, 90)} for i in range(30)]
    choice = chosen(index, sources)
    assert (choice.fields, choice.reasons["contents"]) == (("title", "text"), "not needed beside them")


def test_what_load_and_reindex_recorded_is_taken_first() -> None:
    index = info(texts("title", "text", "contents", "abstract"), meta={"text_fields": ["abstract"]})
    assert choose_without_reading(index) == (("abstract",), "recorded in the index by hybridr load")
    vectors = info(texts("title"), meta={"fields": ["body", "hidden.text"], "fields_named": True})
    index = info(texts("title", "text", "body"), meta={"text_fields": ["title"]})
    named_then = "as in the vectors of 'books', named then"
    assert choose_without_reading(index, vectors) == (("body", "hidden.text"), named_then)
    index = info({"title": {"type": "text"}, "body": {"type": "long"}})
    assert choose_without_reading(index, vectors) is None


def test_a_keyword_with_a_field_of_text_below_may_hold_prose() -> None:
    below = {"type": "keyword", "fields": {"text": {"type": "text"}}}
    index = info({"name": below, "body": {"type": "keyword"}, "kind": below})
    sources = [{"name": prose(i, 5), "body": prose(-i), "kind": "a long novel"} for i in range(30)]
    choice = chosen(index, sources)
    assert (choice.fields, choice.reasons["kind"]) == (("name",), "only 1 different values: categories")


def test_a_record_that_no_longer_fits_the_mapping_is_not_followed() -> None:
    index = info(texts("title", "text"), meta={"text_fields": ["gone"]})
    assert choose_without_reading(index) == (("title", "text"), "the usual names")


def test_prose_is_ranked_by_words_per_document_with_titles_first() -> None:
    index = info(texts("headline", "body", "abstract_en", "remark"))
    sources = [
        {
            "headline": prose(i, 4),
            "body": prose(i + 1000, 60),
            "abstract_en": prose(i + 2000, 20) if i % 2 else None,
            "remark": prose(i + 3000, 20) if i == 0 else None,
        }
        for i in range(40)
    ]
    choice = chosen(index, sources)
    assert choice.fields == ("headline", "body", "abstract_en")
    assert choice.reasons["body"] == "61.0 words per document"
    assert "little beside the others" in choice.reasons["remark"]


def test_identifiers_addresses_labels_and_categories_are_left_out() -> None:
    index = info(texts("body", "docId", "home", "status", "place", "kind", "gone"))
    sources = [
        {
            "body": prose(i),
            "docId": f"the number {i} of all",
            "home": f"https://example.org/{i}",
            "status": f"code{i}",
            "place": f"New Harbour{i}",
            "kind": ["a very long novel", "a very short story"][i % 2],
        }
        for i in range(60)
    ]
    choice = chosen(index, sources)
    assert choice.fields == ("body",)
    assert choice.reasons == {
        "body": "31.0 words per document",
        "docId": "named like an identifier or address",
        "gone": "empty in every sampled document",
        "home": "addresses",
        "kind": "only 2 different values: categories",
        "place": "2.0 words on average: labels",
        "status": "single words: codes, names or labels",
    }


def test_a_persons_name_is_no_title() -> None:
    index = info({"author": {"properties": texts("name")}, **texts("name", "body")})
    names = [{"author": {"name": f"Ann Lee{i}"}, "name": f"Boat{i} repair"} for i in range(30)]
    sources = [{**name, "body": prose(i)} for i, name in enumerate(names)]
    assert chosen(index, sources).fields == ("name", "body")


def test_a_field_put_together_from_others_is_left_out() -> None:
    index = info(texts("all", "body", "headline"))
    sources = [{"headline": prose(i, 5), "body": prose(-i)} for i in range(30)]
    joined = [{**source, "all": f"{source['headline']} {source['body']}"} for source in sources]
    choice = chosen(index, joined)
    assert (choice.fields, choice.reasons["all"]) == (("headline", "body"), "repeats body, headline")


def test_of_two_equal_fields_one_is_left() -> None:
    index = info(texts("body", "copy"))
    assert len(chosen(index, [{"body": prose(i), "copy": prose(i)} for i in range(30)]).fields) == 1


def test_an_abstract_inside_the_body_does_not_push_the_body_out() -> None:
    index = info(texts("body", "lead"))
    sources = [{"lead": prose(i, 8), "body": f"{prose(i, 8)} {prose(-i, 60)}"} for i in range(30)]
    assert "body" in chosen(index, sources).fields


def test_chinese_text_is_not_taken_for_a_code() -> None:
    assert count_words("旧船的发动机 OpenSearch") == 7
    index = info(texts("body", "sku_name"))
    sources = [{"body": f"旧船的发动机声音很大我们听不见船长{i}", "sku_name": f"X{i}"} for i in range(30)]
    assert chosen(index, sources).fields == ("body",)


def test_without_text_fields() -> None:
    index = info({"year": {"type": "integer"}, "tag": {"type": "keyword"}})
    with pytest.raises(DataError, match=r"'books' has no text fields; its fields: tag \(keyword\), year"):
        chosen(index, [{"year": 1}])
    with pytest.raises(DataError, match="its fields: none"):
        chosen(info({}), [{"year": 1}])


def test_with_labels_only() -> None:
    with pytest.raises(DataError, match="no field of index 'books' holds running text.*code: single words"):
        chosen(info(texts("code", "url")), [{"code": f"c{i}", "url": "u"} for i in range(30)])


FIELDS = {
    "title": {"type": "text", "fields": {"keyword": {"type": "keyword"}}},
    "author": {"properties": {"bio": {"type": "text"}, "name": {"type": "text"}}},
    "year": {"type": "integer"},
    "tag": {"type": "keyword"},
}


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("titel", "index 'books' has no field 'titel'", "text fields there: title"),
        ("zzz", "index 'books' has no field 'zzz'", "text fields there: author.bio, author.name, title"),
        ("year", "field 'year' of index 'books' is of type integer, not text", None),
        ("author", "index 'books' holds an object in 'author'", "text fields there: author.bio, author.name"),
        (
            "title.keyword",
            "'title.keyword' of index 'books' is indexed from 'title' and not stored",
            "--fields title",
        ),
    ],
)
def test_given_fields_that_cannot_be_used(name: str, message: str, hint: str | None) -> None:
    with pytest.raises(DataError) as caught:
        check_fields(info(FIELDS), [name], [])
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.exit_code == 1


def test_given_fields_that_can_be_used() -> None:
    assert check_fields(info(FIELDS), ["tag", "author.bio", "tag"], []) == ("tag", "author.bio")
    assert check_fields(info(FIELDS), ["extra.note"], [{"extra": {"note": "here"}}]) == ("extra.note",)
