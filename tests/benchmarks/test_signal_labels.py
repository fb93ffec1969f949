"""What choosing signals by few labels gains, on values written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.tuning.judgement import Variant
from studies import signal_labels

DEFAULT = Variant({"fusion": "absolute", "dense_weight": 0.5}, 0.0)
BITS = Variant({"fusion": "absolute", "dense_weight": 0.5, "signals": ("phrases", "token_bits")}, 0.05)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal_labels, "DRAWS", 4)


def found(worth: float) -> dict[str, object]:
    """What is told of 60 queries, of which each gains so much by bits."""
    rows = np.random.default_rng(3).uniform(0.2, 0.6, 60)
    values = np.stack([rows, rows + worth], axis=1)
    return {"queries": 60, "signals": [], **signal_labels.summary([DEFAULT, BITS], values)}


def test_signals_that_gain_are_chosen_and_others_left() -> None:
    better, worse = found(0.1), found(-0.1)
    assert better["fixed"] == {"absolute, signals phrases token_bits": pytest.approx(0.1)}
    for told, gain, share in ((better, 0.1, 1.0), (worse, 0.0, 0.0)):
        labels = told["labels"]
        assert labels["technique and weight"]["30"]["mean"] == 0.0
        among = labels["and signals"]["30"]
        assert (among["mean"], among["bits"]) == (pytest.approx(gain), share)
        assert among["default"] == 1 - share
        assert (among["mean shown"], among["shown"]) == (pytest.approx(gain), share), "by today's rule"
        assert "50" not in labels["and signals"], "too few queries are left to measure on"


def test_a_row_for_each_number_of_queries() -> None:
    record = {
        "sets": {"cisi": found(0.1), "lisa": found(0.0)},
        "settings": {"labels": [30, 50], "draws": 100},
        "machine": {"cpu": "x", "cores": 2},
    }
    rows = [line for line in signal_labels.render(record).splitlines() if line.startswith("| ")]
    assert rows[-1] == "| 30 | 2 | +0.0000 | +0.0000 | +0.0500 | +0.0000 | 50% | 50% |"
