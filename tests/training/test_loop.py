from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from hybridr.encoders.machine import Cpu
from hybridr.errors import ModelError
from hybridr.training import loop as precision
from hybridr.training.loop import Processes, choose_precision
from hybridr.training.objectives import Recipe
from hybridr.training.runs import LOSSES_FILE
from support.places import SUPPORT
from support.programs import Program
from support.toy_training import RECIPE, Regression, main, trained


def lived(out: Path, died_at: int = 0, *, dropout: bool = True) -> int | None:
    """Train in a process of its own, and give how it ended."""
    out.mkdir(exist_ok=True)
    [code] = Program(main, str(out), died_at, dropout).wait()
    return code


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    out = tmp_path_factory.mktemp("undisturbed")
    assert lived(out) == 0
    return load_file(out / "trained.safetensors")


@pytest.mark.parametrize("died_at", [6, 12])
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, undisturbed, died_at):
    assert lived(tmp_path, died_at) == -signal.SIGKILL
    assert not (tmp_path / "trained.safetensors").exists()
    assert lived(tmp_path) == 0
    continued = load_file(tmp_path / "trained.safetensors")
    assert continued.pop("resumed_from").item() == (died_at - 1) // 2 * 2
    for name, value in continued.items():
        assert torch.equal(value, undisturbed[name]), name
    logged = [json.loads(line) for line in (tmp_path / LOSSES_FILE).read_text().splitlines()]
    assert [entry["step"] for entry in logged] == list(range(1, 13))


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Started by torchrun, as `accelerate launch` does on GPUs; on processors that starts one only."""
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert lived(alone, dropout=False) == 0
    together.mkdir()
    launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [sys.executable, "-m", *launcher, str(SUPPORT / "toy_training.py")]
    done = subprocess.run(
        [*command, str(together), "0", "false"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (load_file(out / "trained.safetensors") for out in (alone, together))
    assert (one.pop("processes").item(), two.pop("processes").item()) == (1, 2)
    left = [(together / f"threads.{rank}").read_text() for rank in range(2)]
    assert left == ["1", "1"], "threads that outlive Python can abort the process"
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-5, atol=1e-6)


def test_micro_batches_add_up_to_the_whole_batch(tmp_path: Path) -> None:
    class Whole(Regression):
        def parts(self, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            rows, targets = zip(*super().parts(step), strict=True)
            return [(torch.cat(rows), torch.cat(targets))]

    cut = trained(tmp_path / "cut", RECIPE)
    whole = trained(tmp_path / "whole", RECIPE, Whole(Processes("cpu"), dropout=False))
    for name, weight in cut.weights.items():
        torch.testing.assert_close(weight, whole.weights[name], rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_not_finite_stops_with_the_step(tmp_path: Path) -> None:
    class Broken(Regression):
        def parts(self, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
            return [(rows / (step != 5), targets) for rows, targets in super().parts(step)]

    with pytest.raises(ModelError, match=r"is (nan|inf) at step 5; most likely training diverged"):
        trained(tmp_path, RECIPE, Broken(Processes("cpu"), dropout=False))


def test_the_rate_rises_and_then_stays_or_falls() -> None:
    recipe = Recipe(steps=10, learning_rate=1.0, seed=0, warm_up=4)
    assert [recipe.rate(step) for step in (1, 4, 5, 10)] == [0.25, 1, 1, 1]
    falling = replace(recipe, decay=True)
    assert [falling.rate(step) for step in (4, 5, 10)] == pytest.approx([1, 6 / 7, 1 / 7])


def test_weight_decay_spares_vectors(tmp_path: Path) -> None:
    class Still(Regression):
        def loss(self, part: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
            return super().loss(part) * 0

    objective = Still(Processes("cpu"), dropout=False)
    before = {name: weight.detach().clone() for name, weight in objective.weights.items()}
    trained(tmp_path, replace(RECIPE, weight_decay=0.5), objective)
    for name, weight in objective.weights.items():
        assert torch.equal(weight, before[name]) == (weight.ndim == 1), name


def test_bf16_keeps_the_weights_in_fp32_and_comes_near(tmp_path: Path) -> None:
    processor = torch.device("cpu")
    if choose_precision("auto", processor) == "fp32":
        assert choose_precision("fp32", processor) == "fp32"
        return
    near, exact = (trained(tmp_path / kind, replace(RECIPE, precision=kind)) for kind in ("bf16", "fp32"))
    for name, weight in near.weights.items():
        assert weight.dtype == torch.float32
        torch.testing.assert_close(weight, exact.weights[name], rtol=0.1, atol=0.05)


def test_bf16_is_refused_where_it_would_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    processor = torch.device("cpu")
    monkeypatch.setattr(precision, "read_cpu", lambda: Cpu("odd", frozenset({"amx_tile"})))
    monkeypatch.setattr(precision, "amx_works", lambda cpu: False)
    assert choose_precision("auto", processor) == "fp32"
    with pytest.raises(ModelError, match="would be killed"):
        choose_precision("bf16", processor)
    monkeypatch.setattr(precision, "amx_works", lambda cpu: True)
    assert choose_precision("auto", processor) == "bf16"
    monkeypatch.setattr(precision, "read_cpu", lambda: Cpu("old", frozenset()))
    assert choose_precision("auto", processor) == "fp32"
