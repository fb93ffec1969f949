"""What is odd about an index or a query does not keep it from being calibrated, or it says why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from hybridr import Rule, Search
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve, write_record
from hybridr.errors import DataError, FingerprintMismatch
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.relevance import answering
from hybridr.relevance.answering import MIN_QUERIES, calibrate, unanswerable_queries
from hybridr.search.rules.rules import add_rules, remove_rules
from support.chinese import texts as chinese
from support.corpus import put, text_number
from support.hashing import HashingEncoder

ENCODER, ASKED = HashingEncoder(dim=32), 100
QUICK = ReindexSettings(term_table=False, fields=("text",))
UNANSWERABLE = "why did the judge postpone tuesday's hearing"
Makes = Callable[..., str]


@pytest.fixture
def filled(cluster: Cluster, index_name: str) -> Makes:
    def fill(documents: Sequence[str], vectors: bool = True) -> str:
        put(cluster, index_name, {f"d{number}": {"text": text} for number, text in enumerate(documents)})
        if vectors:
            reindex(cluster, index_name, ENCODER, QUICK)
        return index_name

    return fill


def test_of_twenty_documents(cluster, filled):
    name = filled([text_number(number) for number in range(20)])
    found = calibrate(cluster, name, ENCODER)
    assert found.answers, found.note
    assert found.answers.queries + found.answers.answered == ASKED
    sure = Search(cluster, name, ENCODER).requiring(0.95)
    assert sure(text_number(3))[0].doc_id == "d3"
    assert sure(UNANSWERABLE) == []
    for text in ("the of and", "?"):  # stop words, and no word at all
        assert [hit.confidence for hit in sure(text)] == [] or sure(text)[0].confidence >= 0.95
    with pytest.raises(DataError, match="empty"):
        sure("")
    add_rules(cluster, name, [Rule(name="r", text=UNANSWERABLE, pin=("gone",))])
    pinned = Search(cluster, name, ENCODER).requiring(0.95)
    assert pinned(UNANSWERABLE) == []
    assert pinned(UNANSWERABLE).nearest is not None
    remove_rules(cluster, name, ["r"])


def test_of_one_text_many_times(cluster, filled):
    name = filled([text_number(7)] * 30)
    found = calibrate(cluster, name, ENCODER)
    assert found.answers, found.note
    sure = Search(cluster, name, ENCODER).requiring(0.95)
    assert len(sure(text_number(7), 30)) == 30
    assert sure(UNANSWERABLE) == []


def test_of_chinese_documents(cluster, filled):
    documents = chinese()[:60]
    name = filled(documents)
    write_record(cluster, resolve(cluster, name).name, language="zh")
    found = calibrate(cluster, name, ENCODER)
    assert found.answers, found.note
    assert found.answers.queries >= MIN_QUERIES, "asked by words of its own documents, not in English"
    assert Search(cluster, name, ENCODER).requiring(0.95)(documents[3])[0].doc_id == "d3"


def test_of_what_the_index_answers_nothing_is_called_foreign(cluster, filled):
    listed = list(unanswerable_queries(ASKED))
    name = filled([*listed[:40], *(text_number(number) for number in range(40))])
    found = calibrate(cluster, name, ENCODER).answers
    assert found
    assert found.answered >= 30
    assert Search(cluster, name, ENCODER).requiring(0.95)(listed[0])[0].doc_id == "d0"


def test_without_vectors_and_by_another_encoder(cluster, filled):
    name = filled([text_number(number) for number in range(20)], vectors=False)
    found = calibrate(cluster, name, ENCODER)
    assert found.answers is None
    assert f"hybridr tune {name}" in found.note
    reindex(cluster, name, ENCODER, QUICK)
    assert calibrate(cluster, name, ENCODER).answers
    write_record(cluster, resolve(cluster, name).name, answers=None)
    other = calibrate(cluster, name, HashingEncoder(dim=32, salt="another"))
    assert other.answers is None
    assert f"hybridr tune {name}" in other.note
    with pytest.raises(FingerprintMismatch):
        Search(cluster, name, HashingEncoder(dim=32, salt="another"))


def test_a_fault_of_the_code_is_no_note(cluster, filled, monkeypatch):
    name = filled([text_number(number) for number in range(20)])

    def broken(*_: object) -> None:
        raise TypeError("a fault")

    monkeypatch.setattr(answering, "calibrate_search", broken)
    with pytest.raises(TypeError, match="a fault"):
        calibrate(cluster, name, ENCODER)
