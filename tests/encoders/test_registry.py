"""Encoders by language: what the registry says, and what folders say of themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hybridr.encoders.registry import (
    ENCODERS,
    MAX_TOKENS,
    PACKAGED,
    declared_languages,
    encoder_languages,
    known_encoder,
    languages_by_fingerprint,
    suggested_encoders,
)
from hybridr.errors import ModelError
from hybridr.indexing.preflight import check_language
from hybridr_cli import main

GERMAN = "Der Motor des alten Bootes war laut, und wir konnten nicht hören, was der Kapitän sagte."
ENGLISH = "The engine of the old boat was loud, and we could not hear what the captain said to us."


def test_names_are_found_by_name_and_repository() -> None:
    assert known_encoder("multilingual-e5-small") is known_encoder("intfloat/multilingual-e5-small")
    assert known_encoder("all-mpnet-base-v2") is None
    assert len({one.name for one in ENCODERS}) == len(ENCODERS)
    assert known_encoder(PACKAGED).max_tokens == MAX_TOKENS
    assert "bge-small-zh-v1.5 or bge-base-zh-v1.5," in suggested_encoders("zh")  # its own before those of all
    assert "multilingual-e5-small or paraphrase-multilingual" in suggested_encoders("de")


def test_every_way_to_say_languages_is_read(tmp_path: Path) -> None:
    assert encoder_languages({"languages": ["fr"], "base": PACKAGED}) == ("fr",)
    assert encoder_languages({"base": PACKAGED}) == ("en",)
    assert encoder_languages({"base": "ours"}) == declared_languages(None) == ()
    ours = tmp_path / "ours"
    cached = tmp_path / "models--intfloat--multilingual-e5-small" / "snapshots" / "0a1b"
    for folder in (ours, cached):
        folder.mkdir(parents=True)
    assert declared_languages(cached) == ("multilingual",)
    for head, languages in (
        ("language: zh", ("zh",)),
        ("language:\n- de\n- en\nlicense: mit", ("de", "en")),
        ("language: [en, fr]", ("en", "fr")),
        ("language:\n- multilingual\n- af", ("multilingual",)),
        ("license: mit", ()),
    ):
        (ours / "README.md").write_text(f"---\n{head}\n---\nlanguage: la\n")
        assert declared_languages(ours) == languages


@pytest.mark.model
def test_the_packaged_encoder_is_known_by_its_fingerprint(minilm_encoder_folder: Path) -> None:
    record = json.loads((minilm_encoder_folder / "manifest.json").read_text())["encoder"]
    assert languages_by_fingerprint(record["fingerprint"], None) == ("en",)
    assert languages_by_fingerprint("0" * 64, None) == ()


def test_a_foreign_language_is_refused_unless_forced_and_doubt_is_not() -> None:
    with pytest.raises(
        ModelError, match="100% of the texts of 'docs' .* most in 'de'; it knows en"
    ) as caught:
        check_language([GERMAN] * 3, ("en",), "docs", force=False)
    assert "multilingual-e5-small" in str(caught.value.hint)
    assert "does not know" in check_language([GERMAN] * 3, ("en",), "docs", force=True)
    half = [GERMAN, ENGLISH]
    for texts, languages in ((half, ("en",)), ([GERMAN], ()), ([GERMAN], ("multilingual",)), ([], ("en",))):
        assert check_language(texts, languages, "docs", force=False) == ""


def test_models_lists_encoders_and_published_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    fields = {"name", "licence", "dim", "query", "pooling", "similarity", "max_tokens"}
    assert fields <= listed["encoders"][0].keys()
    assert len(listed["models"]) == 56
    assert listed["models"][0]["repository"].startswith("jingtao/DAM-")
    assert main(["models"]) == 0
    shown = capsys.readouterr().out
    assert all(entry["name"] in shown for entry in listed["encoders"] + listed["models"])
