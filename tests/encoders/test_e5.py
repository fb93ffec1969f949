"""The packaged second retriever: bytes become the weights that they stand for."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from hybridr.encoders.export.e5 import packaged_e5, weights_of

FINGERPRINT = "7f7194f142721fd43a0a0c84dd3bcfcc13a7bb6cb0fa360949f27e12961d16a1"


def test_bytes_are_widened_and_named_as_transformers_does() -> None:
    table, product = np.array([[0, 128], [255, 130]], np.uint8), np.array([[3, 1], [2, 5]], np.uint8)
    tensors = {
        "embeddings.word_embeddings.weight_quantized": table,
        "embeddings.word_embeddings.weight_scale": np.array(0.5, np.float32),
        "embeddings.word_embeddings.weight_zero_point": np.array(128, np.uint8),
        "encoder.layer.0.output.dense.bias": np.array([1, 2], np.float32),
        "onnx::MatMul_7_quantized": product,
        "onnx::MatMul_7_scale": np.array(2, np.float32),
        "onnx::MatMul_7_zero_point": np.array(1, np.uint8),
    }
    node = helper.make_node(
        "MatMulInteger",
        ["x", "onnx::MatMul_7_quantized"],
        ["y"],
        name="/encoder/layer.0/output/dense/MatMul_quant",
    )
    x, y = (helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in "xy")
    kept = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    found = dict(weights_of(helper.make_graph([node], "g", [x], [y], kept)))
    assert found.keys() == {
        "embeddings.word_embeddings.weight",
        "encoder.layer.0.output.dense.bias",
        "encoder.layer.0.output.dense.weight",
    }
    assert found["embeddings.word_embeddings.weight"].tolist() == [[-64, 0], [63.5, 1]]
    assert found["encoder.layer.0.output.dense.weight"].tolist() == [[4, 2], [0, 8]]  # transposed


def test_the_real_one_reads_questions_and_passages() -> None:
    found = packaged_e5()
    assert found.fingerprint == FINGERPRINT
    assert (found.dim, found.base, found.usage.prefixes["query"]) == (384, "e5-small-v2", "query: ")
    asked = found.encode_queries(["how do vaccines work", "capital of Portugal"])
    told = found.encode_documents(
        [
            "A vaccine shows the immune system a harmless part of a germ.",
            "Lisbon lies at the mouth of the Tagus.",
        ]
    )
    near = asked @ told.T
    assert near[0, 0] - near[0, 1] > 0.05
    assert near[1, 1] - near[1, 0] > 0.05
