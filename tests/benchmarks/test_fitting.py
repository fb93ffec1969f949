"""The parts of the study of ways to fit that are arithmetic."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridr.records import Document
from studies.fitting import change, divergence, heading_and_text, one_table, softmax, unit


@pytest.mark.parametrize(
    ("document", "pair"),
    [
        (Document("1", "What it says.", "A title"), ("A title", "What it says.")),
        (
            Document("2", "Four words stand here. The rest. And more."),
            ("Four words stand here.", "The rest. And more."),
        ),
        (
            Document("3", "one two three four five six seven eight nine ten"),
            ("one two three four five six seven eight", "nine ten"),
        ),
    ],
)
def test_a_document_is_parted_where_it_parts_itself(document: Document, pair: tuple[str, str]) -> None:
    assert heading_and_text(document) == pair


def test_scores_that_are_kept_cost_nothing() -> None:
    scores, others = torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.0, 2.0], [0.0, 1.0]])
    assert divergence(scores, scores).item() == pytest.approx(0, abs=1e-7)
    assert divergence(others, scores).item() > 0.1
    found = softmax(scores.numpy())
    assert np.allclose(found.sum(1), 1)
    assert found[0, 0] > found[1, 1]
    assert np.allclose(np.linalg.norm(unit(found), axis=1), 1)


def test_changes_are_told_with_their_mean() -> None:
    values = {"0": [0.5, None], "0.3": [0.51, 0.01], "1.0": [0.45, 0.2]}
    assert [change(values, dose) for dose in ("0.3", "1.0")] == ["+0.0100*", "-0.0500"]
    sets = {name: {"near": {"dense": values, "cpu_s": 2.0}} for name in ("a", "b")}
    assert "| near | 0.3 | +0.0100* | +0.0100* | +0.0100 | 4 |" in one_table(sets, "dense")
