"""The side by side measurement, on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import hybridr_bench.masked_lm as speed
import run
from hybridr.assembly.backbone import read_dam
from hybridr.files.formats import write_beir
from hybridr.records import Query
from support.dam_training import tiny_dam
from support.tiny import tiny_corpus


@pytest.fixture
def race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> speed.Race:
    monkeypatch.setattr(speed, "LEAST_ROUNDS", 12)  # as many on every machine, however busy
    folder = tiny_dam(tmp_path / "base")
    found = speed.race(
        tiny_corpus(200),
        sizes=("tiny",),
        batch_size=16,
        max_tokens=40,
        seconds=0.1,
        dams={"tiny": lambda: read_dam(folder)},
    )
    return found[0]


def test_all_lanes_take_the_same_steps_and_learn_the_same(race: speed.Race) -> None:
    names = [lane.name for lane in race.lanes]
    assert names[:2] == ["Trainer fp32", "hybridr fp32"]
    assert race.steps == speed.LEAST_ROUNDS + speed.WARM_UP_ROUNDS
    plain, ours = race.lanes[:2]
    assert len(plain.ratios) == len(ours.ratios) == race.steps - speed.WARM_UP_ROUNDS
    assert set(plain.ratios) == {1.0}
    assert min(ours.ratios) <= race.times(ours) <= max(ours.ratios)
    tokens = 16 * 40 * len(plain.ratios)
    assert 0.5 * tokens < plain.tokens <= tokens
    assert abs(plain.tokens - ours.tokens) < 0.1 * tokens
    assert race.unseen_loss_start - plain.unseen_loss > 0.05
    for lane in race.lanes[1:]:
        assert abs(lane.unseen_loss - plain.unseen_loss) < 0.5 * (race.unseen_loss_start - plain.unseen_loss)


def test_the_plain_model_is_the_same_with_dropout(tmp_path: Path) -> None:
    model = read_dam(tiny_dam(tmp_path / "base")).model
    plain = speed.plain_model(model)
    assert plain.config._attn_implementation == "sdpa"
    assert {module.p for module in plain.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}
    assert all(torch.equal(value, plain.state_dict()[name]) for name, value in model.state_dict().items())


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_dam(tmp_path / "base")
    monkeypatch.setattr(speed, "packaged_dam", lambda: read_dam(folder))
    write_beir(tmp_path / "beir", tiny_corpus(60), [Query("q", "balan")], {"q": {"d1": 1}})
    command = ["speed", "adapt", "--json", str(tmp_path / "figures.json"), "--beir", str(tmp_path / "beir")]
    assert run.main([*command, "--sizes", "MiniLM", "--seconds", "1"]) == 0
    found = json.loads((tmp_path / "figures.json").read_text())
    assert found["races"][0]["lanes"][1]["times"] > 0
    assert found["settings"] == {"batch_size": 16, "max_tokens": 190, "corpus": "beir"}
    assert found["machine"]["torch"] == torch.__version__
    assert "| MiniLM | Trainer fp32 |" in capsys.readouterr().out
