"""The unpacked model in the cache: what it answers, also where it is damaged or cannot be kept."""

import functools
from pathlib import Path

import pytest
from py3langid.langid import MODEL_FILE, LanguageIdentifier

from hybridr import languages
from hybridr.languages import ARRAYS, MIN_CONFIDENCE, identifier

TEXTS = ["The old boat was very loud", "Der Motor des Bootes war laut", "旧船的发动机声音很大", "", "42"]


UNPACKED = functools.cache(languages.unpacked_model)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path))
    monkeypatch.setattr(languages, "unpacked_model", UNPACKED)  # which takes half a second
    identifier.cache_clear()
    return tmp_path


@pytest.fixture(scope="module")
def answers() -> list[tuple[str, float]]:
    whole = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True, min_confidence=MIN_CONFIDENCE)
    whole.set_languages([label for label in whole.labels if len(label) == 2])
    return [whole.classify(text) for text in TEXTS]


def test_the_second_process_reads_it_and_answers_the_same(cache: Path, answers: list[tuple[str, float]]):
    for _ in range(2):
        identifier.cache_clear()
        assert [identifier().classify(text) for text in TEXTS] == answers
    (folder,) = cache.iterdir()
    assert {path.stem for path in folder.iterdir()} == set(ARRAYS)


def test_a_damaged_file_is_written_anew(cache: Path, answers: list[tuple[str, float]]):
    identifier()
    (folder,) = cache.iterdir()
    for name in ARRAYS:
        path = folder / f"{name}.npy"
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        identifier.cache_clear()
        assert [identifier().classify(text) for text in TEXTS] == answers, name
        assert path.read_bytes() == whole, name


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch, answers):
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path / "file" / "below"))
    assert [identifier().classify(text) for text in TEXTS] == answers
