from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import VERSION
from hybridr.encoders.contract import Reading, unit_length
from hybridr.errors import DataError
from hybridr.indexing.terms import fitting
from hybridr.indexing.terms.fitting import (
    Content,
    Occurrence,
    StateSums,
    field_occurrences,
    lay_out,
    table_obstacle,
)
from hybridr.records import Windows
from support.hashing import HashingEncoder, ProductEncoder


def answer(**fields: dict[str, list[tuple[int, int]]]) -> dict[str, Any]:
    """What the server tells of a text: field -> term -> offsets."""
    return {
        "term_vectors": {
            name: {
                "terms": {
                    term: {"tokens": [{"start_offset": start, "end_offset": end} for start, end in spans]}
                    for term, spans in terms.items()
                }
            }
            for name, terms in fields.items()
        }
    }


def info_of(record: dict[str, Any], **properties: Any) -> IndexInfo:
    meta = {"hybridr": {**record, "version": VERSION}}
    return IndexInfo("i", {"index.uuid": "u"}, {"_meta": meta, "properties": properties}, {})


def read(text: str) -> Reading:
    return HashingEncoder().read_documents([text])[0]


def test_offsets_become_characters() -> None:
    text = "a🚀b 機翼 é"
    content = Content("text", "text", 6, text)
    told = answer(text={"🚀": [(1, 3)], "b": [(3, 4)], "機翼": [(5, 7)], "é": [(8, 9)]})
    found = field_occurrences(told, content)
    assert found == [("🚀", 7, 8), ("b", 8, 9), ("機翼", 10, 12), ("é", 13, 14)]
    assert [f"title {text}"[word.start : word.end] for word in found] == [word.term for word in found]


def test_an_answer_without_terms_tells_of_none() -> None:
    content = Content("text", "text", 0, "ab")
    assert field_occurrences(answer(text={}), content) == []
    assert field_occurrences({"error": {"type": "x"}}, content) == []


def test_each_searched_field_has_its_place_in_the_text() -> None:
    source = {"title": " Wing  tip ", "text": ["flow", "", "over\nit"], "other": "x"}
    found = lay_out(source, ("title", "text"), ("text", "text.english", "title", "contents", "other"))
    assert found.text == "Wing tip flow over it"
    assert found.contents == (
        Content("text", "text", 9, "flow over it"),
        Content("text.english", "text", 9, "flow over it"),
        Content("title", "title", 0, "Wing tip"),
        Content("contents", "contents", 0, found.text),
        Content("other", "other", 0, found.text),
    )
    for one in found.contents:
        assert found.text[one.start :].startswith(one.text)
    assert [(one.field, one.text) for one in found.upto(11).contents[:3]] == [
        ("text", "fl"),
        ("text.english", "fl"),
        ("title", "Wing tip"),
    ]
    assert [one.field for one in found.upto(4).contents] == ["title", "contents", "other"]


def test_a_missing_field_takes_no_place() -> None:
    found = lay_out({"text": "flow"}, ("title", "text"), ("title", "text"))
    assert found.contents == (Content("text", "text", 0, "flow"),)
    assert lay_out({}, ("title",), ("title", "contents")) == ("", ())


def test_a_row_is_the_mean_of_the_states_that_its_occurrences_overlap() -> None:
    sums, texts = StateSums(24), ["wing tip vortex", "the wing tip", "no more"]
    words = [
        [Occurrence("wingtip", 0, 8), Occurrence("rest", 9, 15)],
        [Occurrence("wingtip", 4, 12), Occurrence("behind", 50, 60)],
        [Occurrence("behind", 70, 80), Occurrence("rest", 0, 2)],
    ]
    readings = [read(text) for text in texts]
    for reading, found in zip(readings, words, strict=True):
        sums.add(reading, found)
    table = sums.table("e", {"documents": 3})
    first = unit_length(readings[0].states[:2].mean(axis=0, keepdims=True))
    second = unit_length(readings[1].states[1:3].mean(axis=0, keepdims=True))
    assert table.terms == ("rest", "wingtip"), "what lies behind the last token has no state"
    np.testing.assert_allclose(table.rows[1], unit_length(first + second)[0], atol=1e-3)


