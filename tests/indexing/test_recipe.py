"""How cosines of an index lie, measured on its own texts when its vectors are planned."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.encoders.derived import Whitening
from hybridr.encoders.export import exporting
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.encoders.opening import load_encoder
from hybridr.errors import DownloadError
from hybridr.indexing.recipe import MIN_TEXTS, QUERY_WORDS, TextRecipe
from hybridr.indexing.settings import ReindexSettings
from hybridr.languages import middle_words
from support.corpus import text_number
from support.hashing import HashingEncoder

TEXTS = [text_number(number) for number in range(60)]


def recipe(encoder: HashingEncoder, **options: object) -> TextRecipe:
    return TextRecipe(encoder, ReindexSettings(**options), ("text",))


def test_the_answer_of_a_query_does_not_count() -> None:
    encoder = HashingEncoder(dim=32)
    queries = encoder.encode_queries([middle_words(text, QUERY_WORDS) for text in TEXTS])
    cosines = queries @ encoder.encode_documents(TEXTS).T
    others = [np.delete(row, number) for number, row in enumerate(cosines)]
    measured = recipe(encoder).cosines([*TEXTS, TEXTS[0], " "])
    assert measured.spread == pytest.approx(np.mean([row.std() for row in others]), abs=1e-5)
    assert measured.mean == pytest.approx(np.mean(others), abs=1e-5)


def test_passages_count_by_the_best_of_their_text() -> None:
    encoder = HashingEncoder(dim=32)
    texts = [" ".join(TEXTS[first : first + 3]) for first in range(0, 60, 1)]
    plain = recipe(encoder, max_tokens=16).cosines(texts)
    parted = recipe(encoder, passages=True, max_tokens=16, passage_overlap=4).cosines(texts)
    assert parted.mean > plain.mean


def test_inner_products_are_taken_as_the_engine_scores_them() -> None:
    class Long(HashingEncoder):
        similarity = "ip"

        def encode_documents(self, texts, *, max_tokens=None):  # type: ignore[no-untyped-def]
            return 5 * super().encode_documents(texts, max_tokens=max_tokens)

    long, cosine = recipe(Long(dim=32)).cosines(TEXTS), recipe(HashingEncoder(dim=32)).cosines(TEXTS)
    assert long.spread > 5 * cosine.spread


def test_the_packaged_encoder_measures_the_same_texts_if_it_knows_their_language() -> None:
    measured = recipe(HashingEncoder(dim=32)).cosines(TEXTS)
    packaged = load_encoder(minilm_encoder())
    queries = packaged.encode_queries([middle_words(text, QUERY_WORDS) for text in TEXTS])
    cosines = queries @ packaged.encode_documents(TEXTS).T
    others = [np.delete(row, number) for number, row in enumerate(cosines)]
    assert measured.packaged == pytest.approx(np.mean([row.std() for row in others]), abs=1e-4)
    assert measured.whitened.packaged == measured.packaged
    chinese = [f"第{number}章：城市图书馆的开放时间和借书规则" for number in range(MIN_TEXTS)]
    assert recipe(HashingEncoder(dim=32)).cosines(chinese).packaged is None


def test_without_the_packaged_encoder_cosines_are_measured_all_the_same(monkeypatch) -> None:
    def unreachable(**_: object) -> None:
        raise DownloadError("no network")

    monkeypatch.setattr(exporting, "minilm_encoder", unreachable)
    steps: list[tuple[object, ...]] = []
    measured = recipe(HashingEncoder(dim=32)).cosines(TEXTS, lambda *step: steps.append(step))
    assert measured.packaged is None
    assert measured.spread > 0
    assert steps == [("cosines are scaled without MiniLM", 1, 1, "no network")]


def test_too_few_texts_measure_nothing() -> None:
    assert recipe(HashingEncoder(dim=32)).cosines(TEXTS[: MIN_TEXTS - 1]) is None
    assert recipe(HashingEncoder(dim=32)).cosines([TEXTS[0]] * MIN_TEXTS) is None


def test_vectors_that_differ_by_rounding_alone_have_no_spread() -> None:
    class Alike(HashingEncoder):
        def _vector(self, text: str) -> np.ndarray:
            return np.ones(32) / 32**0.5 + 1e-7 * super()._vector(text)

    assert recipe(Alike(dim=32)).cosines(TEXTS) is None


def test_cosines_are_measured_again_with_queries_that_are_whitened() -> None:
    encoder = HashingEncoder(dim=32)
    measured = recipe(encoder).cosines(TEXTS)
    whitening = Whitening.from_text(measured.whitened.directions, 32)
    queries = encoder.encode_queries([middle_words(text, QUERY_WORDS) for text in TEXTS])
    cosines = whitening.apply(queries) @ encoder.encode_documents(TEXTS).T
    others = [np.delete(row, number) for number, row in enumerate(cosines)]
    assert measured.whitened.spread == pytest.approx(np.mean([row.std() for row in others]), abs=1e-4)
    assert measured.whitened.mean == pytest.approx(np.mean(others), abs=1e-4)


def test_inner_products_are_not_whitened() -> None:
    class Products(HashingEncoder):
        similarity = "ip"

    assert recipe(Products(dim=32)).cosines(TEXTS).whitened is None
