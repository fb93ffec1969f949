"""Values that the authors' own code computed (golden/losses/README.md)."""

from __future__ import annotations

import json

import numpy as np
import torch

from support.places import GOLDEN

LOSSES = GOLDEN / "losses"
TOLERANCE = 1e-5


def golden(name: str) -> dict[str, torch.Tensor]:
    with np.load(LOSSES / f"{name}.npz") as stored:
        return {
            key: torch.from_numpy(np.atleast_1d(stored[key]).copy()).reshape(stored[key].shape)
            for key in stored
            if stored[key].dtype.kind in "fi"
        }


def text_of(name: str, key: str) -> dict[str, list[float]]:
    with np.load(LOSSES / f"{name}.npz") as stored:
        return json.loads(str(stored[key]))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert float((found.detach() - expected).abs().max()) <= TOLERANCE
