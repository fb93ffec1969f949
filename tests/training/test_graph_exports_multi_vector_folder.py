"""Multi-vector encoders give the vectors of `assemble` and of sentence-transformers, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sentence_transformers import MultiVectorEncoder as Opened

from hybridr.encoders.export.exporting import export
from hybridr.encoders.graph_folders import MultiVectorEncoder
from hybridr.errors import ModelError
from hybridr.training.rankers import assemble
from hybridr_cli import main
from support.golden_ddr import DDR, INPUTS, SOURCE
from support.multi_vectors import REM, exported, of_pylate, written
from support.places import GOLDEN

TEXTS = [*INPUTS["passages"], "the river, and the sea!", "a bank . of the river"]
QUERIES = ["the virus and the vaccine", "what is the price of a house ?", "a"]
PYLATE_TEXTS = [
    "the river and the sea !",
    "a bank . of the river",
    "stone by stone over the long night",
    "the virus and the vaccine , what is the price of a house ?",
]
FIXED = {"strategy": "fixed", "length": 24}


def scores(queries: list[Any], documents: list[Any]) -> np.ndarray:
    return np.array(
        [[(np.asarray(q) @ np.asarray(d).T).max(axis=1).sum() for d in documents] for q in queries]
    )


def test_a_folder_gives_the_vectors_of_the_ranker() -> None:
    found, ranker = MultiVectorEncoder(exported()), assemble(SOURCE, REM, ranker="colbert")
    for text in [*TEXTS, *QUERIES, ""]:
        [wanted] = ranker.encode_documents([text])  # type: ignore[attr-defined]
        np.testing.assert_allclose(found.encode_documents([text])[0], wanted, atol=1e-5)
        np.testing.assert_allclose(found.encode_queries([text])[0], wanted, atol=1e-5)
    assert found.fingerprint == ranker.fingerprint


def test_a_folder_scores_as_the_authors_code() -> None:
    name = "colbert__dam_source__rem_colbert_lora192-pa4__merged__scores.npy"
    encoder = MultiVectorEncoder(exported())
    encoder.max_tokens, encoder.details.query_tokens = 48, 24
    found = scores(encoder.encode_queries(INPUTS["queries"]), encoder.encode_documents(INPUTS["passages"]))
    np.testing.assert_allclose(found, np.load(DDR / "expected" / name), atol=1e-4)


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"query_expansion": {**FIXED, "attend": False}, "document_length": 30},
        {"query_expansion": {**FIXED, "attend": True}, "skiplist_words": [".", ",", "~"]},
        {"query_length": 5, "prompts": {"query": "what is ", "document": "a model "}},
    ],
    ids=["plain", "expansion", "attended", "prompts"],
)
def test_a_folder_of_sentence_transformers_gives_its_vectors(form: dict[str, Any], tmp_path: Path) -> None:
    model = written(tmp_path, **form)
    same_as(model, MultiVectorEncoder(export(tmp_path / "model", tmp_path / "out")))


def test_a_transformer_in_a_folder_of_its_own_limits_queries_too(tmp_path: Path) -> None:
    """Before, queries had the limit of the model's own folder, which then names none."""
    written(tmp_path)
    model = tmp_path / "model"
    (model / "0_Transformer").mkdir()
    for file in list(model.iterdir()):
        if file.is_file() and file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(model / "0_Transformer" / file.name)
    (model / "0_Transformer" / "sentence_bert_config.json").write_text('{"max_seq_length": 6}')
    modules = json.loads((model / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (model / "modules.json").write_text(json.dumps(modules))
    same_as(Opened(str(model), local_files_only=True), MultiVectorEncoder(export(model, tmp_path / "out")))


@pytest.mark.parametrize(
    "knobs",
    [
        {"query_length": 24, "document_length": 40, "attend_to_expansion_tokens": False},
        {"do_query_expansion": False, "query_length": 9, "skiplist_words": ["the"]},
    ],
    ids=["expansion", "none"],
)
def test_a_folder_of_pylate_gives_its_vectors(knobs: dict[str, Any], tmp_path: Path) -> None:
    model = of_pylate(tmp_path, **knobs)
    same_as(model, MultiVectorEncoder(export(tmp_path / "model", tmp_path / "out")))


@pytest.mark.parametrize("name", ["expansion", "none"])
def test_pylates_own_folder_gives_its_own_vectors(name: str, tmp_path: Path) -> None:
    """Saved and encoded by PyLate 1.6.0 (sentence-transformers 5.3.0): random weights, 16 values a token."""
    found = MultiVectorEncoder(export(GOLDEN / "pylate" / name, tmp_path / "out"))
    wanted = np.load(GOLDEN / "pylate" / f"{name}.npz")
    sides = {"q": found.encode_queries(PYLATE_TEXTS), "d": found.encode_documents(PYLATE_TEXTS)}
    assert len(wanted.files) == sum(map(len, sides.values()))
    for side, own in sides.items():
        for at, one in enumerate(own):
            np.testing.assert_allclose(one, wanted[f"{side}{at}"], atol=1e-5)


def same_as(model: Any, found: MultiVectorEncoder) -> None:
    documents, queries = found.encode_documents(TEXTS), found.encode_queries(QUERIES)
    sides = [(queries, model.encode_query(QUERIES)), (documents, model.encode_document(TEXTS))]
    for own, wanted in sides:
        for one, other in zip(own, wanted, strict=True):
            np.testing.assert_allclose(one, np.asarray(other), atol=1e-4)
    assert np.ptp(scores(queries, documents)) > 0.01


def test_what_is_no_multi_vector_encoder_is_refused(tmp_path, capsys) -> None:
    written(tmp_path)
    dense = tmp_path / "model" / "1_Dense" / "config.json"
    record = json.loads(dense.read_text())
    dense.write_text(json.dumps(record | {"activation_function": "torch.nn.modules.activation.Tanh"}))
    with pytest.raises(ModelError, match=r"does more than a linear layer \(Tanh\)"):
        export(tmp_path / "model", tmp_path / "out")
    dense.write_text(json.dumps(record))
    assert main(["export", str(tmp_path / "model"), "--out", str(tmp_path / "out")]) == 0
    assert f"--token-encoder {tmp_path / 'out'}" in capsys.readouterr().out
    with pytest.raises(ModelError, match="exported in fp32"):
        export(tmp_path / "model", tmp_path / "out", precision="int8")
    with pytest.raises(ModelError, match="holds no multi vector encoder of hybridr"):
        MultiVectorEncoder(SOURCE)
