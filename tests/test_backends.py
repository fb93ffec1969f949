"""Precisions and backends: the same document has the same vector in any batch, and near the fp32 one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from hybridr import doctor
from hybridr.encoding import opening
from hybridr.encoding.engines import GRAPHS, open_onnx
from hybridr.encoding.folder import OnnxEncoder
from hybridr.encoding.opening import load_encoder
from hybridr.encoding.tokens import encode_ids
from hybridr.errors import MissingExtra, ModelError
from hybridr.exporting import graphs
from hybridr.exporting.exporting import export
from hybridr.exporting.graphs import quantized_channels
from hybridr.files.folders import state_folder
from tiny import tiny_retriever, tiny_texts

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"
INT8_LEAST, BF16_LEAST = 0.98, 0.999


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_retriever(), tmp_path_factory.mktemp("encoder") / "tiny", precision="int8")


@pytest.fixture(autouse=True)
def fresh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path / "home"))


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    found: np.ndarray = (left * right).sum(axis=1)
    return found


def test_an_int8_document_has_the_same_vector_in_any_batch(folder: Path) -> None:
    encoder = load_encoder(folder, precision="int8")
    texts = tiny_texts(60, seed=3)
    together = encoder.encode_documents(texts)
    alone = np.concatenate([encoder.encode_documents([text]) for text in texts])
    assert np.abs(together - alone).max() <= 1e-5
    assert np.abs(encoder.encode_documents(texts[::-1])[::-1] - together).max() <= 1e-5


def test_int8_is_near_fp32_and_not_the_same(folder: Path) -> None:
    texts = tiny_texts(60, seed=4)
    wide, narrow = (load_encoder(folder, precision=name).encode_documents(texts) for name in ("fp32", "int8"))
    assert cosines(wide, narrow).min() >= INT8_LEAST
    assert np.abs(wide - narrow).max() > 1e-4


def test_queries_of_an_int8_encoder_are_fp32(folder: Path) -> None:
    texts = tiny_texts(20, seed=5)
    narrow, wide = load_encoder(folder), load_encoder(folder, precision="fp32")
    assert (narrow.precision, narrow.fingerprint) == ("int8", wide.fingerprint)
    np.testing.assert_array_equal(narrow.encode_queries(texts), wide.encode_queries(texts))


@pytest.mark.model
def test_minilm_in_int8_does_not_depend_on_the_batch(tmp_path: Path) -> None:
    from hybridr.encoding.packaged import minilm

    folder = export(minilm(), tmp_path / "encoder", precision="int8")
    random = np.random.default_rng(0)
    words = "the wing of an aircraft in supersonic flow, measured on a flat plate with heat transfer".split()
    texts = [" ".join(random.choice(words, size)) for size in random.integers(1, 200, 24)]
    narrow, wide = load_encoder(folder), load_encoder(folder, precision="fp32")
    together = narrow.encode_documents(texts)
    alone = np.concatenate([narrow.encode_documents([text]) for text in texts])
    assert cosines(together, alone).min() > 0.9999
    assert cosines(together, wide.encode_documents(texts)).min() > INT8_LEAST


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
        run, _ = open_onnx(tmp_path / "int8.onnx")
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


def test_torch_gives_the_vectors_of_onnx(folder: Path) -> None:
    texts = tiny_texts(30, seed=6)
    reference = load_encoder(folder, precision="fp32").encode_documents(texts)
    encoder = load_encoder(folder, precision="fp32", backend="torch")
    assert np.abs(encoder.encode_documents(texts) - reference).max() <= 1e-4
    assert encoder.fingerprint == load_encoder(folder).fingerprint


@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.999999), ("bf16", BF16_LEAST)])
def test_openvino_gives_the_vectors_of_onnx(folder: Path, precision: str, least: float) -> None:
    pytest.importorskip("openvino")
    texts = tiny_texts(30, seed=6)
    reference = load_encoder(folder, precision="fp32")
    encoder = load_encoder(folder, precision=precision, backend="openvino", threads=2)
    assert cosines(encoder.encode_documents(texts), reference.encode_documents(texts)).min() >= least
    assert cosines(encoder.encode_queries(texts), reference.encode_queries(texts)).min() >= 0.999999


@pytest.mark.parametrize(
    ("precision", "backend", "message"),
    [
        ("int8", "openvino", "the backend openvino has no int8"),
        ("bf16", "onnx", "the backend onnx has no bf16"),
        ("fp32", "abacus", "there is no backend 'abacus'"),
        ("int4", None, "has no int4 graph"),
    ],
)
def test_what_a_backend_has_not_is_a_clear_error(
    folder: Path, precision: str, backend: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        load_encoder(folder, precision=precision, backend=backend)


def test_a_backend_that_is_not_installed_names_its_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "openvino", None)
    with pytest.raises(MissingExtra) as caught:
        load_encoder(folder, precision="fp32", backend="openvino")
    assert caught.value.hint == 'pip install "hybridr[openvino]"'


def test_a_trial_survives_a_child_that_dies_by_a_signal(folder: Path) -> None:
    died = opening.try_backend(folder, "fp32", "onnx", program=DIES)
    assert (died.usable, died.reason) == (False, "died of SIGILL")
    failed = opening.try_backend(folder, "fp32", "onnx", program="raise SystemExit('no such thing')")
    assert (failed.usable, failed.reason) == (False, "no such thing")
    wrong = 'print(\'{"seconds": 0.1, "cosine": 0.3}\')'
    assert opening.try_backend(folder, "fp32", "onnx", program=wrong).reason.endswith("0.300 to fp32")
    assert opening.try_backend(folder, "fp32", "onnx").usable


def answers(seconds: dict[str, float | None]):
    def try_backend(folder: Path, precision: str, backend: str) -> opening.Trial:
        took = seconds[backend]
        reason = "" if took else "died of SIGILL"
        return opening.Trial(backend, precision, took, 1.0 if took else None, reason)

    return try_backend


def test_auto_takes_the_fastest_that_works_and_asks_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "backends_for", lambda precision: ["onnx", "torch"])
    monkeypatch.setattr(opening, "try_backend", answers({"onnx": 0.5, "torch": 0.2}))
    assert load_encoder(folder, precision="fp32", backend="auto").backend == "torch"
    monkeypatch.setattr(opening, "try_backend", answers({"onnx": 0.5, "torch": None}))
    assert load_encoder(folder, precision="fp32", backend="auto").backend == "torch"  # remembered
    file = state_folder() / opening.FILE
    known = json.loads(file.read_text())
    assert len(known) == 1
    assert "torch fp32 0.20 s" in doctor.check_backends().found
    file.write_text("{broken")
    assert load_encoder(folder, precision="fp32", backend="auto").backend == "onnx"
    assert "torch fp32 died of SIGILL" in doctor.check_backends().found


def test_what_dies_here_is_refused_before_it_is_loaded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "backends_for", lambda precision: ["torch"])
    monkeypatch.setattr(opening, "try_backend", answers({"torch": None}))
    monkeypatch.setattr(OnnxEncoder, "__init__", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(ModelError, match="bf16 of the backend torch does not work on this machine: died"):
        load_encoder(folder, precision="bf16", backend="torch")
    with pytest.raises(ModelError, match="no backend runs bf16 on this machine"):
        load_encoder(folder, precision="bf16", backend="auto")
