from __future__ import annotations

from pathlib import Path

from hybridr.training.loop import Processes, train
from hybridr.training.runs import STATE_FILE
from support.toy_training import RECIPE, Regression, trained


def test_a_checkpoint_of_another_run_is_not_continued(tmp_path: Path) -> None:
    trained(tmp_path, RECIPE)
    again = train(Regression(Processes("cpu")), tmp_path / STATE_FILE, "another key")
    assert again.resumed_from == 0
    (tmp_path / STATE_FILE).write_bytes(b"damaged")
    assert trained(tmp_path, RECIPE)
