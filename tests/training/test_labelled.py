"""The penalties and scores of labelled objectives, against golden/losses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hybridr.training.judged import Judged
from hybridr.training.objectives import labelled
from support.golden_losses import assert_close, golden
from support.rem_training import objective


def test_splades_penalty_grows_over_the_first_epoch(judged: Judged, dam: Path) -> None:
    found = objective(judged, dam, 8)
    found.flops = 2.0
    queries, documents = torch.tensor([[1.0, 0.0], [1.0, 2.0]]), torch.tensor([[2.0, 0.0]])
    whole = 2.0 * (1 + 1 + 4)
    for step, share in ((1, 1 / 25), (4, 16 / 25), (5, 1), (9, 1)):
        assert float(found.penalty(step, queries, documents, documents)) == pytest.approx(whole * share)


def test_splade_flops() -> None:
    case = golden("ddr_splade_flops")
    assert_close(labelled.flops(case["a"]), case["flops_a"])
    assert_close(labelled.flops(case["a"], case["b"]), case["flops_ab"])


def test_colbert_max_sim() -> None:
    case = golden("ddr_colbert_maxsim")
    assert_close(labelled.max_sim(case["q"], case["p"]), case["scores"])
