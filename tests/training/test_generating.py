"""Queries by a sequence-to-sequence model: here a T5 of random weights, made in the test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridr.errors import ModelError
from hybridr.records import silent
from hybridr.training.generating import QUERIES_A_TEXT, TEXTS_AT_ONCE, QueryWriter
from support.tiny import tiny_corpus, tiny_t5

TEXTS = [one.contents for one in tiny_corpus(2 * TEXTS_AT_ONCE + 3)]


def test_a_killed_run_writes_the_same_queries(tmp_path: Path) -> None:
    generator, part = QueryWriter(tiny_t5(tmp_path / "t5")), tmp_path / "part.jsonl"
    written = generator.queries(TEXTS, part, 7, silent)
    assert len(written) == len(TEXTS)
    assert any(written)
    assert all(len({*row}) == len(row) <= QUERIES_A_TEXT for row in written)
    whole = part.read_text()
    part.write_text("".join(whole.splitlines(keepends=True)[: TEXTS_AT_ONCE + 2]) + '["half of')
    assert generator.queries(TEXTS, part, 7, silent) == written
    assert part.read_text() == whole
    assert QueryWriter(tmp_path / "t5").queries(TEXTS, tmp_path / "other.jsonl", 8, silent) != written
    assert QueryWriter(tmp_path / "t5").fingerprint == generator.fingerprint


def test_what_writes_no_queries_is_told(tmp_path: Path, dam: Path) -> None:
    with pytest.raises(ModelError, match="cannot be opened"):
        QueryWriter(dam)
    folder = tiny_t5(tmp_path / "t5")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError):
        QueryWriter(folder)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "config.json").write_text(json.dumps({}))
    with pytest.raises(ModelError):
        QueryWriter(tmp_path / "none")
