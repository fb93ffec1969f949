"""What every encoder promises."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridr.encoding.contract import Encoder
from hybridr.encoding.folder import OnnxEncoder
from hybridr.encoding.opening import load_encoder
from hybridr.errors import DataError
from hybridr.exporting.exporting import export
from support.tiny import tiny_retriever


def test_prefixes_are_put_before_queries_and_documents(encoder: OnnxEncoder, folder: Path) -> None:
    plain = export(tiny_retriever(), folder.parent / "plain")
    bare = load_encoder(plain)
    np.testing.assert_allclose(
        encoder.encode_documents(["kolan"]), bare.encode_documents(["balan kolan"]), atol=1e-6
    )
    np.testing.assert_allclose(
        encoder.encode_queries(["kolan"]), bare.encode_queries(["ask kolan"]), atol=1e-6
    )
    assert encoder.fingerprint != bare.fingerprint


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
def test_only_lists_of_strings_are_encoded(encoder: OnnxEncoder, texts: list[str]) -> None:
    with pytest.raises(DataError, match="string"):
        encoder.encode_documents(texts)


def test_torch_and_onnx_are_encoders(encoder: OnnxEncoder) -> None:
    for found in (encoder, tiny_retriever()):
        typed: Encoder = found
        assert typed.dim == 32
        assert typed.similarity == "cosine"
        assert typed.max_tokens == 64
        assert len(typed.fingerprint) == 64
