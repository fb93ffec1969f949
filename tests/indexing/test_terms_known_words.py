"""Texts of known words are analysed without a request, as the cluster would."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.indexing.terms.terms import KnownWords, word_spans


def vectors(*tokens: tuple[str, int, int, int], documents: int = 7, held: int = 2) -> dict[str, Any]:
    """Term vectors of tokens, each a term, its position, start and end."""
    terms: dict[str, Any] = {}
    for term, position, start, end in tokens:
        entry = terms.setdefault(term, {"doc_freq": held, "tokens": []})
        entry["tokens"].append({"position": position, "start_offset": start, "end_offset": end})
    return {"text": {"field_statistics": {"doc_count": documents}, "terms": terms}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Heated wings, (the) flow?", ["Heated", "wings", "the", "flow"]),
        ("it's 3.5 or 1,000: x86-64", ["it's", "3.5", "or", "1,000", "x86", "64"]),
        ("naïve Äpfel - привет λόγος", ["naïve", "Äpfel", "привет", "λόγος"]),
        ("", []),
        ("  ?!  ", []),
    ],
)
def test_words_are_those_of_the_standard_tokenizer(text: str, words: list[str]) -> None:
    spans = word_spans(text)
    assert [span.word for span in spans] == words
    assert [text[span.start : span.end] for span in spans] == words


@pytest.mark.parametrize(
    "text",
    [
        "e.g wing",
        "a_b",
        "x3.5",
        "3.5mm",
        "a:b",
        "北京 wing",
        "wing 😀",
        "e\u0301t",
        "1960's",
        "#wing",
        "w" * 101,
    ],
)
def test_what_a_tokenizer_may_read_otherwise_is_left_to_the_cluster(text: str) -> None:
    assert word_spans(text) is None


def test_a_new_text_of_known_words_needs_no_request() -> None:
    known = KnownWords(100, usable=True)
    assert known.vectors_of("flow wings") is None
    shards = [vectors(("wing", 1, 4, 9), ("flow", 2, 10, 14))] * 2
    known.learn("the wings flow", shards)
    assert known.vectors_of("flow wings of") is None
    assert known.vectors_of("flow, the wings: wings") == {
        "text": {
            "field_statistics": {"doc_count": 14},
            "terms": {
                "flow": {"doc_freq": 4, "tokens": [{"position": 0, "start_offset": 0, "end_offset": 4}]},
                "wing": {
                    "doc_freq": 4,
                    "tokens": [
                        {"position": 2, "start_offset": 10, "end_offset": 15},
                        {"position": 3, "start_offset": 17, "end_offset": 22},
                    ],
                },
            },
        }
    }
    assert known.vectors_of("the") == {}, "a stop word"
    known.clear()
    assert known.vectors_of("the") is None


@pytest.mark.parametrize(
    "tokens",
    [[("heat wing", 0, 0, 9)], [("heat", 0, 0, 4), ("h", 0, 0, 4)], [("heat", 1, 0, 4)], [("wing", 5, 5, 9)]],
)
def test_an_answer_that_shows_more_than_words_ends_it(tokens: list[tuple[str, int, int, int]]) -> None:
    known = KnownWords(100, usable=True)
    known.learn("flow", [vectors(("flow", 0, 0, 4))])
    assert known.vectors_of("flow")
    known.learn("heat wing", [vectors(*tokens)])
    assert known.vectors_of("flow") is None
    known.learn("flow", [vectors(("flow", 0, 0, 4))])
    assert known.vectors_of("flow") is None


def test_nothing_is_learnt_of_fields_that_read_words_together() -> None:
    known = KnownWords(100, usable=False)
    known.learn("flow", [vectors(("flow", 0, 0, 4))])
    assert known.vectors_of("flow") is None


def test_what_is_known_is_bounded() -> None:
    known = KnownWords(2, usable=True)
    for word in ("flow", "wing", "heat"):
        known.learn(word, [vectors((word, 0, 0, 4))])
    assert known.vectors_of("flow") is None
    assert known.vectors_of("wing heat")


def test_only_unknown_words_are_left_to_ask_each_once() -> None:
    known = KnownWords(100, usable=True)
    known.learn("flow", [vectors(("flow", 0, 0, 4))])
    assert known.unknown_in(["flow of wings, of air", "wings e.g", "air over wings"]) == ["of wings air over"]
    assert known.unknown_in(["flow", "flow e.g"]) == []
    words = [f"word{number}" for number in range(300)]
    texts = known.unknown_in([" ".join(words[:100]), " ".join(words[100:200]), " ".join(words[200:])])
    assert " ".join(texts).split() == words
    assert all(word_spans(text) is not None for text in texts)
    known.usable = False
    assert known.unknown_in(["other words"]) == []
