"""What every encoder promises."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.encoders.contract import Encoder, Offers, offers_of, reads_tokens
from hybridr.encoders.opening import OnnxEncoder
from hybridr.encoders.passages import split
from hybridr.errors import DataError, ModelError
from hybridr.records import Windows
from hybridr.search.calibration import cosine_scale
from support.hashing import HashingEncoder
from support.tiny import tiny_retriever


def test_max_tokens_counts_the_special_ones(encoder: OnnxEncoder) -> None:
    bare = "kolan misot tudur relan balan"  # the prefix is one more token
    cut = encoder.encode_documents([bare], max_tokens=5)  # [CLS] balan kolan misot [SEP]
    np.testing.assert_allclose(cut, encoder.encode_documents(["kolan misot"]), atol=1e-6)
    assert encoder.count_tokens([bare, ""]) == [7, 2]
    assert encoder.count_tokens([" ".join(["kolan"] * 100)]) == [102]  # uncut
    assert encoder.encode_documents([bare], max_tokens=128).shape == (1, 32)
    with pytest.raises(DataError, match=r"max_tokens 129 is outside 3\.\.128"):
        encoder.encode_documents([bare], max_tokens=129)


@pytest.mark.parametrize("texts", ["one string", ["a", None], [3], [["a", "b"]]])
def test_only_lists_of_strings_are_encoded_and_read(encoder: OnnxEncoder, texts: list[str]) -> None:
    for use in (encoder.encode_documents, encoder.read_queries):
        with pytest.raises(DataError, match="string"):
            use(texts)


class Plain:
    """Has what `Encoder` asks for, and nothing else."""

    dim, similarity, max_tokens, fingerprint = 16, "cosine", 256, "plain"
    encode_queries = encode_documents = HashingEncoder().encode_queries


def test_a_plain_encoder_offers_nothing_and_needs_not_say_so() -> None:
    plain: Encoder = Plain()
    assert offers_of(plain) == Offers()
    assert not reads_tokens(plain)
    assert split("a text of words", plain, None).spans == ((0, 15),)
    assert cosine_scale(plain, None).factor > 0
    with pytest.raises(ModelError, match="Plain does not tell where its tokens are"):
        split("a text of words", plain, Windows(4, 0, 10))


def test_a_folder_offers_what_it_can(encoder: OnnxEncoder) -> None:
    for typed in (encoder, tiny_retriever()):
        promised: Encoder = typed
        assert (promised.dim, promised.similarity, promised.max_tokens) == (32, "cosine", 64)
        assert len(promised.fingerprint) == 64
    found = offers_of(encoder)
    assert (found.folder, found.arithmetic) == (encoder.folder, {"precision": "fp32", "backend": "onnx"})
    assert (found.width, found.spans) == (encoder.width, encoder)
    assert found.counts is not None
    assert found.counts(["kolan"]) == [3]
    assert offers_of(tiny_retriever()).width == 32
