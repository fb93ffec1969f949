from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridr.encoders.export.exporting import GENERATED, TEXTS, export, generated_texts
from hybridr.encoders.opening import cosines_of, load_encoder
from hybridr.errors import ModelError
from hybridr.evaluation.label_free import make_probes, single_answer_ndcg
from hybridr.files.local import read_manifest
from support.tiny import tiny_corpus, tiny_retriever

pytestmark = pytest.mark.usefixtures("all_texts_of_parity")


def test_the_parity_holds_ndcg_of_every_form_on_the_documents(tmp_path: Path) -> None:
    documents = tiny_corpus(TEXTS["torch"] + 20)
    folder = export(tiny_retriever(), tmp_path / "encoder", precision="int8", texts=documents)
    manifest = read_manifest(folder) or {}
    found = manifest["parity"]["ndcg"]
    probes, texts = make_probes(documents[: TEXTS["torch"]], 0)
    assert {probe.kind for probe in probes} == {"title", "sentence", "keywords"}
    assert (found["cutoff"], found["documents"], found["probes"]) == (10, TEXTS["torch"], len(probes))
    assert manifest["parity"]["texts"] == TEXTS["torch"] + len(probes) + GENERATED
    for name, precision in (("fp32", "fp32"), ("int8", "int8")):
        encoder = load_encoder(folder, precision=precision)
        scores = encoder.encode_queries([probe.text for probe in probes]) @ encoder.encode_documents(texts).T
        gains = [
            single_answer_ndcg(list(np.argsort(-row, kind="stable")), probe.position)
            for row, probe in zip(scores, probes, strict=True)
        ]
        assert found[name] == pytest.approx(np.mean(gains))
    assert found["torch"] == pytest.approx(found["fp32"], abs=0.01)
    assert 0.05 < found["torch"] < 0.9
    card = (folder / "README.md").read_text()
    assert f"torch {found['torch']:.4f}, fp32 {found['fp32']:.4f}, int8 {found['int8']:.4f} on" in card
    assert f"{len(probes)} queries made from {TEXTS['torch']} documents" in card


def test_the_parity_tells_of_the_states_of_tokens(tmp_path: Path) -> None:
    retriever, documents = tiny_retriever(query="ask "), tiny_corpus(20)
    folder = export(retriever, tmp_path / "encoder", precision="int8", texts=documents)
    states = (read_manifest(folder) or {})["parity"]["states"]
    probes, texts = make_probes(documents, 0)
    made = generated_texts(retriever.tokenizer_json, retriever.max_tokens, 128 - len(texts) - len(probes))
    rows = retriever.read_queries([one.text for one in probes]) + retriever.read_documents([*texts, *made])
    assert states["tokens"] == sum(len(row.spans) for row in rows)
    assert 0 < states["max_abs_difference"] <= 1e-4 < states["tolerance"] == 1e-2
    narrow = load_encoder(folder, precision="int8")
    ours = np.concatenate([row.states for row in narrow.read_documents([*texts, *made])])
    theirs = np.concatenate([row.states for row in retriever.read_documents([*texts, *made])])
    cosines = cosines_of(ours, theirs)
    assert 0.5 < states["int8_cosine"]["least"] <= cosines.min() + 1e-6
    assert states["int8_cosine"]["mean"] == pytest.approx(cosines.mean(), abs=0.05)


@pytest.mark.parametrize(
    ("states", "vectors", "said"),
    [(0.1, 0.0, "over the states of .* tokens"), (0.0, 0.1, "ONNX and torch differ by .* over .* texts")],
)
def test_a_graph_that_differs_is_not_exported(tmp_path, monkeypatch, states, vectors, said):
    retriever = tiny_retriever()

    def read(*arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        right = type(retriever).read(retriever, *arrays)
        return right[0] + states, right[1] + vectors

    monkeypatch.setattr(retriever, "read", read)
    with pytest.raises(ModelError, match=said):
        export(retriever, tmp_path / "encoder", texts=tiny_corpus(5))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("texts", "reason"),
    [((), "no documents were given, texts are generated"), (["", " "], "the documents make no queries")],
)
def test_without_documents_ndcg_is_null_with_the_reason(texts: list[str], reason: str, tmp_path) -> None:
    folder = export(tiny_retriever(), tmp_path / "encoder", texts=texts)
    parity = (read_manifest(folder) or {})["parity"]
    assert parity["ndcg"] is None
    assert parity["ndcg_reason"] == reason
    assert f"| nDCG@10 | not measured: {reason} |" in (folder / "README.md").read_text()