def test_terms_of_most_documents_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["flow wing", "flow wing", "flow rare", "rare flow once once"]
    sums = StateSums(24)
    for text in texts:
        sums.add(read(text), [Occurrence(text[slice(*span)], *span) for span in read(text).spans])
    assert sums.table("e", {}).terms == ("flow", "rare", "wing", "once")
    monkeypatch.setattr(fitting, "MAX_TERMS", 3)
    assert sums.table("e", {}).terms == ("flow", "rare", "wing")
    monkeypatch.setattr(fitting, "TABLE_BYTES", 2 * (48 + 8))
    assert sums.table("e", {}).terms == ("flow", "rare")
    monkeypatch.setattr(fitting, "TABLE_BYTES", 10)
    with pytest.raises(DataError, match="no word of the sampled documents"):
        sums.table("e", {})


def test_an_analyser_that_makes_endless_terms_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "COLLECTED", 3)
    sums = StateSums(24)
    for _ in range(2):
        sums.add(read("a c d e f"), [Occurrence("acdef"[at], 2 * at, 2 * at + 1) for at in range(5)])
    assert set(sums.table("e", {}).terms) == {"a", "c", "d"}


def test_terms_that_occur_once_have_the_usual_cosine() -> None:
    sums = StateSums(24)
    sums.add(read("flow wing"), [Occurrence("flow", 0, 4), Occurrence("wing", 5, 9)])
    assert sums.table("e", {}).own_cosine == fitting.USUAL_OWN_COSINE


@pytest.mark.parametrize("width", [384, 1024])
def test_the_largest_table_is_below_ten_megabytes(width: int) -> None:
    sums, terms = StateSums(width), [f"機翼機翼機翼機翼{number}" for number in range(60_000)]
    sums.rows = {term: row for row, term in enumerate(terms)}
    sums.sums += 1
    sums.documents += 2
    sums.occurrences += 2
    sums.tokens = 1
    table = sums.table("e", {"documents": 1})
    assert len(table.packed()) < 10_000_000
    assert len(table.terms) == fitting.MAX_TERMS or len(table.packed()) > 9_000_000


@pytest.mark.parametrize("count", [2, 5, 40])
def test_the_cosine_with_others_is_that_of_each_with_the_rest(count: int) -> None:
    states = np.random.default_rng(count).normal(1, 1, size=(count, 24))
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    total = states.sum(axis=0)
    others = [total - one for one in states]
    plain = np.mean([one @ rest / np.linalg.norm(rest) for one, rest in zip(states, others, strict=True)])
    found = fitting.cosines_with_others(np.float32(total[None]), np.array([count]))
    assert found[0] == pytest.approx(plain, abs=0.01)
    alike = np.float32([[0.1, 0.3, 0.7]]) * np.float32(count / np.sqrt(0.59))
    assert 0.999 < fitting.cosines_with_others(alike, np.array([count]))[0] <= 1


def test_texts_without_tokens_or_words_add_nothing() -> None:
    sums = StateSums(24)
    sums.add(read(""), [])
    sums.add(read("🚀"), [])
    sums.add(read(""), [Occurrence("x", 0, 0)])
    with pytest.raises(DataError, match="no word"):
        sums.table("e", {})


def test_what_is_analysed_ends_behind_the_last_token() -> None:
    assert fitting.analysed_length(read("wing tip")) == 8 + fitting.BEHIND_LIMIT
    assert fitting.analysed_length(read("")) == fitting.BEHIND_LIMIT


def test_obstacles_are_named() -> None:
    class Blind:
        similarity = "cosine"

    assert table_obstacle(None, HashingEncoder()) == table_obstacle(None, ProductEncoder()) == ""
    assert "the states of tokens" in table_obstacle(None, Blind())  # type: ignore[arg-type]
    assert "each passage" in table_obstacle(Windows(100, 10, 5), HashingEncoder())
