"""Published collections in their own layouts, and the rows of the published tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import run
from hybridr.encoders.registry import checkpoints
from hybridr.errors import DataError, SettingsError
from hybridr.files.formats import read_beir
from hybridr.records import Document, Query
from layouts import LAYOUTS, as_beir
from studies import published as study
from studies.published import located, read_published, result_name, rows_for


def lotte(folder: Path) -> None:
    (folder / "collection.tsv").write_text("0\tFirst answer\twith a tab\n1\tSecond answer\n")
    (folder / "questions.forum.tsv").write_text("0\tHow so?\n1\tWhy?\n2\tNobody judged this\n")
    (folder / "qas.forum.jsonl").write_text(
        '{"qid": 0, "query": "How so?", "url": "u", "answer_pids": [1, 0]}\n'
        '{"qid": 1, "query": "Why?", "url": "u", "answer_pids": [1]}\n'
    )


def cpr(folder: Path) -> None:
    (folder / "corpus_split_0.tsv").write_text("p1\t尼康 相机\n", encoding="utf-8")
    (folder / "corpus_split_1.tsv").write_text("p2\t海上女神\n", encoding="utf-8")
    (folder / "dev.query.txt").write_text("q1\t相机\nq2\t女神\n", encoding="utf-8")
    (folder / "qrels.dev.tsv").write_text("q1\t0\tp1\t1\nq2\t0\tp2\t1\n")


def cmedqa(folder: Path) -> None:
    (folder / "answer.csv").write_text(
        "ans_id,question_id,content\n7,1,多喝水,早睡\n8,2,看医生\n", encoding="utf-8"
    )
    (folder / "question.csv").write_text(
        "question_id,content\n1,头痛,怎么办\n2,发烧\n3,别的\n", encoding="utf-8"
    )
    (folder / "test_candidates.txt").write_text("question_id,ans_id,cnt,label\n1,7,0,1\n1,8,1,0\n2,8,0,1\n")


FOLDERS: dict[Any, tuple[Any, ...]] = {
    lotte: (
        "forum",
        {"0": "First answer\twith a tab", "1": "Second answer"},
        {"0": "How so?", "1": "Why?"},
        {"0": {"1": 1, "0": 1}, "1": {"1": 1}},
    ),
    cpr: (
        "dev",
        {"p1": "尼康 相机", "p2": "海上女神"},
        {"q1": "相机", "q2": "女神"},
        {"q1": {"p1": 1}, "q2": {"p2": 1}},
    ),
    cmedqa: (
        "test",
        {"7": "多喝水,早睡", "8": "看医生"},
        {"1": "头痛,怎么办", "2": "发烧"},
        {"1": {"7": 1}, "2": {"8": 1}},
    ),
}


@pytest.mark.parametrize("write", FOLDERS)
def test_a_layout_becomes_a_beir_folder(tmp_path: Path, write: Callable[[Path], None]) -> None:
    split, documents, queries, qrels = FOLDERS[write]
    source = tmp_path / "source"
    source.mkdir()
    write(source)
    target = as_beir(source, write.__name__, split, tmp_path / "beir")
    found = [Document(*one) for one in documents.items()], [Query(*one) for one in queries.items()], qrels
    assert read_beir(target, split) == found
    before = (target / "corpus.jsonl").stat().st_ino
    assert as_beir(source, write.__name__, split, target) == target
    assert (target / "corpus.jsonl").stat().st_ino == before


def test_a_changed_source_is_read_again(tmp_path: Path) -> None:
    cpr(tmp_path)
    target = as_beir(tmp_path, "cpr", "dev", tmp_path / "beir")
    (tmp_path / "corpus.tsv").write_text("p1\tone\np2\ttwo\np3\tthree\n")
    as_beir(tmp_path, "cpr", "dev", target)
    assert len(read_beir(target, "dev")[0]) == 3


@pytest.mark.parametrize(
    ("write", "name", "text", "words"),
    [
        (lotte, "collection.tsv", "0\n", "collection.tsv:1: needed 2 columns, found 1"),
        (lotte, "qas.forum.jsonl", '{"qid": 0}\n', "needed 'qid' and 'answer_pids'"),
        (lotte, "questions.forum.tsv", "0\tHow so?\n", "1 judged queries have no text, such as '1'"),
        (cpr, "dev.query.txt", "q1\t相机\n", "1 judged queries have no text"),
        (cmedqa, "test_candidates.txt", "h\n1,7,0,x\n", "needed the label 0 or 1, found 'x'"),
        (cmedqa, "answer.csv", None, "cannot read .*answer.csv"),
    ],
)
def test_malformed_files_are_named(tmp_path, write, name, text, words):
    write(tmp_path)
    (tmp_path / name).write_text(text, encoding="utf-8") if text else (tmp_path / name).unlink()
    split = {"lotte": "forum", "cpr": "dev", "cmedqa": "test"}[write.__name__]
    with pytest.raises(DataError, match=words):
        as_beir(tmp_path, write.__name__, split, tmp_path / "beir")
    assert not (tmp_path / "beir").exists()


@pytest.mark.parametrize(
    ("title", "expected"),
    [("Masks", "Masks. They help"), ("Do masks help?", "Do masks help? They help"), ("", "They help")],
)
def test_title_and_text_are_joined_as_the_authors_did(tmp_path: Path, title: str, expected: str) -> None:
    from hybridr.files.formats import write_beir

    write_beir(tmp_path / "a", [Document("d", "They help", title)], [Query("q", "masks")], {"q": {"d": 1}})
    found = as_beir(tmp_path / "a", "beir", "test", tmp_path / "b", join=". ")
    assert read_beir(found)[0] == [Document("d", expected)]


def test_every_published_model_of_a_row_is_one_that_hybridr_knows() -> None:
    collections, tables = read_published()
    known = {one.name for one in checkpoints()}
    for name in tables["ddr"].expected:
        for row in rows_for(collections[name], {"ddr": tables["ddr"]}, None):
            here = located(row, collections[name])
            assert {part for part in (here.dam, here.rem) if part} <= known
    assert all(one.layout in LAYOUTS for one in collections.values())
    for table in tables.values():
        for values in table.expected.values():
            assert values.keys() <= table.rows.keys()
            assert {len(one) for one in values.values()} == {len(table.measures)}


def test_a_row_that_cannot_run_is_a_usage_error() -> None:
    collections, tables = read_published()
    with pytest.raises(SettingsError, match="'ddr/contrast' cannot run on scifact") as caught:
        rows_for(collections["scifact"], tables, "ddr/contrast")
    assert caught.value.hint == "rows that can: cocodr/base, cocodr/large"


def test_what_was_not_run_stands_beside_what_is_expected() -> None:
    collections, tables = read_published()
    row = tables["cocodr"].rows["base"]
    name = result_name("scifact", row)
    line = "| scifact | not run (.709) |"
    assert line in study.render({})
    assert line in study.SECTIONS[0].missing
    close = study.render({name: {"systems": {"dense": {"nDCG@10": 0.7102}}}})
    assert "| scifact | .7102 (.709) |" in close
    far = study.render({name: {"systems": {"dense": {"nDCG@10": 0.7121}}}})
    assert "| scifact | .7121 off (.709) |" in far
    assert replace(row, tolerance=0.01).identity == "cocodr/base"


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (["nowhere"], 2, "published.toml has trec-covid"),
        (["cqadupstack"], 2, "twelve forums"),
        (["lotte-tech"], 1, "'lotte-tech' is not run: there is no folder"),
        (["scifact", "--row", "ddr/contrast"], 1, "there is no folder"),
    ],
)
def test_what_cannot_run_is_said(tmp_path, capsys, given: list[str], code: int, words: str) -> None:
    name, *rest = given
    runs = ["--runs", str(tmp_path / "runs")]
    assert run.main(["published", name, str(tmp_path), *rest, *runs]) == code
    assert words in capsys.readouterr().err
