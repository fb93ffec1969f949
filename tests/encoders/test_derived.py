"""Bits of token states: what is packed, how all of a document is read, and late interaction over them."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.encoders.derived import (
    MAX_QUERY_TOKENS,
    MAX_TOKENS,
    agreement,
    bytes_per_token,
    heaviest_tokens,
    mean_as_text,
    mean_from_text,
    mean_state,
    pack_bits,
)
from support.bits import late_interaction, read_bits
from support.hashing import HashingEncoder


def states_of(count: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def signs(states: np.ndarray, mean: np.ndarray) -> np.ndarray:
    return np.where(states > mean, 1.0, -1.0) / np.sqrt(states.shape[1])


@pytest.mark.parametrize(("width", "size"), [(1, 8), (24, 8), (64, 8), (65, 16), (384, 48), (768, 96)])
def test_a_token_takes_whole_longs(width: int, size: int) -> None:
    bits = pack_bits(states_of(3, width), np.zeros(width, dtype=np.float32))
    assert (bytes_per_token(width), bits.shape) == (size, (3, size))


@pytest.mark.parametrize("width", [24, 384])
def test_late_interaction_is_that_of_vectors_of_signs(width: int) -> None:
    mean = states_of(1, width, seed=1)[0] / 3
    query, document = states_of(5, width, seed=2), states_of(40, width, seed=3)
    document[7] = query[1]
    weights = np.array([0.1, 0.4, 0.2, 0.2, 0.1], dtype=np.float32)
    expected = weights @ (signs(query, mean) @ signs(document, mean).T).max(axis=1)
    found = late_interaction(pack_bits(query, mean), weights, pack_bits(document, mean), width)
    assert found == pytest.approx(expected, abs=1e-6)
    assert late_interaction(pack_bits(query, mean), weights, pack_bits(query, mean), width) == pytest.approx(
        1.0
    )


def test_a_document_without_tokens_and_one_of_opposites_score_nothing() -> None:
    mean, query = np.zeros(24, dtype=np.float32), states_of(2, 24)
    weights = np.array([0.5, 0.5], dtype=np.float32)
    bits = pack_bits(query, mean)
    assert late_interaction(bits, weights, bits[:0], 24) == 0.0
    assert late_interaction(bits[:1], weights[:1] * 2, pack_bits(-query[:1], mean), 24) == 0.0


def test_an_index_keeps_the_mean_of_all_tokens() -> None:
    one, two = states_of(10, 384), states_of(30, 384, seed=1)
    mean = mean_state([one, two], 384)
    np.testing.assert_allclose(mean, np.concatenate([one, two]).mean(axis=0), atol=2e-3)
    np.testing.assert_array_equal(mean_from_text(mean_as_text(mean)), mean)
    assert len(mean_as_text(mean)) == 1024
    np.testing.assert_array_equal(mean_state([], 24), np.zeros(24))


def test_a_long_document_is_read_to_its_end() -> None:
    encoder = HashingEncoder()
    texts = [" ".join(f"w{number}" for number in range(count)) for count in (1, 254, 255, 700)] + ["", "?!"]
    mean = np.zeros(encoder.width, dtype=np.float32)
    vectors, bits = read_bits(encoder, texts, mean)
    np.testing.assert_array_equal(vectors, encoder.encode_documents(texts))
    assert [len(one) for one in bits] == [1, 254, 255, 700, 0, 2]
    words = encoder.read_documents([f"w{number}" for number in range(700)])
    np.testing.assert_array_equal(bits[3], pack_bits(np.concatenate([one.states for one in words]), mean))
    np.testing.assert_array_equal(read_bits(encoder, texts, mean, max_tokens=16)[1][3], bits[3])


def test_no_document_has_more_than_the_most_tokens() -> None:
    encoder = HashingEncoder()
    [bits] = read_bits(encoder, ["a " * (MAX_TOKENS + 300)], np.zeros(encoder.width, dtype=np.float32))[1]
    assert len(bits) == MAX_TOKENS


def test_the_heaviest_tokens_of_a_query_are_kept_in_order() -> None:
    bits = np.arange(3, dtype=np.uint8)[:, None]
    kept, weights = heaviest_tokens(bits, np.array([1.0, 0.0, 3.0]))
    assert (kept[:, 0].tolist(), weights.tolist()) == ([0, 2], [0.25, 0.75])
    many = np.arange(200, dtype=np.uint8)[:, None]
    kept, weights = heaviest_tokens(many, np.arange(200, dtype=np.float32))
    assert kept[:, 0].tolist() == list(range(200 - MAX_QUERY_TOKENS, 200))
    assert weights.sum() == pytest.approx(1.0)
    assert len(heaviest_tokens(many, np.zeros(200))[1]) == 0


def test_states_kept_in_half_precision_have_the_same_bits() -> None:
    mean = mean_from_text(mean_as_text(np.linspace(-2, 2, 64, dtype=np.float32)))
    just_above = np.nextafter(mean, np.float32(9))[None]
    states = np.concatenate([states_of(200, 64), just_above, mean[None]])
    kept = states.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(pack_bits(states, mean), pack_bits(kept, mean))


def test_agreement_counts_equal_bits() -> None:
    bits = pack_bits(states_of(4, 64), np.zeros(64, dtype=np.float32))
    other = bits.copy()
    other[0, 0] ^= 0b101
    assert agreement(bits, bits.tobytes()) == 1.0
    assert agreement(bits, other.tobytes()) == pytest.approx(1 - 2 / 256)
    assert agreement(bits[:0], b"") == 1.0
