"""The losses of COCO-DR against golden/losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridr.adaptation.objectives import coco
from support.golden_losses import assert_close, golden


def test_sequence_contrastive() -> None:
    case = golden("coco_sequence_contrastive")
    found = coco.sequence_contrastive(case["cls"])
    assert_close(found, case["per_row"])
    assert_close(found.mean(), case["loss"])


@pytest.mark.parametrize("name", ["cocodr_idro_paper", "cocodr_idro_sharp"])
def test_idro_over_three_steps(name: str) -> None:
    case = golden(name)
    idro = coco.Idro(*(float(case[key]) for key in ("alpha", "ema", "rho", "eps")))
    weights = torch.ones(int(case["n_groups"]))
    for step in range(3):
        assert_close(weights, case[f"h_before_{step}"])
        means, sizes = coco.group_means(case[f"losses_{step}"], case[f"groups_{step}"], len(weights))
        assert_close(means, case[f"group_loss_{step}"])
        assert_close(sizes, case[f"group_count_{step}"])
        assert_close(idro.loss(means, weights), case[f"robust_loss_{step}"])
        weights = idro.step(weights, means, sizes, case[f"grads_{step}"])
        assert_close(weights, case[f"h_after_{step}"])


def test_idro_of_the_paper_by_hand() -> None:
    idro = coco.Idro(power=1.0, rate=0.5, variant="paper")
    weights = idro.step(
        torch.tensor([0.5, 0.5]),
        torch.tensor([1.0, 2.0]),
        torch.ones(2),
        torch.tensor([[1.0, 0.0], [1.0, 1.0]]),
    )
    gains = np.array([1 + 2, 2 + 8]) * 0.5  # sums over i of l_i l_j <g_i, g_j>
    expected = np.exp(gains) / np.exp(gains).sum()
    assert_close(weights, torch.tensor(expected, dtype=torch.float32))
    loss = idro.loss(torch.tensor([1.0, 2.0]), torch.tensor([0.25, 0.75]))
    assert float(loss) == pytest.approx(1 * 0.25 * 1 + 2 * 0.75 * 2)


def test_greedy_dro_over_three_steps() -> None:
    case = golden("cocodr_groupdro_greedy")
    greedy = coco.GreedyDro(*(float(case[key]) for key in ("alpha", "ema", "eps")))
    weights, means, shares = torch.ones(5), torch.zeros(5), torch.ones(5)
    for step in range(3):
        assert_close(weights, case[f"h_before_{step}"])
        sample, groups = case[f"losses_{step}"], case[f"groups_{step}"]
        assert_close(greedy.loss(sample, groups, weights), case[f"robust_loss_{step}"])
        means, shares, weights = greedy.step(means, shares, *coco.group_means(sample, groups, 5))
        assert_close(weights, case[f"h_after_{step}"])
