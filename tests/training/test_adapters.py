"""Adapters in a backbone: sizes, merging, and none that changes anything before it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hybridr.errors import ModelError
from hybridr.training import adapters
from hybridr.training.adapters import Design, Lora, Parallel
from hybridr.training.backbone import read_rem
from hybridr.training.rankers import assemble
from support.golden_ddr import INPUTS, SOURCE, TOLERANCE, changed, gap, rem_of


def test_a_rem_is_merged_once() -> None:
    encoder = assemble(SOURCE, rem_of("dense_lora192-pa4"), merge=False)
    weight = encoder.backbone.encoder.layer[1].attention.self.value.get_base_layer().weight
    before, fingerprint = weight.detach().clone(), encoder.fingerprint
    encoder.merge()
    assert encoder.merged
    assert not torch.equal(weight, before)
    assert encoder.fingerprint == fingerprint
    with pytest.raises(ModelError, match="merged already"):
        encoder.merge()
    with pytest.raises(ModelError, match="'msmarco', is merged into the backbone already"):
        encoder.add_rem(read_rem(rem_of("dense_pa4")))
    apart = assemble(SOURCE, rem_of("dense_lora192-pa4"), merge=False)
    with pytest.raises(ModelError, match="'msmarco', is in the backbone already"):
        apart.add_rem(read_rem(rem_of("dense_pa4")))


def test_a_parallel_adapter_alone_cannot_be_merged() -> None:
    encoder = assemble(SOURCE, rem_of("dense_pa4"))
    assert not encoder.merged
    with pytest.raises(ModelError, match="no LoRA to merge"):
        encoder.merge()


@pytest.mark.parametrize(
    ("design", "count", "share"),
    [
        (Design(Lora(96, 96)), 3_538_944, 3.23),
        (Design(Lora(192, 192)), 7_077_888, 6.46),
        (Design(parallel=Parallel(4)), 3_550_464, 3.24),
        (Design(Lora(192, 192), Parallel(4)), 10_628_352, 9.71),
    ],
)
def test_parameter_shares_of_the_paper(design: Design, count: int, share: float) -> None:
    with torch.device("meta"):
        bert = transformers.BertModel(transformers.BertConfig())
    whole = sum(weight.numel() for weight in bert.parameters())
    adapters.attach(bert, design)
    trained = sum(weight.numel() for weight in bert.parameters() if weight.requires_grad)
    assert sum(weight.numel() for weight in adapters.adapter_weights(bert, "any").values()) == count
    assert (whole, trained) == (109_482_240, count)
    assert round(100 * count / whole, 2) == share


def test_reduction_by_layer_and_learned_scaling(tmp_path: Path) -> None:
    def change(part: dict[str, Any]) -> None:
        part |= {"reduction_factor": {"1": 2, "default": 4}, "scaling": "learned"}

    rem = changed(rem_of("dense_pa4"), tmp_path, change)
    weights = torch.load(rem / "pytorch_adapter.bin", weights_only=True)
    place = "bert.encoder.layer.{}.output.adapters.msmarco."
    for layer in (0, 1):
        weights[place.format(layer) + "scaling"] = torch.tensor([4.0])
    plain = assemble(SOURCE, rem_of("dense_pa4")).encode_queries(INPUTS["queries"])
    for part in ("adapter_down.0.weight", "adapter_down.0.bias"):  # 8 more units that do nothing
        wide = weights[place.format(1) + part]
        weights[place.format(1) + part] = torch.cat([wide, torch.zeros_like(wide)])
    up = weights[place.format(1) + "adapter_up.weight"]
    weights[place.format(1) + "adapter_up.weight"] = torch.cat([up, torch.ones_like(up)], dim=1)
    torch.save(weights, rem / "pytorch_adapter.bin")
    assert gap(assemble(SOURCE, rem).encode_queries(INPUTS["queries"]), plain) <= TOLERANCE
