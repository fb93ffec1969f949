"""Graphs: plain, self-contained, and the same whether torch traced them or weights made them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from hybridr.encoders.engines import open_onnx
from hybridr.encoders.export.exporting import export
from hybridr.encoders.export.fetched_models import minilm
from hybridr.encoders.export.graphs import OPSET, write_graph
from hybridr.encoders.export.weights import open_without_torch
from hybridr.encoders.opening import load_encoder
from hybridr.encoders.tokens import pad_rows
from hybridr.files.local import read_manifest
from hybridr.training.torch_models import read_retriever
from support.pythons import run_without_torch
from support.tiny import tiny_family, tiny_texts


def test_the_graph_is_self_contained_and_plain(tmp_path: Path) -> None:
    folder = export(tiny_family("bert", tmp_path), tmp_path / "encoder")
    graph = onnx.load(folder / "onnx" / "model.onnx", load_external_data=False)
    assert {value.version for value in graph.opset_import if value.domain == ""} == {OPSET}
    assert not [tensor for tensor in graph.graph.initializer if tensor.external_data]


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_a_graph_of_weights_gives_what_torch_gives(tmp_path: Path, kind: str) -> None:
    folder = export(tiny_family(kind, tmp_path / kind), tmp_path / "encoder")
    torch_form, numpy_form = read_retriever(folder), open_without_torch(folder)
    assert numpy_form.fingerprint == torch_form.fingerprint
    texts = tiny_texts(12)
    write_graph(numpy_form, tmp_path / "graph.onnx")
    engine = open_onnx(tmp_path / "graph.onnx")
    ids, mask = pad_rows(list(numpy_form.tokenizer.ids(texts, 64)))
    states, vectors = torch_form.read(ids, mask, *[np.zeros_like(ids)][: len(torch_form.input_names) - 2])
    for found_states, found_vectors in (numpy_form.read(ids, mask), engine.read(ids, mask)):
        np.testing.assert_allclose(found_states[mask > 0], states[mask > 0], atol=1e-4)
        np.testing.assert_allclose(found_vectors, vectors, atol=1e-5)
    assert engine.width == torch_form.width


@pytest.mark.model
def test_the_packaged_model_needs_no_torch_and_gives_what_torch_gives(minilm_encoder_folder: Path) -> None:
    ours, torchs = load_encoder(minilm_encoder_folder), read_retriever(minilm())
    parity = (read_manifest(minilm_encoder_folder) or {})["parity"]
    assert parity["reference"] == "numpy"
    assert parity["max_abs_difference"] < 1e-5
    assert ours.fingerprint == torchs.fingerprint
    texts = ["the wing", "heat flow of a plate, at length: " + "pressure " * 300]
    for one, other in zip(ours.read_documents(texts), torchs.read_documents(texts), strict=True):
        np.testing.assert_allclose(one.vector, other.vector, atol=1e-6)
        np.testing.assert_allclose(one.states, other.states, atol=1e-4)


def test_a_folder_is_exported_where_torch_is_missing(tmp_path: Path) -> None:
    source = export(tiny_family("bert", tmp_path), tmp_path / "source")
    arguments = ["export", str(source), "--out", str(tmp_path / "out"), "--precision", "int8"]
    done = run_without_torch(*arguments)
    assert done.returncode == 0, done.stderr
    assert "largest difference to numpy" in done.stdout
    found, before = load_encoder(tmp_path / "out"), load_encoder(source)
    assert (found.precision, found.fingerprint) == ("int8", before.fingerprint)
    texts = tiny_texts(5)
    np.testing.assert_allclose(found.encode_queries(texts), before.encode_queries(texts), atol=1e-5)
    assert read_retriever(tmp_path / "out").fingerprint == before.fingerprint
