"""What every training says when it is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hybridr.training.adaptation import AdaptResult
    from hybridr.training.dam import DamFit
    from hybridr.training.rem import RemTraining

    from .output import Output


def show_training(output: Output, work: str, done: AdaptResult | DamFit | RemTraining) -> None:
    """Say how much was trained, how the loss fell and how long it took."""
    output.line(
        f"trained    {work}, loss {done.loss_start:.3f} -> {done.loss_end:.3f}, {done.seconds:.0f} s"
        + (" (done before)" if done.reused else "")
    )


def show_unseen(output: Output, done: AdaptResult | DamFit, texts: str) -> None:
    """Say how the loss fell on texts that were not trained on, if there were any."""
    if done.unseen_loss_start is not None and done.unseen_loss_end is not None:
        start, end = done.unseen_loss_start, done.unseen_loss_end
        output.line(f"unseen     loss {start:.3f} -> {end:.3f} on held-out {texts}")
