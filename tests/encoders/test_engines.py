"""Precisions and backends: the same document has the same vector in any batch, and near the fp32 one."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridr.encoders.contract import ENCODED_TOGETHER, offers_of
from hybridr.encoders.engines import GRAPHS, round_weights
from hybridr.encoders.opening import load_encoder
from hybridr.encoders.sessions import open_session
from hybridr.encoders.tokens import GPU_BATCH_TOKENS, encode_ids
from hybridr.errors import MissingExtra, ModelError
from hybridr.training.torch_models import BiEncoder
from support.tiny import cosines, tiny_texts

pytestmark = pytest.mark.usefixtures("fresh_home")


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_document_has_the_same_vector_in_any_order_and_batch(tiny: Path, precision: Any) -> None:
    encoder, texts = load_encoder(tiny, precision=precision), tiny_texts(60, seed=3)
    together = encoder.encode_documents(texts)
    assert (together.shape, together.dtype) == ((60, 32), np.float32)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    alone = np.concatenate([encoder.encode_documents([text]) for text in texts])
    for vectors in (alone, encoder.encode_documents(texts[::-1])[::-1]):
        assert np.abs(vectors - together).max() <= 1e-5


def test_queries_of_an_int8_encoder_are_fp32(tiny: Path) -> None:
    texts = tiny_texts(20, seed=5)
    narrow, wide = load_encoder(tiny), load_encoder(tiny, precision="fp32")
    assert (narrow.precision, narrow.fingerprint) == ("int8", wide.fingerprint)
    np.testing.assert_array_equal(narrow.encode_queries(texts), wide.encode_queries(texts))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_change_no_vector_and_share_the_batches(threads: int) -> None:
    sizes: list[int] = []

    def run(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        sizes.append(ids.size)
        return ids.sum(axis=1, keepdims=True).astype(np.float32)

    rows = [[2, *([7] * (number % 40)), 3] for number in range(300)]
    found = encode_ids(rows, 1, run, budget=500, threads=threads)
    assert found[:, 0].tolist() == [sum(row) for row in rows]
    assert max(sizes) <= 500
    sizes.clear()
    encode_ids(rows[:30], 1, run, budget=5_000, threads=threads)
    assert len(sizes) >= min(threads, 3)


def test_torch_gives_the_vectors_of_onnx(tiny: Path) -> None:
    texts = tiny_texts(30, seed=6)
    reference = load_encoder(tiny, precision="fp32").encode_documents(texts)
    encoder = load_encoder(tiny, precision="fp32", backend="torch")
    assert np.abs(encoder.encode_documents(texts) - reference).max() <= 1e-4
    assert encoder.fingerprint == load_encoder(tiny).fingerprint


@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.999999), ("bf16", 0.999), ("int8", 0.995)])
def test_openvino_gives_the_vectors_of_onnx(tiny: Path, precision: str, least: float) -> None:
    pytest.importorskip("openvino")
    texts = tiny_texts(30, seed=6)
    reference = load_encoder(tiny, precision="fp32")
    encoder = load_encoder(tiny, precision=precision, backend="openvino", threads=2)
    assert cosines(encoder.encode_documents(texts), reference.encode_documents(texts)).min() >= least
    assert cosines(encoder.encode_queries(texts), reference.encode_queries(texts)).min() >= 0.999999


def test_openvino_rounds_every_constant_matrix_of_a_graph(tiny: Path) -> None:
    model = pytest.importorskip("openvino").Core().read_model(str(tiny / GRAPHS["fp32"]))

    def types_of_matrices() -> list[str]:
        """Return the types of the nodes that give a product its second factor."""
        products = [node for node in model.get_ordered_ops() if node.get_type_name() == "MatMul"]
        return [product.input_value(1).get_node().get_type_name() for product in products]

    before = types_of_matrices()
    round_weights(model)
    assert before.count("Constant") >= 6
    assert types_of_matrices() == ["Multiply" if kind == "Constant" else kind for kind in before]


def test_int8_of_openvino_does_not_depend_on_the_batch(tiny: Path) -> None:
    pytest.importorskip("openvino")
    encoder = load_encoder(tiny, precision="int8", backend="openvino", threads=1)
    texts = tiny_texts(12, seed=6)
    alone = np.concatenate([encoder.encode_documents([text]) for text in texts])
    assert cosines(encoder.encode_documents(texts), alone).min() >= 0.9999


def test_openvino_is_called_once_before_threads_call_it(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads that made its first call at once waited for each other for good, in one run of some."""
    openvino = pytest.importorskip("openvino")
    callers, make = [], openvino.CompiledModel.create_infer_request

    def noted(model: Any) -> Any:
        callers.append(threading.current_thread())
        return make(model)

    monkeypatch.setattr(openvino.CompiledModel, "create_infer_request", noted)
    load_encoder(tiny, precision="fp32", backend="openvino", threads=2)
    assert callers == [threading.main_thread()]


@pytest.mark.parametrize(
    ("precision", "backend", "message"),
    [
        ("int8", "torch", "the backend torch has no int8"),
        ("bf16", "onnx", "the backend onnx has no bf16"),
        ("fp32", "abacus", "there is no backend 'abacus'"),
        ("int4", None, "there is no precision .int4."),
    ],
)
def test_what_a_backend_has_not_is_a_clear_error(tiny, precision, backend, message):
    with pytest.raises(ModelError, match=message) as caught:
        load_encoder(tiny, precision=precision, backend=backend)
    assert precision != "int4" or caught.value.hint == "one of bf16, fp32, int8"


def test_a_backend_that_is_not_installed_names_its_extra(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingExtra) as caught:
        load_encoder(tiny, precision="fp32", backend="openvino")
    assert caught.value.hint == 'in a clone of hybridr: pip install ".[openvino]"'


def test_a_gpu_gets_all_texts_in_one_batch_and_wants_many(tiny: Path) -> None:
    """On a processor the same texts are cut for its threads."""
    encoder, texts = load_encoder(tiny, threads=4), tiny_texts(1, seed=6) * 60
    whole, sizes = encoder.encode_documents(texts), []

    def counted(ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
        sizes.append(len(ids))
        return engine.run(ids, mask)

    engine = encoder._documents
    encoder._documents = engine._replace(run=counted)
    encoder.encode_documents(texts)
    assert len(sizes) > 1
    assert offers_of(encoder).documents_at_once == ENCODED_TOGETHER
    sizes.clear()
    encoder._documents = engine._replace(run=counted, batch_tokens=GPU_BATCH_TOKENS, on_gpu=True)
    assert cosines(encoder.encode_documents(texts), whole).min() > 0.999999
    assert sizes == [len(texts)]
    assert offers_of(encoder).documents_at_once > ENCODED_TOGETHER


def test_a_gpu_whose_memory_is_too_small_says_what_needs_less(tiny: Path, monkeypatch) -> None:
    def full(self: BiEncoder, *arrays: np.ndarray) -> np.ndarray:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(BiEncoder, "run", full)
    with pytest.raises(ModelError, match=r"too small: CUDA out of memory\. Tried to allocate 2") as refused:
        load_encoder(tiny, backend="torch", precision="fp32").encode_documents(["one"])
    assert "--max-tokens" in str(refused.value.hint)


def test_what_is_no_graph_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match="model.onnx cannot be opened") as caught:
        open_session(tmp_path / "model.onnx")
    assert "HYBRIDR_MEMORY_GB" in str(caught.value.hint)
