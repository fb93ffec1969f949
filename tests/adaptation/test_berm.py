"""The losses of BERM against golden/losses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridr.adaptation.objectives import berm as berm_module
from support.golden_losses import assert_close, golden, text_of


def test_berm_as_coded() -> None:
    case, scores = golden("berm_as_coded"), text_of("berm_as_coded", "scores")
    units = [
        berm_module.period_units(states, ids, period=4, keep_rest=False)
        for states, ids in zip(case["hidden"], case["input_ids"], strict=True)
    ]
    essential = [int(np.argmax(scores[str(row)])) for row in range(3)]
    berm = berm_module.Berm(alpha=1.0, beta=0.0, as_coded=True)
    total, balanced, extracted = berm.loss(case["q"], case["p"], case["n"], units, essential)
    assert_close(berm_module.pairwise(case["q"], case["p"], case["n"]), case["contrastive"])
    assert_close(balanced, case["balance"])
    assert_close(extracted, case["extract"])
    assert_close(total, case["total"])


def test_berm_of_the_paper_by_hand() -> None:
    one, units = torch.tensor([1.0, 0.0]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    nearness = np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    assert float(berm_module.balance(one, units)) == pytest.approx(
        float(-np.log(2 * nearness).mean()), abs=1e-6
    )
    gelu = 0.8413447  # of 1
    expected = np.log(np.exp(gelu) + 1) - gelu
    assert float(berm_module.extract(one, one, units, 0)) == pytest.approx(expected, abs=1e-6)
    states = torch.arange(7.0).unsqueeze(1)
    found = berm_module.period_units(states, torch.tensor([0, 7, 4, 8, 9, 9, 2]), period=4)
    assert found.flatten().tolist() == [1.0, 4.0]  # tokens 1; 3, 4 and 5; never the first and the last
