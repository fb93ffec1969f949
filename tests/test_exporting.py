from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from hybridr.encoder import load_encoder
from hybridr.errors import DownloadError, ModelError
from hybridr.exporting import OPSET, export, generated_texts
from hybridr.manifest import read_manifest, sha256_of
from hybridr.retriever import read_retriever
from hybridr_cli import main
from tiny import damage_json, tiny_corpus, tiny_retriever, tiny_texts


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("similarity", ["cosine", "ip"])
def test_transformers_and_sentence_transformers_open_the_folder(
    tmp_path: Path, pooling: str, similarity: str
) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    folder = export(tiny_retriever(pooling=pooling, similarity=similarity), tmp_path / "encoder")
    texts = tiny_texts(30)
    vectors = load_encoder(folder).encode_documents(texts)
    theirs = SentenceTransformer(str(folder), device="cpu")
    assert np.abs(theirs.encode(texts) - vectors).max() <= 1e-4
    assert theirs.max_seq_length == 64
    tokens = AutoTokenizer.from_pretrained(folder)(texts[:1], truncation=True, return_tensors="pt")
    model = AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        states = model(**tokens).last_hidden_state[0]
    pooled = states[0] if pooling == "cls" else states.mean(0)
    if similarity == "cosine":
        pooled = pooled / pooled.norm()
    assert np.abs(pooled.numpy() - vectors[0]).max() <= 1e-4
    assert read_retriever(folder).fingerprint == load_encoder(folder).fingerprint


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


def test_the_manifest_and_card_say_what_was_measured(tmp_path: Path) -> None:
    folder = export(tiny_retriever(), tmp_path / "encoder", texts=tiny_texts(10))
    manifest = read_manifest(folder) or {}
    assert manifest["parity"]["texts"] == 128
    assert 0 < manifest["parity"]["max_abs_difference"] <= 1e-4
    assert {name: sha256_of(folder / name) for name in manifest["outputs"]} == manifest["outputs"]
    assert manifest["encoder"]["dim"] == 32
    assert manifest["encoder"]["precision"] == "fp32"
    card = (folder / "README.md").read_text()
    assert manifest["encoder"]["fingerprint"] in card
    assert "32 dimensions, cosine, mean pooling" in card
    assert str(tmp_path) not in card + (folder / "manifest.json").read_text()


@pytest.mark.model
def test_onnx_equals_torch_over_1000_texts_of_different_lengths(minilm_encoder_folder: Path) -> None:
    retriever = read_retriever(minilm_encoder_folder)
    texts = generated_texts(retriever, 1000)
    lengths = load_encoder(minilm_encoder_folder).count_tokens(texts)
    assert min(lengths) <= 5
    assert max(lengths) > retriever.max_tokens
    gap = load_encoder(minilm_encoder_folder).encode_documents(texts) - retriever.encode_documents(texts)
    assert np.abs(gap).max() <= 1e-4


@pytest.mark.model
def test_minilm_gives_the_vectors_of_sentence_transformers(minilm_encoder_folder: Path) -> None:
    from sentence_transformers import SentenceTransformer

    from hybridr.packaged import minilm

    texts = [document.contents for document in tiny_corpus(20)] + ["", "Ein kleines Haus; 家.", "a " * 400]
    theirs = SentenceTransformer(str(minilm()), device="cpu").encode(texts)
    assert np.abs(load_encoder(minilm_encoder_folder).encode_documents(texts) - theirs).max() <= 1e-4
    assert SentenceTransformer(str(minilm_encoder_folder), device="cpu").max_seq_length == 256


def test_int8_stands_beside_fp32_with_the_same_fingerprint(tmp_path: Path) -> None:
    folder = export(tiny_retriever(), tmp_path / "encoder")
    (folder / "losses.jsonl").write_text("{}\n")
    wide = load_encoder(folder)
    assert main(["export", str(folder), "--precision", "int8", "--quiet"]) == 0
    narrow = load_encoder(folder)
    assert narrow.precision == "int8"
    assert narrow.fingerprint == wide.fingerprint == load_encoder(folder, precision="fp32").fingerprint
    texts = tiny_texts(20)
    cosines = (narrow.encode_documents(texts) * wide.encode_documents(texts)).sum(axis=1)
    assert cosines.min() > 0.9
    assert not np.array_equal(narrow.encode_documents(texts), wide.encode_documents(texts))
    assert (folder / "losses.jsonl").exists()
    manifest = read_manifest(folder) or {}
    assert manifest["parity"]["int8_cosine"]["mean"] > 0.9
    assert manifest["parents"] == [wide.fingerprint]


def test_the_fingerprint_follows_weights_and_use_but_not_the_export() -> None:
    first = tiny_retriever()
    assert first.fingerprint == tiny_retriever().fingerprint
    others = [tiny_retriever(seed=1), tiny_retriever(pooling="cls"), tiny_retriever(similarity="ip"),
              tiny_retriever(query="ask ")]  # fmt: skip
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_a_graph_that_differs_is_not_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridr.exporting.FP32_TOLERANCE", 0.0)
    with pytest.raises(ModelError, match="ONNX and torch differ by"):
        export(tiny_retriever(), tmp_path / "encoder")
    assert not list(tmp_path.iterdir())


def test_a_foreign_folder_is_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = export(tiny_retriever(), tmp_path / "encoder")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("only copy")
    assert main(["export", str(source), "--out", str(mine)]) == 1
    said = capsys.readouterr().err
    assert "is not an encoder of hybridr, so it is not replaced" in said
    assert "hint: choose another folder" in said
    assert (mine / "thesis.txt").read_text() == "only copy"


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="cannot write"):
        export(tiny_retriever(), tmp_path / "file" / "encoder")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.safetensors", None, "is damaged: model.safetensors"),
        ("model.safetensors", b"short", "is damaged: model.safetensors"),
        ("modules.json", None, "has no modules.json: a sentence-transformers bi-encoder is needed"),
        ("modules.json", b"{", "is damaged: modules.json"),
        ("config.json", None, "cannot be opened"),
        ("modules.json", b'[{"type": "x.Dense", "path": ""}]', "has the module Dense"),
        (
            "1_Pooling/config.json",
            b'{"pooling_mode": "lasttoken"}',
            "mean or cls over the whole input is needed",
        ),
    ],
)
def test_a_damaged_source_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, change: bytes | None, message: str
) -> None:
    source = export(tiny_retriever(), tmp_path / "encoder")
    (source / name).unlink()
    if change is not None:
        (source / name).write_bytes(change)
    assert main(["export", str(source), "--out", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_weights_that_lack_a_layer_are_a_clear_error(tmp_path: Path) -> None:
    source = export(tiny_retriever(), tmp_path / "encoder")
    (source / "manifest.json").unlink()
    damage_json(source / "config.json", num_hidden_layers=3)
    with pytest.raises(ModelError, match="lacks 16 weights, such as encoder.layer.2"):
        read_retriever(source)


def test_the_command_names_its_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = export(tiny_retriever(), tmp_path / "encoder")
    assert main(["export", str(source), "--out", str(tmp_path / "copy"), "--json"]) == 0
    assert '"precision": "fp32"' in capsys.readouterr().out
    assert main(["export", str(source), "--precision", "fp16"]) == 2
    assert main(["export", str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().err


def test_without_torch_the_command_names_the_extra(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nfrom hybridr_cli import main\n"
        f"sys.exit(main(['export', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs the package 'torch'" in done.stderr
    assert 'pip install "hybridr[train]"' in done.stderr
