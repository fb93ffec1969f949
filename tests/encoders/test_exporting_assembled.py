"""Encoders of DAM and REM as folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from sentence_transformers import SentenceTransformer

from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import load_encoder
from hybridr.errors import ModelError
from hybridr.training.rankers import assemble
from hybridr.training.torch_models import read_retriever
from support.golden_ddr import INPUTS, SOURCE, TOLERANCE, gap, rem_of
from support.places import DDR


def test_a_lora_only_encoder_is_exported_as_a_plain_bert(tmp_path: Path) -> None:
    dense = assemble(SOURCE, rem_of("dense_lora192"), similarity="cosine", merge=False)
    folder = export(dense, tmp_path / "encoder", texts=INPUTS["passages"])
    wanted = dense.encode_documents(INPUTS["passages"])
    opened = load_encoder(folder)
    assert opened.fingerprint == dense.fingerprint
    assert gap(opened.encode_documents(INPUTS["passages"]), wanted) <= 10 * TOLERANCE
    found = SentenceTransformer(str(folder), device="cpu").encode(INPUTS["passages"])
    assert gap(found, wanted) <= 10 * TOLERANCE
    assert read_retriever(folder).fingerprint == dense.fingerprint
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["assembly"] == {"dam": "dam_source", "rem": "msmarco"}


@pytest.mark.parametrize(
    ("dam", "rem"), [("dam_source", "dense_lora192-pa4"), ("dam_distilbert", "dense_lora192-pa4__distilbert")]
)
def test_an_encoder_with_a_parallel_adapter_is_exported_as_a_graph(dam: str, rem: str, tmp_path) -> None:
    dense = assemble(DDR / "dams" / dam, rem_of(rem))
    folder = export(dense, tmp_path / "encoder", texts=INPUTS["passages"])
    found = load_encoder(folder)
    assert found.fingerprint == dense.fingerprint
    queries = INPUTS["queries"]
    assert gap(found.encode_queries(queries), dense.encode_queries(queries)) <= 10 * TOLERANCE
    assert not (folder / "model.safetensors").exists()
    card = (folder / "README.md").read_text()
    assert "transformers and sentence-transformers do not" in card
    assert f"backbone `{dam}` and the relevance module `msmarco`" in card
    with pytest.raises(ModelError, match=r"modules\.json"):
        read_retriever(folder)


@pytest.mark.parametrize("rem", ["dense_lora192", "dense_lora192-pa4"])
def test_int8_of_an_assembled_encoder(rem: str, tmp_path: Path) -> None:
    dense = assemble(SOURCE, rem_of(rem), similarity="cosine")
    folder = export(dense, tmp_path / "encoder", precision="int8", texts=INPUTS["passages"])
    narrow = load_encoder(folder)
    assert (narrow.precision, narrow.fingerprint) == ("int8", dense.fingerprint)
    wanted = dense.encode_documents(INPUTS["passages"])
    found = narrow.encode_documents(INPUTS["passages"])
    assert not np.array_equal(found, wanted)
    assert (found * wanted).sum(axis=1).mean() > 0.95
    operators = {node.op_type for node in onnx.load(folder / "onnx" / "model_int8.onnx").graph.node}
    assert "MatMulIntegerToFloat" in operators
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {"torch", "fp32", "int8"} <= manifest["parity"]["ndcg"].keys()
    assert manifest["encoder"]["graph_only"] is (rem != "dense_lora192")
    card = (folder / "README.md").read_text()
    assert "| domain module (DAM) | `dam_source` |\n| relevance module (REM) | `msmarco` |\n" in card
    for words in ("cosine, mean pooling", "int8 against fp32: mean cosine", "| nDCG@10 | torch 0."):
        assert words in card
