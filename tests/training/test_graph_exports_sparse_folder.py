"""Sparse encoders are what `assemble` makes of a text, by ONNX Runtime alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hybridr import load_encoder
from hybridr.encoders.export.exporting import export
from hybridr.encoders.graph_folders import SparseEncoder
from hybridr.errors import ModelError
from hybridr.files.local import read_manifest
from hybridr.training.rankers import assemble
from hybridr_cli import main
from support.golden_ddr import DDR, INPUTS, SOURCE, golden, rem_of
from support.sparse import QUERIES, dense_rows, exported

TEXTS = [*INPUTS["passages"], *QUERIES]


@pytest.mark.parametrize("ranker", ["unicoil", "splade"])
def test_a_folder_weighs_tokens_as_the_ranker_does(ranker: str) -> None:
    found, of = SparseEncoder(exported(ranker)), golden(ranker)
    wanted = of.encode_queries(TEXTS)
    rows = found.encode_queries(TEXTS)
    np.testing.assert_allclose(dense_rows(rows, found.tokens), wanted, atol=1e-4)
    np.testing.assert_array_equal(found.weights(TEXTS), dense_rows(rows, found.tokens))
    assert [found.tokens.index(token) for token in rows[-1]] == list(np.flatnonzero(wanted[-1]))
    assert len(rows[-1]) > 5
    assert found.fingerprint == of.fingerprint
    assert min(weight for row in rows for weight in row.values()) > 0
    assert (read_manifest(found.folder) or {})["parity"]["max_abs_difference"] <= 1e-4


@pytest.mark.parametrize(("side", "limit"), [("queries", 24), ("passages", 48)])
def test_a_folder_weighs_tokens_as_the_authors_code(side: str, limit: int) -> None:
    name = f"splade__dam_source__rem_splade_lora192-pa4__merged__{side[0]}.npy"
    found = SparseEncoder(exported())
    rows = found.encode_documents(INPUTS[side], max_tokens=limit)
    wanted = np.load(DDR / "expected" / name)
    np.testing.assert_allclose(dense_rows(rows, found.tokens), wanted, atol=1e-4)


def test_the_command_exports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "a"
    joined = ["export", "--dam", str(SOURCE), "--rem", str(rem_of("splade_lora192-pa4"))]
    assert main([*joined, "--ranker", "splade", "--out", str(out)]) == 0
    assert f"hybridr reindex NAME --sparse-encoder {out}" in capsys.readouterr().out
    assert main([*joined, "--ranker", "splade", "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["sparse_encoder"]["fingerprint"] == golden("splade").fingerprint
    assert told["sparse_encoder"]["ranker"] == "splade"
    assert main([*joined, "--ranker", "splade", "--out", str(out), "--precision", "int8"]) == 1
    assert "exported in fp32" in capsys.readouterr().err
    with pytest.raises(ModelError, match=r"is not an encoder of hybridr"):
        load_encoder(out)


def test_what_is_no_sparse_encoder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no sparse encoder of hybridr"):
        SparseEncoder(SOURCE)
    with pytest.raises(ModelError, match="does not exist"):
        SparseEncoder(tmp_path / "nowhere")
    whole = shutil.copytree(exported(), tmp_path / "whole")
    (whole / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer.json is not the file that was exported"):
        SparseEncoder(whole)
    manifest = json.loads((exported() / "manifest.json").read_text())
    manifest["sparse_encoder"]["vocabulary"] = 0
    (whole / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match=r"sparse_encoder.vocabulary: input should be greater"):
        SparseEncoder(whole)


@pytest.mark.parametrize("given", ["texts", "records", "attachments"])
def test_what_such_a_model_cannot_take_is_refused(given: str, tmp_path: Path) -> None:
    """Before, `--documents` and the rest were dropped in silence."""
    things = {"texts": ["a text"], "records": {"adaptation": {}}, "attachments": {"x": tmp_path}}
    with pytest.raises(ModelError, match="compared over generated texts, not over documents"):
        export(golden("splade"), tmp_path / "out", **{given: things[given]})
    assert not (tmp_path / "out").exists()


def test_weights_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    ranker = assemble(SOURCE, rem_of("splade_lora192-pa4"), ranker="splade")
    ranker.backbone.get_input_embeddings().weight.data[7] = float("nan")
    with pytest.raises(ModelError):
        export(ranker, tmp_path / "out")
    assert not (tmp_path / "out").exists()
