"""`inspect` on a real node."""

from __future__ import annotations

import pytest

from hybridr.cluster import fields
from hybridr.doctor.inspection import inspect_index
from support.books import document, make


def test_a_whole_index_is_described(cluster, books):
    report = inspect_index(cluster, books)
    assert (report.documents, report.sampled, report.shards) == (300, 300, 2)
    assert report.text_fields == ("headline", "book.body", "comments.words")
    by_name = {field.name: field for field in report.fields}
    assert set(by_name) == {"headline", "book.body", "book.isbn", "comments.words", "year", "vector"}
    assert by_name["book.body"].filled == pytest.approx(299 / 300)
    assert by_name["comments.words"].not_text == 299
    assert (by_name["vector"].filled, by_name["year"].lengths) == (None, None)
    assert report.language.code == "en"
    assert report.analyzer == "english"
    assert report.duplicates == pytest.approx(1 / 299)
    assert report.empty == pytest.approx(1 / 300)
    assert report.lengths.unit == "words"
    assert any("'english' fits the language better" in said for said in report.advice)
    assert any("'comments.words' holds 299 values that are not text" in said for said in report.advice)


def test_inspecting_changes_nothing(cluster, books, monkeypatch):
    monkeypatch.setattr(fields, "CHOOSING_SAMPLE", 50)
    before = cluster.index_info(books)
    assert inspect_index(cluster, books).sampled == 50
    assert cluster.index_info(books) == before
    assert cluster.request("GET", "/_search/point_in_time/_all")["pits"] == []


def test_tokens_of_a_model_are_counted(cluster, books, minilm):
    from hybridr.encoders.opening import FolderTokens

    counter = FolderTokens(minilm)
    report = inspect_index(cluster, books, fields=("book.body",), token_counter=counter)
    exact = sorted(
        counter.count_tokens([document(number)["book"]["body"] for number in range(1, 301) if number != 11])
    )
    assert (report.lengths.unit, report.lengths.limit, report.lengths.cut) == (
        "tokens",
        counter.max_tokens,
        0.0,
    )
    assert abs(report.lengths.median - exact[149]) <= 1


def test_the_command_prints_a_table_and_json(cluster, books, cli):
    shown = cli(cluster, f"inspect {books}").out
    assert f"{books}: 300 documents in 2 shards, 300 read" in shown
    assert "headline + book.body + comments.words: median" in shown
    report = cli(cluster, f"inspect {books} --json --fields headline").json
    assert report["text_fields"] == ["headline"]
    assert report["language"]["code"] == "en"
    assert report["lengths"]["unit"] == "tokens"


BAD = {
    "missing": (None, "no index or alias 'NAME'", "hybridr load FOLDER --index NAME"),
    "empty": (([], {"properties": {"body": {"type": "text"}}}), "index 'NAME' is empty", "hybridr load"),
    "no text": (
        ([{"year": 1, "tag": "x"}], {"properties": {"year": {"type": "long"}, "tag": {"type": "keyword"}}}),
        "index 'NAME' has no text fields; its fields: tag (keyword), year (long)",
        "--fields tag",
    ),
    "no source": (
        ([{"body": "x y z"}], {"_source": {"enabled": False}, "properties": {"body": {"type": "text"}}}),
        "index 'NAME' does not keep its documents (_source is disabled)",
        "load the documents again",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(cluster, index_name, case, cli):
    contents, message, hint = BAD[case]
    if contents is not None:
        make(cluster, index_name, contents[0], **contents[1])
    said = cli(cluster, f"inspect {index_name} --quiet", code=1)
    assert said.out == ""
    assert f"error: {message.replace('NAME', index_name)}" in said.err
    assert hint.replace("NAME", index_name) in said.err


def test_bad_fields_and_folders(cluster, books, tmp_path, cli):
    assert (
        f"field 'year' of index '{books}' is of type integer, not text"
        in cli(cluster, f"inspect {books} --fields year", code=1).err
    )
    assert "has no tokenizer.json" in cli(cluster, f"inspect {books} --encoder {tmp_path}", code=1).err
