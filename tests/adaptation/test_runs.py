from __future__ import annotations

from pathlib import Path

from hybridr.adaptation.loop import Processes, train
from hybridr.adaptation.runs import STATE_FILE, write_curve
from support.toy_training import RECIPE, Regression, trained


def test_a_checkpoint_of_another_run_is_not_continued(tmp_path: Path) -> None:
    trained(tmp_path, RECIPE)
    again = train(Regression(Processes("cpu")), tmp_path / STATE_FILE, "another key")
    assert again.resumed_from == 0
    (tmp_path / STATE_FILE).write_bytes(b"damaged")
    assert trained(tmp_path, RECIPE)


def test_the_curve_is_a_picture(tmp_path: Path) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    for path in (first, second):
        write_curve(path, [3.0, 2.5, 2.0, 1.9], label="masked-LM loss")
    assert "<svg" in first.read_text()[:500]
    assert first.read_bytes() == second.read_bytes()
    write_curve(first, [1.0])
