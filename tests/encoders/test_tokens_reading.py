"""What an encoder shows of the tokens of a text: their states, and the characters that they stand for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hybridr.encoders.contract import Reading, reads_tokens
from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import OnnxEncoder, load_encoder
from hybridr.errors import DataError, ModelError
from hybridr.files.local import sha256_of
from support.hashing import HashingEncoder
from support.tiny import tiny_family, tiny_retriever, tiny_texts

pytestmark = pytest.mark.usefixtures("fresh_home")
BACKENDS = ["onnx", "openvino", "torch"]
EMOJI = "\U0001f469\u200d\U0001f467"  # two, joined to one
ODD = [
    "",
    " ",
    "\t\n",
    "kolan\tmisot\n\ntudur",
    "cafe\u0301 kolan",
    "家 kolan 家家",
    f"kolan {EMOJI}",
    "[SEP] kolan",
]


def opened(folder: Path, backend: str) -> OnnxEncoder:
    if backend == "openvino":
        pytest.importorskip("openvino")
    return load_encoder(folder, backend=backend, threads=2)


def words(text: str, reading: Reading) -> list[str]:
    return [text[start:end] for start, end in reading.spans]


@pytest.mark.parametrize("backend", BACKENDS)
def test_vectors_are_those_of_encoding_in_any_order_and_batch(folder: Path, backend: str) -> None:
    encoder, texts = opened(folder, backend), [*tiny_texts(60, seed=8), *ODD]
    for read, encode in (
        (encoder.read_queries, encoder.encode_queries),
        (encoder.read_documents, encoder.encode_documents),
    ):
        found = read(texts)
        assert np.abs(np.stack([one.vector for one in found]) - encode(texts)).max() <= 1e-6
        for text, one, again in zip(texts, found, read(texts[::-1])[::-1], strict=True):
            [alone] = read([text])
            assert one.spans == again.spans == alone.spans
            for other in (again, alone):
                np.testing.assert_allclose(other.states, one.states, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_states_are_those_of_torch(folder: Path, backend: str) -> None:
    texts = [*tiny_texts(20, seed=9), *ODD]
    encoder, torch = opened(folder, backend), tiny_retriever(query="ask ", document="balan ")
    assert encoder.width == torch.width == 32
    for found, wanted in zip(encoder.read_documents(texts), torch.read_documents(texts), strict=True):
        assert (found.states.dtype, found.states.shape) == (np.float32, (len(found.spans), 32))
        assert found.spans == wanted.spans
        np.testing.assert_allclose(found.states, wanted.states, atol=1e-4)


def test_mean_pooling_is_the_mean_of_the_states_and_of_the_special_tokens(tmp_path: Path) -> None:
    encoder = load_encoder(export(tiny_retriever(similarity="ip"), tmp_path / "plain"))
    [reading] = encoder.read_documents(["kolan misot tudur"])
    ids = np.array([next(encoder.tokenizer.ids(["kolan misot tudur"], None))])
    [states], _ = encoder._documents.read(ids, np.ones_like(ids))
    np.testing.assert_allclose(states[1:4], reading.states, atol=1e-6)
    np.testing.assert_allclose(states.mean(axis=0), reading.vector, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kolan misot.", ["kolan", "misot", "."]),
        ("kolan\tmisot\n\n tudur", ["kolan", "misot", "tudur"]),
        ("家 kolan 家家", ["家", "kolan", "家", "家"]),
        (f"kolan {EMOJI}😀 misot", ["kolan", f"{EMOJI}😀", "misot"]),
        ("ko\u0301lan misot", ["ko\u0301lan", "misot"]),
        ("KOLAN Misot", ["KOLAN", "Misot"]),
        ("", []),
        (" \t\n", []),
    ],
)
def test_spans_are_characters_of_the_text_as_given(encoder, text, expected):
    for read in (encoder.read_queries, encoder.read_documents):  # each has a prefix of its own
        [reading] = read([text])
        assert words(text, reading) == expected
        assert reading.states.shape == (len(expected), encoder.width)


def test_spans_of_a_byte_tokenizer_are_characters_too(tmp_path: Path) -> None:
    encoder = load_encoder(export(tiny_family("roberta", tmp_path / "base"), tmp_path / "roberta"))
    text = "kolan 家😀 misot"
    [reading] = encoder.read_queries([text])
    read = {place for start, end in reading.spans for place in range(start, end)}
    assert {place for place, character in enumerate(text) if not character.isspace()} <= read
    assert all(0 <= start < end <= len(text) for start, end in reading.spans)
    assert len(reading.spans) == len(reading.states)


def test_a_prefix_that_grows_into_the_text_leaves_the_rest_of_its_token(tmp_path: Path) -> None:
    encoder = load_encoder(export(tiny_retriever(query="ko"), tmp_path / "grown"))
    [reading] = encoder.read_queries(["lan misot"])  # read as "kolan misot"
    assert words("lan misot", reading) == ["lan", "misot"]


def test_what_is_beyond_the_limit_is_not_read(encoder: OnnxEncoder) -> None:
    text = " ".join(["kolan"] * 200)
    [query] = encoder.read_queries([text])
    assert len(query.spans) == encoder.max_tokens - 3  # [CLS], the prefix, [SEP]
    assert query.spans[-1] == (60 * 6, 60 * 6 + 5)
    [document] = encoder.read_documents([text], max_tokens=9)
    assert words(text, document) == ["kolan"] * 6
    with pytest.raises(DataError, match="max_tokens 129"):
        encoder.read_documents([text], max_tokens=129)


def test_half_a_surrogate_pair_is_the_same_error_as_in_encoding(encoder: OnnxEncoder) -> None:
    for use in (encoder.encode_queries, encoder.read_queries):
        with pytest.raises(TypeError):
            use(["ko\ud800lan"])


def test_a_graph_without_states_encodes_and_does_not_read(folder: Path, tmp_path: Path) -> None:
    import onnx

    old = shutil.copytree(folder, tmp_path / "old")
    graph = old / "onnx" / "model.onnx"
    model = onnx.load(str(graph))
    del model.graph.output[0]
    onnx.save(model, str(graph))
    manifest = json.loads((old / "manifest.json").read_text())
    manifest["outputs"]["onnx/model.onnx"] = sha256_of(graph)
    (old / "manifest.json").write_text(json.dumps(manifest))
    for backend in ("onnx", "openvino"):
        encoder, whole = opened(old, backend), opened(folder, backend)
        assert reads_tokens(whole)
        assert not reads_tokens(encoder)
        np.testing.assert_allclose(encoder.encode_queries(ODD), whole.encode_queries(ODD), atol=1e-6)
        with pytest.raises(ModelError, match="has no output last_hidden_state"):
            encoder.read_queries(["kolan"])


def test_the_hashing_encoder_reads_as_it_encodes_and_knows_words_of_one_stem() -> None:
    encoder = HashingEncoder()
    assert reads_tokens(encoder)
    [reading] = encoder.read_queries(["wing wings, flow"])
    np.testing.assert_array_equal(reading.vector, encoder.encode_queries(["wing wings, flow"])[0])
    assert reading.spans == ((0, 4), (5, 10), (10, 11), (12, 16))
    cosines = reading.states @ reading.states[0]
    assert cosines[1] > 0.5 > cosines[3]
