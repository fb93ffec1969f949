from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridr.records import Document
from hybridr.training.objectives.span import (
    LEAST_SPAN,
    SpanCorpus,
    SpanSettings,
    attach_low_rank,
    draw_spans,
    fold_in,
    low_rank_weights,
    recipe_of,
    span_loss,
)
from support.tiny import tiny_corpus, tiny_retriever


def test_full_strength_is_peft_and_none_is_the_base() -> None:
    retriever = tiny_retriever()
    adapted = attach_low_rank(retriever, 4, seed=1)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in low_rank_weights(adapted).values():
            weight.copy_(torch.randn(weight.shape, generator=random))
    texts = [document.text for document in tiny_corpus(20)]
    np.testing.assert_allclose(
        fold_in(adapted, 1.0).encode_documents(texts), adapted.encode_documents(texts), atol=1e-5
    )
    np.testing.assert_array_equal(
        fold_in(adapted, 0.0).encode_documents(texts), retriever.encode_documents(texts)
    )
    apart = [
        np.abs(fold_in(adapted, s).encode_documents(texts) - retriever.encode_documents(texts)).mean()
        for s in (0.1, 0.3, 1.0)
    ]
    assert apart == sorted(apart)


def test_a_fresh_adapter_changes_nothing_and_comes_from_its_seed() -> None:
    retriever = tiny_retriever()
    first, again, other = (low_rank_weights(attach_low_rank(retriever, 4, seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)
    texts = [document.text for document in tiny_corpus(5)]
    np.testing.assert_array_equal(
        attach_low_rank(retriever, 4, 1).encode_documents(texts), retriever.encode_documents(texts)
    )


def test_the_span_loss_by_hand() -> None:
    vectors = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])  # a1 b1 a2 b2
    expected = -np.log(np.exp(2) / (np.exp(2) + 1))  # cosines 1 and 0, temperature 0.5
    assert span_loss(vectors, 0.5).item() == pytest.approx(expected, abs=1e-6)
    assert span_loss(vectors.flip(0), 0.5).item() == pytest.approx(expected, abs=1e-6)
    crossed = span_loss(vectors[[0, 3, 2, 1]], 0.5).item()
    assert crossed == pytest.approx(-np.log(1 / (np.exp(2) + 1)), abs=1e-6)


def test_spans_are_disjoint_and_within_bounds() -> None:
    ids = np.arange(50, dtype=np.int32)
    for seed in range(200):
        left, right = draw_spans(ids, 20, np.random.default_rng(seed))
        assert not set(left) & set(right)
        assert LEAST_SPAN <= len(left) <= 20
        assert LEAST_SPAN <= len(right) <= 20
        assert (np.diff(left) == 1).all()
    left, right = draw_spans(ids[: 2 * LEAST_SPAN], 20, np.random.default_rng(0))
    assert sorted([*left, *right]) == list(range(2 * LEAST_SPAN))


def test_short_documents_are_not_trained_on_and_prefixes_are_kept() -> None:
    retriever = tiny_retriever(document="balan ")
    corpus = SpanCorpus([Document("a", "kolan " * 15), Document("b", "kolan misot " * 8)], retriever)
    assert len(corpus) == 1
    (row, _) = corpus.pairs([0], 20, np.random.default_rng(0))
    (balan,) = {list(retriever.tokenizer.ids(["balan"], None))[0][1]}
    assert row[:2] == [2, balan]
    assert row[-1] == 3


def test_the_learning_rate_rises_and_falls() -> None:
    recipe = recipe_of(SpanSettings(steps=20, learning_rate=0.5))
    assert [recipe.rate(step) for step in (1, 2, 3, 20)] == pytest.approx([0.25, 0.5, 9 / 19, 0.5 / 19])
