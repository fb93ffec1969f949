"""Graphs: plain, self-contained, and int8 in every product by weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from hybridr.encoding.engines import GRAPHS, open_onnx
from hybridr.encoding.opening import load_encoder
from hybridr.encoding.tokens import encode_ids
from hybridr.exporting import graphs
from hybridr.exporting.exporting import export
from hybridr.exporting.graphs import OPSET, quantized_channels
from support.tiny import tiny_retriever, tiny_texts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_retriever(), tmp_path_factory.mktemp("encoder") / "tiny", precision="int8")


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    found: np.ndarray = (left * right).sum(axis=1)
    return found


@pytest.mark.model
def test_remainders_of_attentions_values_take_a_third_of_the_error_away(
    tmp_path: Path, minilm_encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"{word} of the {other}" for word in "wing flow heat plate".split() for other in tiny_texts(6)]
    encoder = load_encoder(minilm_encoder_folder)
    reference = encoder.encode_documents(texts)
    errors = []
    for found in (graphs.averaged_products, lambda _: set()):
        monkeypatch.setattr(graphs, "averaged_products", found)
        graphs.quantize(minilm_encoder_folder / GRAPHS["fp32"], tmp_path / "int8.onnx")
        run = open_onnx(tmp_path / "int8.onnx").run
        ids = list(encoder._tokenizer.ids(texts, 256))
        errors.append(1 - cosines(encode_ids(ids, encoder.dim, run), reference).mean())
    assert errors[0] < 0.7 * errors[1]


def test_every_product_by_weights_is_int8_and_no_fp32_copy_stays(folder: Path) -> None:
    graph = onnx.load(folder / "onnx" / "model_int8.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 14  # two layers of six, and the remainders of two
    assert kinds.count("QuantizeLinear") == 10  # query, key and value read the same rows; two are remainders
    names = {tensor.name for tensor in graph.initializer}
    assert not [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in names]
    used = {name for node in graph.node for name in node.input}
    assert names <= used


def test_channels_have_their_own_scale() -> None:
    weights = np.array([[1.0, 100.0, 0.0], [-0.5, 20.0, 0.0]], dtype=np.float32)
    steps, scales = quantized_channels(weights)
    assert steps.tolist() == [[127, 127, 0], [-64, 25, 0]]
    np.testing.assert_allclose(steps * scales, weights, atol=0.4)


def test_the_graph_is_self_contained_and_plain(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = export(tiny_retriever(), tmp_path / "encoder")
    graph = onnx.load(folder / "onnx" / "model.onnx", load_external_data=False)
    assert {value.version for value in graph.opset_import if value.domain == ""} == {OPSET}
    assert not [tensor for tensor in graph.graph.initializer if tensor.external_data]
    alone = tmp_path / "alone.onnx"
    shutil.copyfile(folder / "onnx" / "model.onnx", alone)
    session = onnxruntime.InferenceSession(alone, providers=["CPUExecutionProvider"])
    texts = tiny_texts(5)
    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="np")
    states, vectors = session.run(["last_hidden_state", "sentence_embedding"], dict(tokens))
    assert states.shape[:2] == tokens["input_ids"].shape
    np.testing.assert_allclose(vectors, load_encoder(folder).encode_documents(texts), atol=1e-5)
