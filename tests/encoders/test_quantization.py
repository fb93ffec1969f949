"""int8 in every product by weights, exact on every processor."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from hybridr.encoders import quantization, sessions
from hybridr.encoders.engines import GRAPHS, OUTPUT, STATES, open_onnx
from hybridr.encoders.export.graphs import OPSET
from hybridr.encoders.opening import load_encoder
from hybridr.encoders.quantization import quantized_channels
from hybridr.encoders.tokens import encode_ids
from support.tiny import cosines, tiny_texts


@pytest.mark.model
def test_remainders_sides_and_even_channels_each_take_error_away(
    tmp_path: Path, minilm_encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "wing flow heat plate".split()
    texts = [" ".join(f"{word} of the {other}" for word in words) for other in tiny_texts(8)]
    encoder = load_encoder(minilm_encoder_folder)
    reference = encoder.encode_documents(texts)
    ids = list(encoder.tokenizer.ids(texts, 256))

    def error() -> float:
        quantization.quantize(minilm_encoder_folder / GRAPHS["fp32"], tmp_path / "int8.onnx")
        run = open_onnx(tmp_path / "int8.onnx").run
        return float(1 - cosines(encode_ids(ids, encoder.dim, run), reference).mean())

    whole = error()
    assert whole < 0.001
    for name, without in (
        ("averaged_products", lambda _: set()),
        ("one_sided_lift", lambda _: 0.0),
        ("channel_divisors", np.ones_like),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(quantization, name, without)
            assert whole < 0.9 * error(), name


def test_every_product_by_weights_is_int8_and_no_fp32_copy_stays(tiny: Path) -> None:
    graph = onnx.load(tiny / "onnx" / "model_int8.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert kinds.count("MatMulIntegerToFloat") == 14  # two layers of six, and the remainders of two
    assert kinds.count("QuantizeLinear") == 10  # query, key and value read the same rows; two are remainders
    names = {tensor.name for tensor in graph.initializer}
    assert not [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in names]
    assert names <= {name for node in graph.node for name in node.input}


def test_sums_of_the_largest_bytes_are_exact_on_every_processor(tmp_path: Path) -> None:
    """AVX2 without VNNI adds pairs of products up in 16 bits unless it is told otherwise."""
    random = np.random.default_rng(0)
    weights = random.integers(-127, 128, (64, 48)).astype(np.float32)
    weights[0] = 127  # steps are then whole
    ids, mask = (
        helper.make_tensor_value_info(name, 7, ["n", 64]) for name in ("input_ids", "attention_mask")
    )
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["rows"], to=1),
        helper.make_node("MatMul", ["rows", "weights"], [OUTPUT]),
        helper.make_node("Cast", ["attention_mask"], [STATES], to=1),
    ]
    outputs = [helper.make_tensor_value_info(name, 1, ["n", None]) for name in (OUTPUT, STATES)]
    whole = helper.make_graph(nodes, "g", [ids, mask], outputs, [numpy_helper.from_array(weights, "weights")])
    model = helper.make_model(whole, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    onnx.save(model, str(tmp_path / "fp32.onnx"))
    quantization.quantize(tmp_path / "fp32.onnx", tmp_path / "int8.onnx")
    rows = random.integers(-127, 128, (8, 64))
    rows[:, 0] = 127
    found = open_onnx(tmp_path / "int8.onnx").run(rows, np.ones_like(rows))
    np.testing.assert_allclose(found, rows @ weights.astype(np.int64), rtol=1e-5, atol=0.05)


def test_an_exact_graph_gives_the_vectors_of_this_processor(tiny: Path, monkeypatch) -> None:
    """The exact form writes both sides of each product anew, which ONNX Runtime refuses if shared.

    Every processor has its arithmetic. The fast form is tried only where this processor chooses it.
    """
    texts = tiny_texts(12)
    as_here = load_encoder(tiny).encode_documents(texts)
    monkeypatch.setattr(sessions, "bytes_overflow", lambda: True)
    np.testing.assert_allclose(load_encoder(tiny).encode_documents(texts), as_here, atol=1e-3)


def test_the_graph_that_finds_overflow_multiplies_the_largest_bytes() -> None:
    """Flags of /proc/cpuinfo do not count: under `make test-avx2` they are those of the machine below."""
    column = numpy_helper.from_array(np.full((4, 1), 127, dtype=np.int8), "b")
    inputs = [helper.make_tensor_value_info("a", onnx.TensorProto.UINT8, [1, 4])]
    outputs = [helper.make_tensor_value_info("c", onnx.TensorProto.INT32, [1, 1])]
    product = helper.make_node("MatMulInteger", ["a", "b"], ["c"])
    graph = helper.make_graph([product], "g", inputs, outputs, [column])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    assert model.SerializeToString() == sessions.LARGEST_BYTES
    if os.environ.get("EMULATED_CPU") == "Haswell":
        assert sessions.bytes_overflow()


def test_channels_have_their_own_scale() -> None:
    weights = np.array([[1.0, 100.0, 0.0], [-0.5, 20.0, 0.0]], dtype=np.float32)
    steps, scales = quantized_channels(weights)
    assert steps.tolist() == [[127, 127, 0], [-64, 25, 0]]
    np.testing.assert_allclose(steps * scales, weights, atol=0.4)
