"""iDRO against golden/losses and by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridr.training.objectives.idro import IdroRule, group_means
from support.golden_losses import assert_close, golden


def products(gradients: torch.Tensor) -> torch.Tensor:
    return gradients @ gradients.T


@pytest.mark.parametrize("name", ["cocodr_idro_paper", "cocodr_idro_sharp"])
def test_idro_over_three_steps(name: str) -> None:
    case = golden(name)
    idro = IdroRule(*(float(case[key]) for key in ("alpha", "ema", "rho", "eps")))
    weights = torch.ones(int(case["n_groups"]))
    for step in range(3):
        assert_close(weights, case[f"h_before_{step}"])
        means, sizes = group_means(case[f"losses_{step}"], case[f"groups_{step}"], len(weights))
        assert_close(means, case[f"group_loss_{step}"])
        assert_close(sizes, case[f"group_count_{step}"])
        assert_close(idro.loss(means, weights), case[f"robust_loss_{step}"])
        weights = idro.step(weights, means, sizes, products(case[f"grads_{step}"]))
        assert_close(weights, case[f"h_after_{step}"])


def test_idro_of_the_paper_by_hand() -> None:
    idro = IdroRule(power=1.0, rate=0.5, variant="paper")
    weights = idro.step(
        torch.tensor([0.5, 0.5]),
        torch.tensor([1.0, 2.0]),
        torch.ones(2),
        products(torch.tensor([[1.0, 0.0], [1.0, 1.0]])),
    )
    gains = np.array([1 + 2, 2 + 8]) * 0.5  # sums over i of l_i l_j <g_i, g_j>
    expected = np.exp(gains) / np.exp(gains).sum()
    assert_close(weights, torch.tensor(expected, dtype=torch.float32))
    loss = idro.loss(torch.tensor([1.0, 2.0]), torch.tensor([0.25, 0.75]))
    assert float(loss) == pytest.approx(1 * 0.25 * 1 + 2 * 0.75 * 2)
