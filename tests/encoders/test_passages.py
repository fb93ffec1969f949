"""Splitting texts into passages: nothing is lost, everything fits, whatever the text is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hybridr import load_encoder
from hybridr.encoders.opening import OnnxEncoder
from hybridr.encoders.passages import Split, slices_by_passages, split
from hybridr.errors import ModelError
from hybridr.indexing.representations.passage_vectors import chosen_windows
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import Windows
from support.hashing import HashingEncoder
from support.waiting import within

WORDS = HashingEncoder()
CHINESE = "海上的风很大。船长看见了灯塔！我们要回到港口吗？天黑以前必须靠岸。"


@pytest.fixture(scope="module")
def minilm(minilm_encoder_folder: Path) -> OnnxEncoder:
    return load_encoder(minilm_encoder_folder)


def uncovered(text: str, encoder: OnnxEncoder | HashingEncoder, found: Split) -> list[str]:
    """Name the tokens that no passage holds."""
    tokens = encoder.token_spans(text, 10**9)
    return [text[a:b] for a, b, _ in tokens if not any(s <= a and b <= e for s, e in found.spans)]


def overlapping(encoder: OnnxEncoder, text: str, found: Split) -> list[int]:
    """Count the tokens that neighbours share."""
    pairs = zip(found.spans, found.spans[1:], strict=False)
    return [len(encoder.token_spans(text[a:b], 10**9)) for (_, b), (a, _) in pairs]


texts = st.text(st.sampled_from("abcde fgh ij.!? \t海上的。🌊é\u200d\u0301-_"), max_size=600)
odd = st.text(max_size=400).filter(lambda text: not any("\ud800" <= sign <= "\udfff" for sign in text))


@settings(max_examples=100, deadline=None)
@example(text="0000텐", tokens=6, overlap=0)
@given(text=st.one_of(texts, odd), tokens=st.integers(6, 40), overlap=st.integers(0, 2))
def test_every_token_is_in_a_passage_and_every_passage_fits(minilm, text, tokens, overlap):
    found = split(text, minilm, Windows(tokens, overlap, 5000))
    assert found.whole
    assert uncovered(text, minilm, found) == []
    assert all(0 <= start < end <= len(text) for start, end in found.spans)
    starts, ends = [start for start, _ in found.spans], [end for _, end in found.spans]
    assert (starts, ends) == (sorted(set(starts)), sorted(set(ends)))
    words = minilm.token_spans(text, 10**9)
    longest = max((sum(other[2] == word[2] for other in words) for word in words), default=0)
    if longest <= (tokens - 2) // 2:  # else windows begin inside a word, which is another text there
        assert all(count <= tokens for count in minilm.count_tokens([text[a:b] for a, b in found.spans]))


@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), max_size=200),
    tokens=st.integers(6, 40),
    overlap=st.integers(0, 2),
    most=st.integers(1, 9),
)
def test_windows_are_bounded_and_overlap_as_asked(lengths, tokens, overlap, most):
    text = " ".join("x" * length for length in lengths)
    found = split(text, WORDS, Windows(tokens, overlap, most))
    counts = [len(text[a:b].split()) for a, b in found.spans]
    assert len(counts) <= most
    assert all(count <= tokens - 2 for count in counts)
    if found.whole:
        assert sum(counts) == len(lengths) + overlap * max(0, len(counts) - 1)
    else:
        assert len(counts) == most
        assert found.spans[-1][1] < len(text)


def test_a_text_that_fits_is_one_passage(minilm: OnnxEncoder) -> None:
    assert split("a b c", WORDS, None) == Split(((0, 5),))
    assert split("", WORDS, None) == split("", WORDS, Windows(16, 2, 4)) == Split(())
    text = "The harbour of the town was full of boats."
    assert split(text, minilm, Windows(256, 32, 64)) == Split(((0, len(text)),))
    exactly = len(minilm.token_spans(text, 100)) + 2
    assert len(split(text, minilm, Windows(exactly, 0, 64)).spans) == 1
    assert len(split(text, minilm, Windows(exactly - 1, 0, 64)).spans) == 2


def test_passages_end_with_sentences(minilm: OnnxEncoder) -> None:
    text = " ".join(f"Boat number {number} left the harbour before the storm." for number in range(60))
    found = split(text, minilm, Windows(64, 8, 64))
    assert len(found.spans) > 5
    assert all(text[a:b].endswith("storm.") for a, b in found.spans)
    assert all(count >= 8 for count in overlapping(minilm, text, found))
    text = CHINESE * 80
    assert {text[b - 1] for _, b in split(text, minilm, Windows(64, 8, 500)).spans} <= set("。！？")


def test_passages_never_begin_or_end_inside_a_word(minilm: OnnxEncoder) -> None:
    text = "unbelievably incomprehensible counterrevolutionaries " * 200
    found = split(text, minilm, Windows(32, 5, 500))
    assert all(text[a - 1 : a] in ("", " ") and text[b : b + 1] in ("", " ") for a, b in found.spans)


@pytest.mark.parametrize(
    ("text", "whole"),
    [("x" * 1_000_000, True), ("anchor " * 150_000, False), ("海" * 1_000_000, False)],
    ids=["no blanks", "words", "chinese"],
)
def test_a_megabyte(minilm: OnnxEncoder, text: str, whole: bool) -> None:
    with within(60):
        found = split(text, minilm, Windows(256, 32, 64))
    assert (len(found.spans), found.whole) == (1 if whole else 64, whole)


def test_a_prefix_takes_its_room(minilm: OnnxEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    before = minilm.room("document", 64)
    usage = replace(minilm.usage, prefixes={"query": "", "document": "passage: "})
    monkeypatch.setattr(minilm, "usage", usage)
    assert (before, minilm.room("document", 64)) == (62, 60)
    text = "boats in the harbour " * 60
    parts = [text[a:b] for a, b in split(text, minilm, Windows(64, 8, 64)).spans]
    assert max(minilm.count_tokens(["passage: " + part for part in parts])) <= 64


@pytest.mark.parametrize("words", [62, 80], ids=["as long", "longer"])
def test_a_prefix_that_leaves_no_room_is_named(minilm, monkeypatch, words):
    prefixes = dict.fromkeys(["query", "document"], "boat " * words)
    monkeypatch.setattr(minilm, "usage", replace(minilm.usage, prefixes=prefixes, max_tokens=64))
    chosen = ReindexSettings(passages=True, passage_overlap=0)
    for attempt in (
        lambda: split("boats in the harbour " * 60, minilm, Windows(64, 0, 64)),
        lambda: chosen_windows(chosen, minilm),
        lambda: minilm.encode_queries(["boats"]),
        lambda: minilm.encode_documents(["boats"]),
        lambda: minilm.read_documents(["boats"]),
    ):
        with pytest.raises(ModelError, match="fills all 64 tokens"):
            attempt()
    assert minilm.room("document", 128) > 0


def test_groups_hold_every_document_once_and_few_passages() -> None:
    sizes = [3, 0, 9, 1, 1, 4, 0, 20, 2]
    splits = [Split(((0, 1),) * size) for size in sizes]
    groups = [sizes[group] for group in slices_by_passages(splits, 5)]
    assert sum(groups, []) == sizes
    assert groups == [[3, 0], [9], [1, 1], [4, 0], [20], [2]]
    assert [*slices_by_passages([])] == [slice(0, 0)]
