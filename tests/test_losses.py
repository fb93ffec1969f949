"""The losses against values that the authors' own code computed (golden/losses/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridr.adaptation.objectives import berm as berm_module
from hybridr.adaptation.objectives import coco, contrast, distil, labelled, modir

GOLDEN = Path(__file__).parent / "golden" / "losses"
TOLERANCE = 1e-5


def golden(name: str) -> dict[str, torch.Tensor]:
    with np.load(GOLDEN / f"{name}.npz") as stored:
        return {
            key: torch.from_numpy(np.atleast_1d(stored[key]).copy()).reshape(stored[key].shape)
            for key in stored
            if stored[key].dtype.kind in "fi"
        }


def text_of(name: str, key: str) -> dict[str, list[float]]:
    with np.load(GOLDEN / f"{name}.npz") as stored:
        return json.loads(str(stored[key]))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found.detach() - expected).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("name", ["ddr_contrastive_t1", "ddr_contrastive_t20"])
def test_contrastive_with_its_mask_and_gradients(name: str) -> None:
    case = golden(name)
    leaves = [case[key].requires_grad_() for key in ("q", "d", "neg")]
    relevant = {int(query): set(docs) for query, docs in text_of(name, "qrels").items()}
    docs = [*case["docids"].tolist(), *case["neg_docids"].tolist()]
    mask = contrast.find_false_negatives(case["qids"].tolist(), docs, relevant)
    assert_close(mask.float(), case["mask"])
    loss = contrast.contrastive(*leaves, false_negatives=mask, temperature=1 / float(case["inv_temperature"]))
    assert_close(loss, case["loss"])
    for found, key in zip(torch.autograd.grad(loss, leaves), ("q", "d", "neg"), strict=True):
        assert_close(found, case[f"grad_{key}"])


@pytest.mark.parametrize("name", ["ddr_contrastive_t1", "ddr_contrastive_t20"])
def test_in_batch(name: str) -> None:
    case = golden(name)
    leaves = [case[key].requires_grad_() for key in ("q", "d")]
    mask = case["mask"][:, : len(case["d"])].bool()
    temperature = 1 / float(case["inv_temperature"])
    loss = contrast.in_batch(*leaves, false_negatives=mask, temperature=temperature)
    assert_close(loss, case["loss_inbatch"])
    for found, key in zip(torch.autograd.grad(loss, leaves), ("q", "d"), strict=True):
        assert_close(found, case[f"grad_{key}_inbatch"])


def test_margin_mse() -> None:
    case = golden("ddr_margin_mse")
    scores = torch.einsum("nd,nkd->nk", case["q"], case["docs"].reshape(4, 4, 8))
    assert_close(scores, case["model_scores"])
    assert_close(distil.margin_mse(scores, case["ce_scores"]), case["loss"])


def test_splade_flops() -> None:
    case = golden("ddr_splade_flops")
    assert_close(labelled.flops(case["a"]), case["flops_a"])
    assert_close(labelled.flops(case["a"], case["b"]), case["flops_ab"])


def test_colbert_max_sim() -> None:
    case = golden("ddr_colbert_maxsim")
    assert_close(labelled.max_sim(case["q"], case["p"]), case["scores"])


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


def test_modir() -> None:
    case = golden("modir_losses")
    source, target = (modir.domain_logits(case["W"], case[key]) for key in ("src", "tgt"))
    assert_close(source, case["logits_src"])
    assert_close(target, case["logits_tgt"])
    assert_close(modir.domain_loss(source, 0), case["LD_src"])
    assert_close(modir.domain_loss(target, 1), case["LD_tgt"])
    assert_close(modir.confusion(source), case["confusion_src"])
    assert_close(modir.confusion(target), case["confusion_tgt"])
    assert_close(modir.minimax(source, target), case["minimax_LM"])
    assert_close(modir.domain_loss(target, 0), case["gan_LM"])


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
