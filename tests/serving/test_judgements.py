"""Judgements on this machine: what is kept, how several people count, and how far they agree."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import VERSION
from hybridr.errors import DataError
from hybridr.files.formats import read_topics
from hybridr.files.local import data_folder
from hybridr.serving.page.judgements import Judgements, judge_agreement, query_id_of


@pytest.fixture
def kept(tmp_path: Path) -> Judgements:
    found = Judgements(tmp_path / "judged")
    assert found.add_queries(["a cat", "  a   cat ", "", "über 飛"]) == 2
    return found


CAT = query_id_of("a cat")


def test_what_is_kept_is_a_beir_folder(kept: Judgements) -> None:
    kept.store_grades("ada", CAT, {"d 1": 1, "d2": 0})
    kept.store_grades("ada", CAT, {"d 1": 0, "d2": 1})
    queries, qrels = read_topics(kept.folder, "test")
    assert [query.text for query in queries] == ["a cat"]
    assert qrels == {CAT: {"d 1": 0, "d2": 1}}
    again = Judgements(kept.folder)
    assert [query.text for query in again.queries()] == ["a cat", "über 飛"]
    assert again.add_queries(["a cat"]) == 0


def test_only_the_owner_can_read_it(kept: Judgements) -> None:
    kept.store_grades("ada", CAT, {"d1": 1})
    files = [file for file in kept.folder.rglob("*") if file.is_file()]
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(kept.folder.stat().st_mode) == 0o700


def test_more_than_half_of_the_judges_decide(kept: Judgements) -> None:
    kept.store_grades("ada", CAT, {"d1": 1, "d2": 1, "d3": 0})
    kept.store_grades("bob", CAT, {"d1": 1, "d2": 0})
    assert kept.combined_grades() == {CAT: {"d1": 1, "d2": 0, "d3": 0}}
    kept.store_grades("eve", CAT, {"d2": 1})
    assert kept.combined_grades()[CAT]["d2"] == 1
    standing = kept.progress_report()
    assert (standing["judged"], standing["queries"], standing["wanted"]) == (1, 2, 30)
    assert standing["judges"] == {"ada": 1, "bob": 1, "eve": 1}
    assert [" ".join(one["judges"]) for one in standing["agreement"]] == ["ada bob", "ada eve", "bob eve"]


def test_a_query_counts_with_a_relevant_document(kept: Judgements) -> None:
    kept.store_grades("ada", CAT, {"d1": 0})
    assert kept.progress_report()["judged"] == 0


@pytest.mark.parametrize(
    ("one", "other", "same", "kappa"),
    [
        ([1, 1, 0, 0], [1, 1, 0, 0], 1.0, 1.0),
        ([1, 1, 0, 0], [0, 0, 1, 1], 0.0, -1.0),
        ([1, 0, 1, 0], [1, 1, 0, 0], 0.5, 0.0),
        ([1, 1, 1, 1], [1, 1, 1, 1], 1.0, None),
    ],
)
def test_cohens_kappa(one: list[int], other: list[int], same: float, kappa: float | None) -> None:
    left, right = ({"q": dict(zip("abcd", grades, strict=True))} for grades in (one, other))
    assert judge_agreement(left, right) == {"documents": 4, "same": same, "kappa": kappa}
    assert judge_agreement(left, {"other": {"a": 1}}) is None


@pytest.mark.parametrize("doc_id", ["a\tb", "a\nb", " "])
def test_what_qrels_cannot_hold_is_refused(kept: Judgements, doc_id: str) -> None:
    with pytest.raises(DataError, match="qrels cannot hold it"):
        kept.store_grades("ada", CAT, {doc_id: 1})
    with pytest.raises(DataError, match="no query"):
        kept.store_grades("ada", "gone", {"d1": 1})


def index(name: str = "docs", uuid: str = "mGx3_r-3SdOqPpZqZqZqZq", **record: Any) -> IndexInfo:
    meta = {"_meta": {"hybridr": {**record, "version": VERSION}}} if record else {}
    return IndexInfo(name, {"index.uuid": uuid}, meta, {})


@pytest.mark.parametrize("name", ["docs", "docs.v2", ".hidden", "産品", "a-b_c"])
def test_an_index_has_the_folder_that_it_always_had(name: str) -> None:
    """Judgements of before are found: a harmless name is that of its folder as it is."""
    folder = data_folder() / "judgements" / f"{name}-mGx3_r-3SdOqPpZqZqZqZq"
    assert Judgements.of(index(name)).folder == folder
    made = index(f"{name}-hybridr-1", "other", source=name, source_uuid="mGx3_r-3SdOqPpZqZqZqZq")
    assert Judgements.of(made).folder == folder


@pytest.mark.attack(82)
@pytest.mark.parametrize(
    "record",
    [
        {"source": "../../../x", "source_uuid": "/../loot"},
        {"source": "x", "source_uuid": "/../loot"},
        {"source": "..", "source_uuid": ""},
        {"source": "/no-such-folder", "source_uuid": "u"},
    ],
)
def test_no_record_says_which_folder_is_read_and_written(record: dict[str, str]) -> None:
    with pytest.raises(DataError, match=r"hybridr's record in 'docs' holds a wrong 'source"):
        Judgements.of(index(**record))


@pytest.mark.attack(82)
@pytest.mark.parametrize(("name", "uuid"), [("../x", "u"), ("x", "/../loot"), ("x", "u\0")])
def test_no_cluster_says_which_folder_is_read_and_written(name: str, uuid: str) -> None:
    with pytest.raises(DataError, match="cannot be the name of a file"):
        Judgements.of(index(name, uuid))


@pytest.mark.attack(82)
def test_what_lies_beside_judgements_is_not_given_out(kept: Judgements) -> None:
    kept.store_grades("ada", CAT, {"d1": 1})
    for name in ("rejects.jsonl", "deep/secret.tsv", "judges/deep/secret.tsv"):
        (kept.folder / name).parent.mkdir(exist_ok=True)
        (kept.folder / name).write_text("secret")
    with zipfile.ZipFile(io.BytesIO(kept.zip_bytes())) as archive:
        assert archive.namelist() == ["judges/ada.tsv", "qrels/test.tsv", "queries.jsonl"]
        assert archive.read("qrels/test.tsv").decode() == f"query-id\tcorpus-id\tscore\n{CAT}\td1\t1\n"


@pytest.mark.attack(82)
@pytest.mark.parametrize("judge", ["../eve", "/eve", "..\\eve", "a/b", "eve\n"])
def test_a_judges_name_is_no_path(kept: Judgements, judge: str) -> None:
    with pytest.raises(DataError, match="cannot be the name of a file"):
        kept.store_grades(judge, CAT, {"d1": 1})
    with pytest.raises(DataError, match="cannot be the name of a file"):
        kept.grades_by(judge)
    assert not kept.judges()


@pytest.mark.attack(87)
@pytest.mark.parametrize("end", ["\n", "\r", "\t", "\x85", "\u2028", "\v"])
@pytest.mark.parametrize("place", ["d1{}", "{}d1", "d{}1"])
def test_no_id_ends_a_line_of_the_judgements(kept: Judgements, place: str, end: str) -> None:
    with pytest.raises(DataError, match="a tab or a line break"):
        kept.store_grades("ada", CAT, {place.format(end): 1})
    kept.store_grades("ada", CAT, {"d 1": 1})
    assert kept.progress_report()["judged"] == 1


@pytest.mark.attack(89)
def test_queries_and_judges_come_to_an_end(kept: Judgements, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridr.serving.page.judgements.MAX_QUERIES", 5)
    monkeypatch.setattr("hybridr.serving.page.judgements.MAX_JUDGES", 2)
    assert kept.add_queries(["one", "two", "three"]) == 3
    with pytest.raises(DataError, match="these would be 6 queries, the page takes 5"):
        kept.add_queries(["four"])
    assert len(kept.queries()) == 5
    for judge in ("ada", "bob", "ada"):
        kept.store_grades(judge, CAT, {"d1": 1})
    with pytest.raises(DataError, match="there are 2 judges already"):
        kept.store_grades("eve", CAT, {"d1": 1})
