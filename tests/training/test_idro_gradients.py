"""The gradients of groups from one backward pass, against one pass a group."""

from __future__ import annotations

import pytest
import torch

from hybridr.training.adapters import adapter_weights
from hybridr.training.objectives.idro import GroupGradients, group_means
from hybridr.training.objectives.pairwise import Pairwise
from hybridr.training.rem import attach_fresh, design_for, unfreeze
from support.dam_training import tiny_dam
from support.rem_training import objective_of


@pytest.mark.parametrize(
    ("kind", "trained", "negatives"),
    [("bert", "adapters", 1), ("roberta", "all weights", 3), ("distilbert", "adapters", 3)],
)
def test_one_pass_gives_what_one_pass_a_group_gives(kind, trained, negatives, judged, tmp_path):
    found = objective_of(Pairwise, judged, tiny_dam(tmp_path / "dam", kind), 12, negatives)
    ranker = found.module
    if trained == "adapters":
        attach_fresh(ranker, design_for("both", 4), seed=3)
        found.weights = unfreeze(adapter_weights(ranker.backbone, "rem"))
        for weight in found.weights.values():  # fresh ones change nothing
            torch.nn.init.normal_(weight, std=0.3)
    else:
        found.weights = unfreeze(dict(ranker.backbone.named_parameters()))
    ranker.train()  # with dropout: both must see the same masks
    for layers in ([1], [0, 1]):
        fast, slow = GroupGradients(found, layers), GroupGradients(found, layers)
        assert fast.at_once
        slow.at_once = False
        batch = found.batches(1)
        queries, positives, others, _ = found.encode_batch(batch)
        losses = found.query_losses(batch, queries, positives, others)
        groups = torch.arange(12) % 5
        groups[groups == 3] = 4  # an absent group
        means, sizes = group_means(losses, groups, 6)
        one, each = (way.products(losses, groups, means, sizes) for way in (fast, slow))
        assert torch.allclose(one, each, rtol=1e-4, atol=1e-6 * float(each.abs().max()))
        assert float(each.diagonal()[0]) > 0
        assert one[3].abs().sum() == one[5].abs().sum() == 0
        for hook in fast.hooks:
            hook.remove()
        found.encode_batch(batch)
        assert not fast.calls


def test_rows_that_depend_on_each_other_and_embeddings_take_one_pass_a_group(judged, dam):
    from hybridr.training.objectives.contrast import Contrastive

    for kind, layers in ((Contrastive, [1]), (Pairwise, "all")):
        found = objective_of(kind, judged, dam, 8, 1)
        found.weights = unfreeze(dict(found.module.backbone.named_parameters()))
        assert not GroupGradients(found, layers).at_once
