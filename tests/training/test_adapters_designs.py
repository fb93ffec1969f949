"""Designs of adapters that are not supported are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridr.errors import ModelError
from hybridr.training.adapters import read_design
from hybridr.training.rankers import assemble
from support.golden_ddr import SOURCE, changed, rem_of


@pytest.mark.parametrize(
    ("rem", "option", "value"),
    [
        ("dense_lora192", "composition_mode", "scale"),
        ("dense_lora192", "selfattn_lora", False),
        ("dense_lora192", "attn_matrices", ["q", "o"]),
        ("dense_lora192", "r", 0),
        ("dense_lora192", "alpha", "large"),
        ("dense_lora192", "architecture", "prefix_tuning"),
        ("dense_pa4", "is_parallel", False),
        ("dense_pa4", "mh_adapter", True),
        ("dense_pa4", "leave_out", [0]),
        ("dense_pa4", "original_ln_after", False),
        ("dense_pa4", "non_linearity", "leakyrelu"),
        ("dense_pa4", "reduction_factor", {"0": 4}),
        ("dense_pa4", "scaling", None),
    ],
)
def test_unsupported_options_are_refused_by_name(rem: str, option: str, value: Any, tmp_path: Path) -> None:
    copy = changed(rem_of(rem), tmp_path, lambda part: part.update({option: value}))
    with pytest.raises(ModelError, match=option) as caught:
        assemble(SOURCE, copy)
    assert "not supported" in caught.value.message
    assert caught.value.hint


def test_unknown_options_and_two_of_a_kind(tmp_path: Path) -> None:
    copy = changed(rem_of("dense_pa4"), tmp_path, lambda part: part.update({"of_the_future": 3}))
    assemble(SOURCE, copy)
    part = json.loads((rem_of("dense_pa4") / "adapter_config.json").read_text())["config"]
    with pytest.raises(ModelError, match="2 parallel adapters"):
        read_design({"architecture": "union", "configs": [part, part]})
