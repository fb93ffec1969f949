"""Two retrievers as one: the graph computes what the two give, and what cannot be joined is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridr import load_encoder
from hybridr.encoders.export.exporting import export
from hybridr.encoders.export.weights import (
    EnsembleBiEncoder,
    NumpyBiEncoder,
    fit_ensemble,
    open_without_torch,
)
from hybridr.errors import ModelError
from hybridr.files.local import read_manifest
from support.tiny import tiny_corpus, tiny_retriever

TEXTS = [" ".join(document.contents.split()[:20]) for document in tiny_corpus(40, seed=4)]
PREFIX = {"query": "balan ", "document": "kosor "}  # a token each


def numpy_retriever(folder: Path, **how: str | int) -> NumpyBiEncoder:
    export(tiny_retriever(**how), folder)  # type: ignore[arg-type]
    return open_without_torch(folder)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[NumpyBiEncoder, NumpyBiEncoder]:
    folder = tmp_path_factory.mktemp("two")
    return numpy_retriever(folder / "one"), numpy_retriever(folder / "other", seed=5, pooling="cls", **PREFIX)


@pytest.fixture(scope="module")
def joined(two: tuple[NumpyBiEncoder, NumpyBiEncoder]) -> EnsembleBiEncoder:
    first, second = two
    return fit_ensemble(*two, (first.encode_documents(TEXTS), second.encode_documents(TEXTS)), 0.3, 24)


def test_a_vector_is_what_the_two_give_weighted_centred_and_projected(two, joined):
    one, other = (retriever.encode_documents(TEXTS) for retriever in two)
    centred = other - other.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    both = np.hstack([np.sqrt(0.7) * one, np.sqrt(0.3) * centred])
    _, _, directions = np.linalg.svd(both)
    expected = both @ directions[:24].T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = joined.encode_documents(TEXTS)
    assert found.shape == (40, 24)
    assert np.allclose(found @ found.T, expected @ expected.T, atol=1e-4)  # components have no sign


def test_the_exported_graph_gives_the_same_vectors_and_the_firsts_states(tmp_path, two, joined):
    encoder = load_encoder(export(joined, tmp_path / "encoder", precision="int8"), precision="fp32")
    assert (encoder.dim, encoder.width, encoder.max_tokens) == (24, 32, 64)
    assert encoder.fingerprint == joined.fingerprint
    for texts in (TEXTS, ["", "bal", "bal " * 200]):  # a prefix alone, and more than is read
        assert np.allclose(encoder.encode_documents(texts), joined.encode_documents(texts), atol=1e-4)
        assert np.allclose(encoder.encode_queries(texts), joined.encode_queries(texts), atol=1e-4)
    alone, found = two[0].read_queries(TEXTS[:3]), encoder.read_queries(TEXTS[:3])
    assert [one.spans for one in alone] == [one.spans for one in found]
    assert all(
        np.allclose(one.states, other.states, atol=1e-4) for one, other in zip(alone, found, strict=True)
    )
    manifest = read_manifest(tmp_path / "encoder") or {}
    assert manifest["encoder"]["graph_only"]
    assert manifest["encoder"]["base"] == "one + other"
    assert "two retrievers" in (tmp_path / "encoder" / "README.md").read_text(encoding="utf-8")


def test_a_second_one_that_wants_a_prefix_before_queries_alone_is_joined_without_it(tmp_path: Path) -> None:
    one, other = numpy_retriever(tmp_path / "one"), numpy_retriever(tmp_path / "other", seed=5)
    asking = numpy_retriever(tmp_path / "asking", seed=5, query="balan ")
    vectors = one.encode_documents(TEXTS), other.encode_documents(TEXTS)
    assert np.allclose(asking.encode_documents(TEXTS), vectors[1])
    assert not np.allclose(asking.encode_queries(TEXTS), vectors[1], atol=1e-3)
    plain, joined = (fit_ensemble(one, second, vectors, 0.3, 24) for second in (other, asking))
    assert joined.fingerprint == plain.fingerprint
    assert (joined.prefix_tokens, joined.base) == (0, "one + asking")
    encoder = load_encoder(export(joined, tmp_path / "encoder"))
    for texts in (TEXTS, ["", "bal " * 200]):
        expected = plain.encode_queries(texts)
        assert np.allclose(encoder.encode_queries(texts), expected, atol=1e-4)
        assert np.allclose(encoder.encode_documents(texts), expected, atol=1e-4)
    spans = [text.spans for text in one.read_queries(TEXTS[:3])]
    assert [text.spans for text in encoder.read_queries(TEXTS[:3])] == spans


def test_the_fingerprint_follows_both_and_the_fit(two, joined):
    first, second = two
    vectors = first.encode_documents(TEXTS), second.encode_documents(TEXTS)
    again, more = (fit_ensemble(first, second, vectors, share, 24) for share in (0.3, 0.31))
    assert again.fingerprint == joined.fingerprint != more.fingerprint
    assert len({first.fingerprint, second.fingerprint, joined.fingerprint, more.fingerprint}) == 4


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (PREFIX, {}, "one needs a prefix before texts"),
        ({"similarity": "ip"}, {}, "compares by inner product"),
        ({}, {"query": "balan ", "document": "balan balan "}, "prefixes of different length"),
    ],
)
def test_what_cannot_be_joined_is_refused(tmp_path, first, second, said):
    one, other = numpy_retriever(tmp_path / "one", **first), numpy_retriever(tmp_path / "other", **second)
    with pytest.raises(ModelError, match=said):
        EnsembleBiEncoder(one, other, np.zeros(32, np.float32), np.eye(64, dtype=np.float32))


def test_another_vocabulary_is_refused(tmp_path: Path, two: tuple[NumpyBiEncoder, NumpyBiEncoder]) -> None:
    other = numpy_retriever(tmp_path / "other")
    other.tokenizer_json = other.tokenizer_json.replace("balan", "xalan")
    with pytest.raises(ModelError, match="different vocabularies"):
        EnsembleBiEncoder(two[0], other, np.zeros(32, np.float32), np.eye(64, dtype=np.float32))
