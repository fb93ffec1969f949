"""The masked-LM objective: the gradient is that of the one big batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from hybridr.training.backbone import read_dam
from hybridr.training.dam import read_frame
from hybridr.training.loop import Processes
from hybridr.training.objectives.mlm import IGNORED, MaskedLm
from hybridr.training.settings import DamSettings
from hybridr.training.token_cache import TokenCache, build_cache
from support.dam_training import tiny_dam
from support.tiny import tiny_corpus

pytestmark = pytest.mark.usefixtures("one_thread")


def objective(folder: Path, cache: TokenCache, **changes: Any) -> MaskedLm:
    dam = read_dam(folder)
    values = {"batch_size": 24, "max_tokens": 40, "seed": 1, "token_budget": 150, "held_out": 0} | changes
    processes = values.pop("processes", Processes("cpu"))
    return MaskedLm(dam, read_frame(dam), cache, DamSettings(**values), "fp32", processes)


def plain_loss(folder: Path, found: MaskedLm, step: int) -> Any:
    """Give the model of transformers after one backward pass of its own loss on the padded whole batch."""
    windows = found.windows(step)
    labels = np.full_like(windows.ids, -100)
    labels[windows.masked] = windows.targets
    rows = [np.split(array, np.cumsum(windows.lengths)[:-1]) for array in (windows.ids, labels)]
    ids, wanted = (
        torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, part)), True, filler)
        for part, filler in zip(rows, (found.module.config.pad_token_id, -100), strict=True)
    )
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    mask = torch.arange(ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]
    loss = model(input_ids=ids, attention_mask=mask.long(), labels=wanted).loss
    loss.backward()
    return loss.item(), dict(model.named_parameters())


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_the_gradient_is_that_of_the_one_big_batch(kind: str, tmp_path: Path) -> None:
    folder = tiny_dam(tmp_path / kind, kind)
    dam = read_dam(folder)
    cache = build_cache(tiny_corpus(100), str(dam.tokenizer), tmp_path / "tokens", seed=1)
    found = objective(folder, cache)
    parts = found.parts(3)
    assert len(parts) > 4
    loss = sum(found.loss(part) for part in parts)
    loss.backward()
    wanted, gradients = plain_loss(folder, found, 3)
    assert abs(loss.item() - wanted) < 1e-5
    assert gradients.keys() == found.weights.keys()
    for name, weight in found.weights.items():
        assert torch.allclose(weight.grad, gradients[name].grad, rtol=1e-4, atol=1e-6), name


def test_the_shares_of_processes_are_the_batch(dam: Path, cache: TokenCache) -> None:
    class Two:
        count, device = 2, torch.device("cpu")

        def __init__(self, rank: int) -> None:
            self.rank = rank

    whole = objective(dam, cache)
    total = sum(whole.loss(part).item() for part in whole.parts(1))
    shares = [objective(dam, cache, processes=Two(rank)) for rank in range(2)]
    tokens = [sum(int((part.targets != IGNORED).sum()) for part in share.parts(1)) for share in shares]
    assert sum(tokens) == shares[0].parts(1)[0].divisor
    assert abs(tokens[0] - tokens[1]) < 0.3 * sum(tokens)
    assert abs(sum(share.loss(part).item() for share in shares for part in share.parts(1)) - total) < 1e-5


def test_dropout_is_off_unless_asked_for(dam: Path, cache: TokenCache) -> None:
    for share, differs in ((0.0, False), (0.1, True)):
        found = objective(dam, cache, dropout=share)
        assert found.dropout is differs
        found.module.train(True)
        part = found.parts(1)[0]
        assert (found.loss(part).item() != found.loss(part).item()) is differs
