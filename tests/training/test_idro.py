"""iDRO of the paper by hand; as released: `test_objectives_traces.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridr.training.objectives.idro import IdroRule
from support.golden_losses import assert_close


def products(gradients: torch.Tensor) -> torch.Tensor:
    return gradients @ gradients.T


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
