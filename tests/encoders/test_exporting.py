from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import load_encoder
from hybridr.errors import ModelError
from hybridr.files.local import read_manifest, sha256_of
from hybridr.files.remembered import remember_encoder
from hybridr.training.rankers import assemble
from hybridr_cli import main
from support.places import DDR
from support.pythons import run_without_torch
from support.tiny import damage_json, tiny_corpus, tiny_retriever, tiny_texts


@pytest.fixture
def source(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "encoder"))


def test_the_manifest_and_card_say_what_was_measured(all_texts_of_parity: None, tmp_path: Path) -> None:
    folder = export(tiny_retriever(), tmp_path / "encoder", texts=tiny_texts(10))
    manifest = read_manifest(folder) or {}
    assert manifest["parity"]["texts"] == 128
    assert 0 < manifest["parity"]["max_abs_difference"] <= 1e-4
    assert {name: sha256_of(folder / name) for name in manifest["outputs"]} == manifest["outputs"]
    assert (manifest["encoder"]["dim"], manifest["encoder"]["precision"]) == (32, "fp32")
    card = (folder / "README.md").read_text()
    assert manifest["encoder"]["fingerprint"] in card
    assert "32 dimensions, cosine, mean pooling" in card
    assert "from hybridr import load_encoder\n" in card
    assert str(tmp_path) not in card + (folder / "manifest.json").read_text()


def test_a_model_that_does_not_bear_int8_is_refused(tmp_path: Path) -> None:
    retriever = tiny_retriever()
    with torch.no_grad():  # one unit so large that int8 leaves nothing of the others
        for layer in retriever.backbone.encoder.layer:
            layer.intermediate.dense.bias[0] = 1e4
            layer.output.dense.weight *= 50
            layer.output.dense.weight[:, 0] = 0
    export(retriever, tmp_path / "fp32")
    with pytest.raises(
        ModelError, match=r"int8 vectors have a mean cosine of 0\.\d+ to fp32; 0\.9 is needed"
    ) as caught:
        export(retriever, tmp_path / "int8", precision="int8")
    assert "--precision fp32" in str(caught.value.hint)
    assert not (tmp_path / "int8").exists()


def test_int8_stands_beside_fp32_with_the_same_fingerprint(tmp_path: Path) -> None:
    folder = export(tiny_retriever(), tmp_path / "encoder")
    (folder / "losses.jsonl").write_text("{}\n")
    wide = load_encoder(folder)
    assert main(["export", str(folder), "--precision", "int8", "--quiet"]) == 0
    narrow = load_encoder(folder)
    assert narrow.precision == "int8"
    assert narrow.fingerprint == wide.fingerprint == load_encoder(folder, precision="fp32").fingerprint
    texts = tiny_texts(20)
    assert (narrow.encode_documents(texts) * wide.encode_documents(texts)).sum(axis=1).min() > 0.9
    assert not np.array_equal(narrow.encode_documents(texts), wide.encode_documents(texts))
    assert (folder / "losses.jsonl").exists()
    manifest = read_manifest(folder) or {}
    assert manifest["parity"]["int8_cosine"]["mean"] > 0.9
    assert manifest["parents"] == [wide.fingerprint]


def test_attachments_are_files_or_folders_and_stay_when_exported_again(tmp_path: Path) -> None:
    (tmp_path / "fitted" / "deep").mkdir(parents=True)
    (tmp_path / "fitted" / "deep" / "weights").write_text("1")
    (tmp_path / "losses.jsonl").write_text("{}\n")
    attachments = {"dam": tmp_path / "fitted", "losses.jsonl": tmp_path / "losses.jsonl"}
    folder = export(tiny_retriever(), tmp_path / "encoder", attachments=attachments)
    export(folder, folder, precision="int8")
    assert (folder / "dam" / "deep" / "weights").read_text() == "1"
    outputs = (read_manifest(folder) or {})["outputs"]
    assert {"dam/deep/weights", "losses.jsonl", "onnx/model_int8.onnx"} <= outputs.keys()


def test_an_encoder_that_wrote_vectors_is_not_replaced_by_another(tmp_path: Path, fresh_home: None) -> None:
    """Searches of that index stopped for good: nothing else had its encoder."""
    folder = export(tiny_retriever(), tmp_path / "encoder")
    export(tiny_retriever(seed=1), folder)
    remember_encoder(load_encoder(folder).fingerprint, folder)
    with pytest.raises(ModelError, match="its searches need it"):
        export(tiny_retriever(), folder)
    assert (
        load_encoder(export(folder, folder, precision="int8")).fingerprint
        == tiny_retriever(seed=1).fingerprint
    )


