"""The family of objectives: members are found by their folder, also one that is dropped into it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr.errors import SettingsError
from hybridr.families import load_member, member_names
from hybridr.files.local import read_manifest
from hybridr.training import objectives
from hybridr.training.dam import fit_dam
from hybridr.training.judged import read_judged_beir
from hybridr.training.rem import train_rem
from hybridr.training.settings import OBJECTIVES, AdaptSettings, DamSettings, RemSettings
from hybridr_cli import main
from support.dam_training import tiny_dam
from support.rem_training import SETTINGS, write_toy
from support.tiny import tiny_corpus

FILES = {
    "throwaway_mild": '''
"""Masked-LM training at a tenth of the learning rate."""

from dataclasses import replace

from hybridr.training.objectives.mlm import MaskedLm


class Mild(MaskedLm):
    name = "throwaway_mild"
    on = "documents"
    title = "mild"

    def __init__(self, *given):
        super().__init__(*given)
        self.recipe = replace(self.recipe, learning_rate=self.recipe.learning_rate / 10)
''',
    "throwaway_halved": '''
"""Half the contrastive loss."""

from hybridr.training.objectives.contrast import Contrastive


class Halved(Contrastive):
    name = "throwaway_halved"
    on = "labels"

    def query_losses(self, *given):
        return super().query_losses(*given) / 2
''',
}


@pytest.fixture
def dropped_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lay two more files into the family's folder, so to speak."""
    folder = tmp_path / "more"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setattr(objectives, "__path__", [*objectives.__path__, str(folder)])
    load_member.cache_clear()
    yield
    load_member.cache_clear()
    for name in FILES:
        sys.modules.pop(f"hybridr.{OBJECTIVES}.{name}", None)


def test_what_can_be_chosen_is_what_the_files_say() -> None:
    documents, labels = (member_names(OBJECTIVES, on=on) for on in ("documents", "labels"))
    assert set(documents) >= {"mlm", "coco"}
    assert set(labels) >= {"contrast", "distil"}
    assert not set(documents) & set(labels)
    assert "pairs" in member_names(OBJECTIVES, on="pairs")
    for name in (*documents, *labels, "pairs"):
        assert load_member(OBJECTIVES, name).name == name


def test_another_name_is_refused_with_the_choices() -> None:
    with pytest.raises(SettingsError, match="objective: input .*'ensemble'.*'coco'.*'mlm'.*, got 'labelled'"):
        AdaptSettings(objective="labelled")
    with pytest.raises(SettingsError, match="loss: input should be .*'contrast'.*'distil'.*, got 'pairs'"):
        RemSettings(dam="x", loss="pairs")
    with pytest.raises(SettingsError, match="has no class with name = 'labelled'"):
        load_member(OBJECTIVES, "labelled")


@pytest.mark.usefixtures("dropped_in")
def test_a_new_file_is_a_new_choice(capsys: pytest.CaptureFixture[str]) -> None:
    assert AdaptSettings(objective="throwaway_mild").objective == "throwaway_mild"
    assert RemSettings(dam="x", loss="throwaway_halved").loss == "throwaway_halved"
    assert main(["adapt", "--index", "books", "--objective", "nose"]) == SettingsError.exit_code
    said = capsys.readouterr().err
    assert "got 'nose'" in said
    assert all(f"'{name}'" in said for name in ("mlm", "throwaway_mild"))


@pytest.mark.usefixtures("dropped_in")
def test_a_dam_is_fitted_by_a_new_file(tmp_path: Path) -> None:
    settings = DamSettings(
        out=tmp_path / "out", base=str(tiny_dam(tmp_path / "base")), steps=2, batch_size=8, precision="fp32"
    )
    mild = fit_dam(tiny_corpus(60), settings.model_copy(update={"objective": "throwaway_mild"}))
    usual = fit_dam(tiny_corpus(60), settings)
    assert not usual.reused
    assert mild.loss_start == usual.loss_start
    assert mild.loss_end != usual.loss_end
    assert (read_manifest(usual.folder) or {})["dam"]["objective"] == "masked-lm"


@pytest.mark.usefixtures("dropped_in")
def test_a_rem_is_trained_by_a_new_file(tmp_path: Path) -> None:
    judged = read_judged_beir(write_toy(tmp_path / "beir"))
    given = SETTINGS | {"dam": str(tiny_dam(tmp_path / "base")), "steps": 1, "dropout": False}
    whole, half = (
        train_rem(judged, RemSettings(**given | {"out": tmp_path / loss, "loss": loss}))
        for loss in ("contrast", "throwaway_halved")
    )
    assert half.loss_start == pytest.approx(whole.loss_start / 2)
