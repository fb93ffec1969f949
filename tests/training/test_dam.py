"""Masked-LM training as a whole: it opens everywhere, goes on exactly, and refuses in words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import transformers
from safetensors.torch import save_file

import hybridr_cli
from hybridr.encoders.export.exporting import export
from hybridr.errors import DataError, DownloadError, ModelError
from hybridr.files.local import read_manifest
from hybridr.records import Document
from hybridr.relevance.corpus import CorpusFile
from hybridr.training import loop
from hybridr.training.backbone import read_dam
from hybridr.training.dam import DamFit, fit_dam
from hybridr.training.rankers import assemble
from support.dam_training import dam_settings, main, same, tiny_dam, weights_of
from support.programs import Program, killed_at
from support.tiny import WORDS, tiny_corpus, tiny_retriever, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def whole(dam: Path, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> DamFit:
    """Give what comes of the usual settings; nobody changes its folder."""
    return fit_dam(tiny_corpus(120), dam_settings(dam, tmp_path_factory.mktemp("whole") / "dam"))


# --- the whole


def test_training_is_real_and_opens_everywhere(dam: Path, tmp_path: Path) -> None:
    found = fit_dam(
        tiny_corpus(200), dam_settings(dam, tmp_path / "dam", steps=25, learning_rate=5e-3, held_out=40)
    )
    assert (found.steps, found.documents, found.fresh_head, found.reused) == (25, 160, False, False)
    assert found.unseen_loss_end < found.unseen_loss_start - 0.1
    assert found.loss_end < found.loss_start
    assert [path.name for path in tmp_path.iterdir()] == ["dam"]
    assert not (found.folder / ".training").exists()
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(found.folder, output_loading_info=True)
    assert not any(report.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(found.folder)
    assert tokenizer("balan").input_ids == [2, 5, 3]
    assert tokenizer.mask_token_id == 4
    opened = read_dam(found.folder)
    assert opened.has_language_head
    before, after = read_dam(dam).model.state_dict(), opened.model.state_dict()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in after.items())
    assert not any(torch.equal(before[name], after[name]) for name in before if "weight" in name)
    assert assemble(found.folder).encode_documents(["balan bason"]).shape == (1, 32)


def test_a_random_sample_of_the_corpus_is_trained_on(dam: Path, tmp_path: Path) -> None:
    found = fit_dam(tiny_corpus(60), dam_settings(dam, tmp_path / "dam", steps=1, max_documents=30))
    entry = (read_manifest(found.folder) or {})["dam"]
    assert (found.documents, entry["read"]) == (30 - 6, 60)  # a fifth is held out


def test_the_folder_tells_its_history(whole: DamFit) -> None:
    found, manifest = whole, read_manifest(whole.folder) or {}
    assert (manifest["stage"], manifest["settings"]["learning_rate"]) == ("dam", 1e-3)
    assert manifest["inputs"]["base"]["name"] == "tiny"
    assert manifest["parents"] == [manifest["inputs"]["base"]["weights"]]
    assert manifest["dam"]["losses"] == list(found.losses)
    assert len(found.losses) == 12
    assert set(manifest["outputs"]) >= {"config.json", "model.safetensors", "tokenizer.json", "losses.jsonl"}
    logged = [json.loads(line) for line in (found.folder / "losses.jsonl").read_text().splitlines()]
    assert [entry["loss"] for entry in logged] == list(found.losses)
    own_words = {word for document in tiny_corpus(120) for word in document.text.split()}
    assert not [word for word in own_words if f'"{word}' in (found.folder / "manifest.json").read_text()]


def test_a_finished_run_is_known_by_its_texts(dam: Path, tmp_path: Path) -> None:
    first = fit_dam(tiny_corpus(120), dam_settings(dam, tmp_path / "dam"))
    written = (first.folder / "manifest.json").stat().st_mtime_ns
    again = fit_dam(tiny_corpus(120)[::-1], dam_settings(dam, tmp_path / "dam"))
    assert again.reused
    assert again.losses == first.losses
    assert (first.folder / "manifest.json").stat().st_mtime_ns == written
    assert not (first.folder / ".training").exists()
    assert not fit_dam(tiny_corpus(121), dam_settings(dam, tmp_path / "dam")).reused
    other = fit_dam(tiny_corpus(121), dam_settings(dam, tmp_path / "dam", seed=3))
    assert not other.reused
    (other.folder / "model.safetensors").write_bytes(b"")
    assert not fit_dam(tiny_corpus(121), dam_settings(dam, tmp_path / "dam", seed=3)).reused


def test_an_unfinished_run_does_not_read_its_source_again(dam, whole, tmp_path):

    def stop(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if stage == "train" and done == 8:
            raise KeyboardInterrupt

    file = tmp_path / "corpus.jsonl"
    records = [{"_id": d.doc_id, "title": d.title, "text": d.text} for d in tiny_corpus(120)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    source, out = CorpusFile(file), tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        fit_dam(source, dam_settings(dam, out), progress=stop)
    stages: list[str] = []
    resumed = fit_dam(source, dam_settings(dam, out), progress=lambda stage, *_: stages.append(stage))
    assert resumed.resumed_from == 6
    assert "read" not in stages
    assert same(resumed.folder, whole.folder)
    with pytest.raises(KeyboardInterrupt):
        fit_dam(source, dam_settings(dam, tmp_path / "changed"), progress=stop)
    file.write_text("".join(json.dumps(record) + "\n" for record in records[:100]))
    assert fit_dam(source, dam_settings(dam, tmp_path / "changed")).documents == 80  # another file: read anew


COCO: dict[str, Any] = {"objective": "coco", "head_layers": 1}
LEFT = {"mlm": ["model.safetensors"], "coco": ["model.safetensors", "condenser.safetensors"]}


@pytest.mark.parametrize("changes", [{"objective": "mlm"}, COCO], ids=["mlm", "coco"])
def test_a_run_killed_by_sigkill_ends_with_the_same_weights(changes, dam, whole, tmp_path):
    if changes["objective"] == "coco":
        whole = fit_dam(tiny_corpus(120), dam_settings(dam, tmp_path / "whole", **changes))
    step = int(np.random.default_rng().integers(1, 12))
    out = tmp_path / "killed"
    arguments = {"base": str(dam), "out": str(out)} | changes
    killed_at(f"train {step}", main, arguments)
    assert (out / ".training").is_dir()
    assert Program(main, arguments).wait() == [0]
    for file in LEFT[changes["objective"]]:
        assert same(out, whole.folder, file), f"{file}, killed at step {step}"
    assert (read_manifest(out) or {})["dam"]["resumed_from"] <= step


@pytest.mark.parametrize("changes", [{"objective": "mlm"}, COCO | {"steps": 4}], ids=["mlm", "coco"])
def test_two_processes_give_the_weights_of_one(changes: dict[str, Any], dam, whole, tmp_path) -> None:
    if changes["objective"] == "coco":
        whole = fit_dam(tiny_corpus(120), dam_settings(dam, tmp_path / "one", **changes))
    out = tmp_path / "two"
    assert Program(main, {"base": str(dam), "out": str(out)} | changes, ranks=2).wait() == [0, 0]
    entry = (read_manifest(out) or {})["dam"]
    assert (entry["processes"], entry["losses"]) == (2, pytest.approx(whole.losses, abs=1e-4))
    assert entry["unseen_loss"] == pytest.approx([whole.unseen_loss_start, whole.unseen_loss_end], abs=1e-4)
    if changes["objective"] == "mlm":  # biases of coco's keys have gradients of rounding alone
        alone, together = weights_of(whole.folder), weights_of(out)
        gaps = {name: float((alone[name] - together[name]).abs().max()) for name in alone}
        assert max(gaps.values()) < 1e-5, max(gaps.items(), key=lambda item: item[1])


def test_a_base_without_a_head_gets_a_seeded_one(tmp_path: Path) -> None:
    folder = export(tiny_retriever(), tmp_path / "retriever")
    runs = [fit_dam(tiny_corpus(120), dam_settings(folder, tmp_path / name, steps=3)) for name in ("a", "b")]
    assert runs[0].fresh_head
    assert same(runs[0].folder, runs[1].folder)
    assert (read_manifest(runs[0].folder) or {})["dam"]["fresh_head"] is True
    other = fit_dam(tiny_corpus(120), dam_settings(folder, tmp_path / "c", steps=3, seed=4))
    assert not same(other.folder, runs[0].folder)


# --- refusals


def test_no_usable_text_is_refused(dam: Path, tmp_path: Path) -> None:
    for documents in ([], [Document("a", ""), Document("b", "  ")]):
        with pytest.raises(DataError, match="hold no usable text"):
            fit_dam(documents, dam_settings(dam, tmp_path / "dam"))
    with pytest.raises(DataError, match="1 different texts; 2 are needed"):
        fit_dam([Document("a", "balan")] * 9, dam_settings(dam, tmp_path / "dam"))


def test_a_strange_vocabulary_is_refused(dam: Path, tmp_path: Path) -> None:
    strange = [Document(str(i), f"{'字' * (i + 1)} wholly unknown words") for i in range(50)]
    with pytest.raises(DataError, match="tokenizer of tiny does not know 100% of the tokens"):
        fit_dam(strange, dam_settings(dam, tmp_path / "dam"))
    folder = tiny_dam(tmp_path / "base")
    (folder / "tokenizer.json").write_text(tiny_tokenizer([*WORDS, "more", "words"]))
    with pytest.raises(ModelError, match="embeddings"):
        fit_dam(tiny_corpus(50), dam_settings(folder, tmp_path / "dam"))
    definition = json.loads(tiny_tokenizer())
    definition["model"]["vocab"].pop("[MASK]")
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(ModelError, match="no mask token"):
        fit_dam(tiny_corpus(50), dam_settings(folder, tmp_path / "dam"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        fit_dam(tiny_corpus(50), dam_settings(folder, tmp_path / "dam"))


def test_too_little_disk_is_said_before_anything_is_read(dam: Path, tmp_path, monkeypatch) -> None:
    usage = type(loop.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(loop.shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))

    def unread() -> Iterator[Document]:
        raise AssertionError("it was read")
        yield

    with pytest.raises(DownloadError, match="0 MB free; tokens and checkpoints need about 1 MB"):
        fit_dam(unread(), dam_settings(dam, tmp_path / "dam"))


def test_too_little_memory_is_said_before_training(dam: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 1_000_000}))
    steps: list[str] = []
    with pytest.raises(ModelError, match="1 MB of memory are free on cpu"):
        fit_dam(
            tiny_corpus(50), dam_settings(dam, tmp_path / "dam"), progress=lambda *told: steps.append(told[0])
        )
    assert "train" not in steps


def test_a_loss_that_is_not_finite_stops(dam: Path, tmp_path: Path) -> None:
    folder = tiny_dam(tmp_path / "base")
    weights = weights_of(folder)
    weights["cls.predictions.transform.LayerNorm.weight"] *= 3e38
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError, match=r"the loss is (nan|inf) at step 1; most likely the base model or its head is broken"
    ):
        fit_dam(tiny_corpus(50), dam_settings(folder, tmp_path / "dam"))
    assert not (tmp_path / "dam" / "model.safetensors").exists()


def test_another_folder_is_not_replaced(dam: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ModelError, match="is not a DAM that hybridr trained"):
        fit_dam(tiny_corpus(50), dam_settings(dam, tmp_path / "mine"))
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


# --- the command


def test_the_command(dam: Path, tmp_path, capsys, monkeypatch) -> None:
    file = tmp_path / "corpus.tsv"
    file.write_text("".join(f"{d.doc_id}\t{d.contents}\n" for d in tiny_corpus(60)))
    places = ["--file", str(file), "--base", str(dam), "--out", str(tmp_path / "dam")]
    command = ["dam", "train", *places, *"--steps 3 --batch-size 8".split()]
    monkeypatch.setenv("HYBRIDR_DAM_HELD_OUT", "10")
    monkeypatch.setenv("HYBRIDR_DAM_PRECISION", "fp32")
    assert hybridr_cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["documents"], found["reused"]) == (3, 50, False)
    assert hybridr_cli.main(command) == 0
    told = capsys.readouterr()
    assert "(from an earlier run)" in told.out
    assert "hybridr adapt --base" in told.out
    assert "read: 60" in told.err


def test_the_command_needs_one_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hybridr_cli.main(["dam", "train"]) == 2
    assert hybridr_cli.main(["dam", "train", "--beir", "a", "--file", "b"]) == 2
    assert "one source of documents is needed" in capsys.readouterr().err
