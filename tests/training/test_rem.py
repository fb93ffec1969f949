"""REM training: files, continuation, processes, rankers; after the formulas of Zhan et al. 2022 (A.8)."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridr.errors import ModelError, SettingsError
from hybridr.training.backbone import read_rem
from hybridr.training.dam import fit_dam
from hybridr.training.judged import Judged
from hybridr.training.rankers import assemble
from hybridr.training.rem import RemRun, train_rem
from hybridr.training.settings import RemSettings
from support.dam_training import dam_settings, tiny_dam
from support.places import DDR
from support.programs import Program
from support.rem_training import SETTINGS, TEXTS, main, rem_settings, set_small, vectors, write_teacher
from support.tiny import tiny_corpus


@pytest.mark.parametrize("design", ["lora", "parallel", "both"])
def test_the_loss_falls_and_the_files_give_the_trained_vectors(design, judged, dam, tmp_path, monkeypatch):
    kept = []
    write = RemRun.write
    monkeypatch.setattr(RemRun, "write", lambda run, *rest: (kept.append(run), write(run, *rest)))
    trained = train_rem(
        judged, rem_settings(dam, tmp_path / "rem", design=design, steps=40, learning_rate=2e-2, rank=16)
    )
    assert trained.loss_end < 0.9 * trained.loss_start
    ranker = kept[0].ranker
    assert np.abs(ranker.encode_documents(TEXTS) - vectors(dam, tmp_path / "rem")).max() <= 1e-6
    assert np.abs(vectors(dam, tmp_path / "rem") - vectors(dam)).max() > 1e-3
    frozen = assemble(dam).backbone.state_dict()
    for name, value in ranker.backbone.state_dict().items():
        if name.replace(".base_layer", "") in frozen:
            assert torch.equal(value, frozen[name.replace(".base_layer", "")])
    assert (assemble(dam, tmp_path / "rem").merged) == (design != "parallel")
    assert {path.name for path in (tmp_path / "rem").iterdir()} == {
        "adapter_config.json",
        "pytorch_adapter.bin",
        "losses.jsonl",
        "manifest.json",
    }


def test_other_backbones(judged: Judged, tmp_path: Path) -> None:
    for kind in ("roberta", "distilbert"):
        dam = tiny_dam(tmp_path / kind, kind)
        train_rem(judged, rem_settings(dam, tmp_path / f"{kind}-rem", design="both", steps=2))
        assert np.abs(vectors(dam, tmp_path / f"{kind}-rem") - vectors(dam)).max() > 0


def test_all_weights_are_trained_without_a_rem(judged: Judged, dam: Path, tmp_path: Path) -> None:
    trained = train_rem(judged, rem_settings(dam, tmp_path / "dr", full=True, steps=15))
    assert (trained.kind, trained.share) == ("whole", 1.0)
    assert {stat.S_IMODE(file.stat().st_mode) for file in trained.folder.iterdir()} == {0o644}
    assert trained.loss_end < trained.loss_start
    words = assemble(tmp_path / "dr").backbone.get_input_embeddings().weight
    assert not torch.equal(words, assemble(dam).backbone.get_input_embeddings().weight)
    assert assemble(tmp_path / "dr", ranker="splade").encode_queries(TEXTS).shape[1] == len(words)
    rem = train_rem(judged, rem_settings(tmp_path / "dr", tmp_path / "rem", steps=1))
    assert vectors(tmp_path / "dr", rem.folder).shape == (8, 32)


def test_a_rem_is_trained_on_with_another_dam(judged: Judged, dam: Path, tmp_path: Path) -> None:
    first = train_rem(judged, rem_settings(dam, tmp_path / "first", design="both"))
    target = tiny_dam(tmp_path / "target", seed=4)
    second = train_rem(
        judged, rem_settings(target, tmp_path / "second", rem=str(first.folder), steps=15, learning_rate=1e-2)
    )
    before, after = (read_rem(run.folder) for run in (first, second))
    assert after.record == before.record
    weights = [rem.tensors("pytorch_adapter.bin") for rem in (before, after)]
    assert weights[0].keys() == weights[1].keys()
    assert all(not torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    assert second.loss_end < second.loss_start
    wide = DDR / "rems" / "rem_dense_lora192__none"
    with pytest.raises(ModelError, match="there is no DAM or REM"):
        train_rem(judged, rem_settings(target, tmp_path / "third", rem=str(wide)))
    other = tiny_dam(tmp_path / "distilbert", "distilbert")
    with pytest.raises(ModelError, match="kind bert; this one is distilbert"):
        train_rem(judged, rem_settings(other, tmp_path / "third", rem=str(first.folder)))


def test_what_coco_contrasted_by_cls_is_not_trained_on_by_mean(judged: Judged, tmp_path: Path) -> None:
    asked = {"objective": "coco", "steps": 1, "held_out": 0}
    dam = fit_dam(tiny_corpus(40), dam_settings(tiny_dam(tmp_path / "b"), tmp_path / "dam", **asked)).folder
    with pytest.raises(SettingsError, match="was trained with pooling cls, not mean") as refused:
        train_rem(judged, rem_settings(dam, tmp_path / "rem"))
    assert refused.value.hint == "[rem] pooling = 'cls'"
    assert train_rem(judged, rem_settings(dam, tmp_path / "rem", pooling="cls", steps=1)).steps == 1


def test_two_processes_are_one_with_the_double_batch(judged: Judged, toy: Path, dam: Path, tmp_path) -> None:
    """By distillation; by contrast as the methods do (`test_rem_methods.py`)."""
    common = SETTINGS | {"dam": str(dam), "dropout": False, "steps": 2, "loss": "distil"}
    common["teacher"] = str(write_teacher(tmp_path / "teacher.tsv", judged))
    one = train_rem(judged, RemSettings(**common | {"out": tmp_path / "one"}))
    given = common | {"batch_size": 4, "out": str(tmp_path / "two")}
    assert Program(main, str(toy), given, ranks=2).wait() == [0, 0]
    alone, together = (read_rem(tmp_path / name).tensors("pytorch_adapter.bin") for name in ("one", "two"))
    assert max(float((value - together[key]).abs().max()) for key, value in alone.items()) <= 1e-5
    lines = (tmp_path / "two" / "losses.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == pytest.approx(one.losses, abs=1e-5)


def test_a_finished_run_is_not_repeated(judged: Judged, dam: Path, tmp_path: Path) -> None:
    given = rem_settings(dam, tmp_path / "rem", steps=3)
    assert not train_rem(judged, given).reused
    assert train_rem(judged, given).reused
    assert not train_rem(judged, given.model_copy(update={"seed": 1})).reused
    (tmp_path / "rem" / "pytorch_adapter.bin").write_bytes(b"")
    assert not train_rem(judged, given.model_copy(update={"seed": 1})).reused
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ModelError, match="is not replaced"):
        train_rem(judged, rem_settings(dam, tmp_path / "mine"))


def answers(ranker: Any, judged: Judged) -> np.ndarray:
    texts = list(judged.queries.values())[:6]
    if ranker.ranker == "rerank":
        return ranker.score([(text, other) for text in texts for other in TEXTS])
    return ranker.encode_documents(TEXTS)


@pytest.mark.parametrize(
    ("kind", "full"),
    [
        *((kind, False) for kind in ("unicoil", "splade", "colbert", "rerank")),
        ("splade", True),
        ("colbert", True),
    ],
)
def test_the_other_rankers(kind: str, full: bool, judged: Judged, dam: Path, tmp_path, monkeypatch) -> None:
    kept = []
    write = RemRun.write
    monkeypatch.setattr(RemRun, "write", lambda run, *rest: (kept.append(run), write(run, *rest)))
    if kind == "rerank":  # what a random BERT can learn of pairs: one document is always the answer
        positives = dict.fromkeys(judged.queries, ("d0",))
        judged = replace(judged, positives=positives, fingerprint="always d0")
    steps = 40 if kind == "splade" else 20
    given = rem_settings(dam, tmp_path / "rem", ranker=kind, steps=steps, learning_rate=1e-2, full=full)
    trained = train_rem(judged, given)
    assert trained.loss_end < 0.97 * trained.loss_start
    opened = assemble(*((given.out,) if full else (dam, given.out)), ranker=kind, merge=False)
    assert np.abs(answers(opened, judged) - answers(kept[0].ranker, judged)).max() <= 1e-6
    if not full:
        target = tiny_dam(tmp_path / "target", seed=4)
        second = rem_settings(target, tmp_path / "second", ranker=kind, steps=2, rem=str(given.out))
        assert train_rem(judged, second).parameters == trained.parameters
        if kind == "rerank":  # its files do not say what they are for
            return
        with pytest.raises(ModelError, match="was made for the ranker"):
            assemble(dam, given.out, ranker="unicoil" if kind == "splade" else "splade")


def test_settings_that_contradict_each_other(judged: Judged, dam: Path, tmp_path: Path) -> None:
    for values, message in (
        ({"full": True, "rem": "x"}, "--full trains all weights"),
        ({"loss": "distil"}, "--teacher"),
        ({"teacher": Path("x.tsv")}, "--teacher"),
        ({"ranker": "colbert", "similarity": "cosine"}, "for the dense ranker, not for colbert"),
        ({"ranker": "rerank", "loss": "distil", "teacher": Path("x.tsv")}, "by --loss contrast only"),
        ({"ranker": "rerank", "negatives_per_query": 0}, "negatives_per_query above 0"),
        ({"negatives": tmp_path / "none.tsv"}, "there is no file"),
    ):
        with pytest.raises(SettingsError, match=message):
            train_rem(judged, rem_settings(dam, tmp_path / "rem", **values))


def test_the_commands(toy: Path, dam: Path, tmp_path, capsys, monkeypatch) -> None:
    import hybridr_cli

    common = ["--beir", str(toy), "--json"]
    set_small(monkeypatch)
    train = ["rem", "train", "--dam", str(dam), "--out", str(tmp_path / "rem"), "--steps", "3"]
    monkeypatch.setenv("HYBRIDR_REM_SIMILARITY", "cosine")
    monkeypatch.setenv("HYBRIDR_REM_MINED", "4")
    assert hybridr_cli.main([*train, *common]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert (trained["kind"], trained["steps"], trained["queries"]) == ("rem", 3, 40)
    assert assemble(dam, tmp_path / "rem").similarity == "cosine"  # as it was trained
    assert hybridr_cli.main([*train, "--beir", str(toy)]) == 0
    shown = capsys.readouterr().out
    assert "from an earlier run" in shown
    assert f"--rem {tmp_path / 'rem'}" in shown
    assert hybridr_cli.main(train) == 2
    assert "--beir FOLDER" in capsys.readouterr().err
