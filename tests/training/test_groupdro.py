"""GroupDRO against golden/losses."""

from __future__ import annotations

import torch

from hybridr.training.objectives.groupdro import GreedyDro
from hybridr.training.objectives.idro import group_means
from support.golden_losses import assert_close, golden


def test_greedy_dro_over_three_steps() -> None:
    case = golden("cocodr_groupdro_greedy")
    greedy = GreedyDro(*(float(case[key]) for key in ("alpha", "ema", "eps")))
    weights, means, shares = torch.ones(5), torch.zeros(5), torch.ones(5)
    for step in range(3):
        assert_close(weights, case[f"h_before_{step}"])
        sample, groups = case[f"losses_{step}"], case[f"groups_{step}"]
        assert_close(greedy.loss(sample, groups, weights), case[f"robust_loss_{step}"])
        means, shares, weights = greedy.step(means, shares, *group_means(sample, groups, 5))
        assert_close(weights, case[f"h_after_{step}"])
