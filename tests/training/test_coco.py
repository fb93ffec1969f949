"""The losses of COCO-DR against golden/losses."""

from __future__ import annotations

from hybridr.training.objectives import coco
from support.golden_losses import assert_close, golden


def test_sequence_contrastive() -> None:
    case = golden("coco_sequence_contrastive")
    found = coco.sequence_contrastive(case["cls"])
    assert_close(found, case["per_row"])
    assert_close(found.mean(), case["loss"])
