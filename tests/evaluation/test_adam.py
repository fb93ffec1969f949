"""Adam of numpy against torch's."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.evaluation.adam import Adam


def normal(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, (2, 3))


def test_adam_equals_torchs() -> None:
    torch = pytest.importorskip("torch")
    start, gradients = normal(1), [normal(seed) for seed in range(5)]
    parameter = torch.nn.Parameter(torch.tensor(start))
    theirs, ours = torch.optim.Adam([parameter], lr=5e-4), Adam(start, 5e-4)
    for gradient in gradients:
        parameter.grad = torch.tensor(gradient)
        theirs.step()
        ours.step(gradient)
    assert ours.weights == pytest.approx(parameter.detach().numpy(), abs=1e-12)