def test_the_fingerprint_follows_weights_and_use_but_not_the_export() -> None:
    first = tiny_retriever()
    assert first.fingerprint == tiny_retriever().fingerprint
    others = [
        tiny_retriever(seed=1),
        tiny_retriever(pooling="cls"),
        tiny_retriever(similarity="ip"),
        tiny_retriever(query="ask "),
    ]
    assert len({first.fingerprint, *(other.fingerprint for other in others)}) == 5


def test_a_foreign_folder_is_not_replaced(source: Path, tmp_path, capsys) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("only copy")
    assert main(["export", str(source), "--out", str(mine)]) == 1
    said = capsys.readouterr().err
    assert "is not an encoder of hybridr, so it is not replaced" in said
    assert "hint: choose another folder" in said
    assert (mine / "thesis.txt").read_text() == "only copy"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.safetensors", None, "is damaged: model.safetensors"),
        ("model.safetensors", b"short", "is damaged: model.safetensors"),
        ("modules.json", None, "has no modules.json: a sentence-transformers bi-encoder is needed"),
        ("modules.json", b"{", "is damaged: modules.json"),
        ("config.json", None, "is damaged: config.json is missing"),
        ("modules.json", b'[{"type": "x.Dense", "path": ""}]', "has the module Dense"),
        ("1_Pooling/config.json", b'{"pooling_mode": "lasttoken"}', "mean or cls over the whole input"),
    ],
)
def test_a_damaged_source_is_a_clear_error(source, tmp_path, capsys, name, change, message):
    (source / name).unlink()
    if change is not None:
        (source / name).write_bytes(change)
    assert main(["export", str(source), "--out", str(tmp_path / "out")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_names_its_result(source: Path, tmp_path, capsys) -> None:
    assert main(["export", str(source), "--out", str(tmp_path / "copy"), "--json"]) == 0
    assert '"precision": "fp32"' in capsys.readouterr().out
    assert main(["export", str(source), "--precision", "fp16"]) == 2
    assert main(["export", str(tmp_path / "nowhere")]) == 1
    assert "does not exist" in capsys.readouterr().err


DAM, REM = DDR / "dams" / "dam_source", DDR / "rems" / "rem_dense_lora192-pa4.flat.zip"


def test_the_command_joins_dam_and_rem(all_texts_of_parity: None, tmp_path: Path, capsys) -> None:
    corpus = tmp_path / "corpus.jsonl"
    lines = [{"_id": row.doc_id, "title": row.title, "text": row.text} for row in tiny_corpus(30)]
    corpus.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "encoder"
    command = ["export", "--dam", str(DAM), "--rem", str(REM), "--out", str(out), "--similarity", "cosine"]
    assert main([*command, "--precision", "int8", "--documents", str(corpus), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["folder"], found["parity"]["ndcg"]["documents"]) == (str(out), 30)
    assembled = assemble(DAM, REM, similarity="cosine")
    assert load_encoder(out).fingerprint == found["encoder"]["fingerprint"] == assembled.fingerprint
    manifest = read_manifest(out) or {}
    assert manifest["assembly"] == {"dam": "dam_source", "rem": "rem_dense_lora192-pa4.flat.zip"}
    assert main(command) == 0
    assert "nDCG@10      not measured: no documents were given" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "a FOLDER or --dam is needed, neither was given"),
        (["minilm", "--dam", str(DAM)], 2, "both, 'minilm' and"),
        (["minilm", "--rem", str(REM)], 2, "--rem goes with --dam"),
        (["minilm", "--pooling", "cls"], 2, "--pooling goes with --dam"),
        (["--dam", str(DAM), "--ranker", "colbert"], 1, "the ranker colbert needs a head"),
        (["--dam", str(DAM), "--ranker", "tensor"], 2, "there is no ranker 'tensor'"),
        (["--dam", str(DAM), "--pooling", "max"], 2, "there is no pooling 'max'"),
        (["--dam", str(DAM), "--rem", "nowhere"], 1, "there is no DAM or REM nowhere"),
        (["--dam", str(DAM), "--documents", "nowhere.jsonl"], 1, "nowhere.jsonl"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_words(arguments, code, words, tmp_path, capsys):
    assert main(["export", *arguments, "--out", str(tmp_path / "out")]) == code
    said = " ".join(capsys.readouterr().err.split())
    assert words in said
    assert "hint: " in said
    assert not (tmp_path / "out").exists()


def test_without_torch_the_command_names_the_extra(source: Path) -> None:
    damage_json(source / "config.json", model_type="mpnet")
    done = run_without_torch("export", str(source))
    assert done.returncode == 1
    assert "the kind of model 'mpnet'" in done.stderr
    assert "needs the package 'torch'" in done.stderr
    assert 'in a clone of hybridr: pip install ".[train]"' in done.stderr
