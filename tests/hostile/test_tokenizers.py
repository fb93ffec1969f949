"""Tokenizers that take minutes or all memory for a text, or fail at one: each is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridr.encoders.opening import load_encoder
from hybridr.encoders.tokens import USUAL_PATTERNS
from hybridr.errors import ModelError
from hybridr.training.torch_models import read_retriever
from support import hostile

WORDS = {"type": "WordPiece", "unk_token": "a", "continuing_subword_prefix": "##", "vocab": {"a": 0}}
PAIRS = "(?:a|a|.){10}(?!.)(?=.)"  # seconds for a thousand letters, seen


@pytest.mark.attack(59)
def test_a_tokenizer_that_blows_texts_up_is_refused(encoder: Path, tmp_path: Path) -> None:
    folder = hostile.model(encoder, tmp_path / "model")
    swelling = hostile.swelling_tokenizer((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(swelling)
    with pytest.raises(ModelError, match="makes texts up to 1,000,000 times longer; at most 64"):
        read_retriever(folder)
    own = hostile.with_tokenizer(encoder, tmp_path / "encoder", **json.loads(swelling))
    with pytest.raises(ModelError, match="makes texts up to 1,000,000 times longer"):
        load_encoder(own)


@pytest.mark.attack(59)
@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"pre_tokenizer": hostile.splitting(r".*.*\B[^ab]")}, r"pattern '\.\*\.\*.* may take minutes"),
        ({"pre_tokenizer": hostile.splitting(PAIRS)}, "may take minutes"),
        ({"pre_tokenizer": hostile.splitting("a{1000}{1000}")}, "may take minutes"),
        ({"pre_tokenizer": hostile.splitting("a{99999}")}, "may take minutes"),
        ({"pre_tokenizer": hostile.splitting(*["a+"] * 5)}, "over 4 in all"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": PAIRS}, "content": ""}}, "may take minutes"),
        ({"normalizer": hostile.swelling_charsmap()}, "makes texts up to 256 times longer"),
        ({"post_processor": hostile.framing(1_000_000)}, "adds 1,000,000 tokens to each text"),
        ({"post_processor": {"type": "TemplateProcessing", "single": 5}}, "broken template"),
        ({"model": WORDS | {"max_input_chars_per_word": 10**9}}, "splits words of 1,000,000,000 letters"),
    ],
)
def test_a_tokenizer_that_takes_minutes_or_all_memory_is_refused(parts, words, encoder, tmp_path):
    with pytest.raises(ModelError, match=words):
        load_encoder(hostile.with_tokenizer(encoder, tmp_path / "encoder", **parts))


@pytest.mark.parametrize("pattern", [" {2,}", r"\s+", r"\d{1,3}|\p{L}+", r"\(", *sorted(USUAL_PATTERNS)])
def test_patterns_of_real_tokenizers_are_taken(pattern: str, encoder: Path, tmp_path: Path) -> None:
    steps = hostile.splitting(pattern)
    folder = hostile.with_tokenizer(encoder, tmp_path / "encoder", pre_tokenizer=steps)
    assert load_encoder(folder).encode_queries(["two  words"]).shape == (1, 32)


@pytest.mark.attack(59)
@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"pre_tokenizer": {"type": "FixedLength", "length": 0}}, "chunk size must be non-zero"),
        ({"model": WORDS | {"unk_token": "none", "max_input_chars_per_word": 9}}, "Missing .* token"),
    ],
)
def test_a_tokenizer_that_fails_at_a_text_is_named(parts, words, encoder, tmp_path):
    opened = load_encoder(hostile.with_tokenizer(encoder, tmp_path / "encoder", **parts))
    with pytest.raises(ModelError, match=f"the tokenizer fails: .*{words}"):
        opened.encode_queries(["zebra"])
