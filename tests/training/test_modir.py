"""The losses of MoDIR against golden/losses."""

from __future__ import annotations

from hybridr.training.objectives import modir
from support.golden_losses import assert_close, golden


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
