"""The losses of BERM by hand; as released: `test_objectives_traces.py`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hybridr.training.batches import Rows
from hybridr.training.objectives import berm


def test_berm_of_the_paper_by_hand() -> None:
    one, units = torch.tensor([[1.0, 0.0]]), torch.tensor([[[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]])
    there = torch.tensor([[True, True, False]])
    nearness = np.exp([1.0, 0.0]) / np.exp([1.0, 0.0]).sum()
    assert float(berm.balance_losses(one, units, there)) == pytest.approx(
        float(-np.log(2 * nearness).mean()), abs=1e-6
    )
    gelu = 0.8413447  # of 1
    found = berm.extract_losses(one, one, units, there, torch.tensor([0]))
    assert float(found) == pytest.approx(np.log(np.exp(gelu) + 1) - gelu, abs=1e-6)


def test_units_are_cut_at_the_ends_of_sentences() -> None:
    ids = np.array([0, 7, 4, 8, 9, 9, 2])
    assert berm.find_units(ids, [4]) == [(1, 2), (3, 6)]
    assert berm.find_units(ids, [4], released=True) == [(1, 2)]
    assert berm.find_units(np.array([0, 7, 4, 4, 8, 4, 2]), [4]) == [(1, 2), (4, 5)]
    assert berm.find_units(np.array([0, 7, 4, 4, 8, 4, 2]), [4], released=True) == [(1, 2), (3, 4), (4, 5)]
    assert berm.find_units(np.array([0, 7, 8, 2]), [4]) == [(1, 3)]  # no period: one unit
    assert berm.find_units(np.array([0, 7, 8, 2]), [4], released=True) == []
    assert berm.find_units(np.array([0, 2]), [4]) == []


def test_passages_without_or_with_one_unit_have_no_loss() -> None:
    states = torch.randn(3, 5, 4, requires_grad=True)
    units, there = berm.unit_means(states, [[], [(1, 4)], [(1, 2), (3, 4)]])
    texts = torch.randn(3, 4)
    balanced = berm.balance_losses(texts, units, there)
    extracted = berm.extract_losses(texts, texts, units, there, torch.tensor([-1, 0, 1]))
    assert balanced[:2].tolist() == extracted[:2].tolist() == [0.0, 0.0]
    assert balanced[2].item() > 0
    (balanced + extracted).sum().backward()
    assert states.grad.isfinite().all()


def test_bm25_of_units_by_hand() -> None:
    queries, documents = Rows.of([[0, 5, 6, 5, 2]]), Rows.of([[0, 5, 9, 4, 7, 6, 2], [0, 5, 4, 2]])
    frequencies, units, average = berm.unit_statistics(documents, [4], 10)
    assert (frequencies[5], frequencies[6], units, average) == (2, 1, 3, pytest.approx(5 / 3))
    reader = np.array([0, 0.5, 0.0, 0, 0, 3.0, 0])
    found = berm.Bm25Units(queries, documents, frequencies, 2, average, lambda *_: reader)
    spans = berm.find_units(documents[0], [4])
    idf = [np.log(1 + (2 - held + 0.5) / (held + 0.5)) for held in (2, 1)]
    length = 1 - 0.75 + 0.75 * 2 / average
    wanted = [2 * idf[0] / (1 + 1.5 * length) + 0.05, idf[1] / (1 + 1.5 * length) + 0.3]
    assert found(0, 0, spans) == pytest.approx(wanted)
