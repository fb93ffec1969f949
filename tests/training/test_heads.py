"""The projection head."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridr.training.objectives.heads import ProjectionHead


def test_a_projected_vector_by_hand() -> None:
    head = ProjectionHead(2)
    with torch.no_grad():
        head.linear.weight.copy_(torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        head.linear.bias.copy_(torch.tensor([0.001, 0.0]))
        head.norm.weight.copy_(torch.tensor([2.0, 1.0]))
        head.norm.bias.copy_(torch.tensor([0.0, 0.5]))
    (vector,) = head(torch.tensor([[0.002, 0.005]])).tolist()  # linear gives .006 and .002
    scaled = 0.002 / np.sqrt(0.002**2 + 1e-5)  # so small that the epsilon shows
    assert vector == pytest.approx([2 * scaled, 0.5 - scaled], abs=1e-6)
    assert [*head.state_dict()] == ["linear.weight", "linear.bias", "norm.weight", "norm.bias"]
