"""A run is known by the key that it had before methods had settings of their own: killed ones go on."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.files.manifest import fingerprint
from hybridr.training.identity import identity
from hybridr.training.settings import RemSettings

KEYS: dict[str, tuple[dict[str, Any], str | None]] = {
    "a784d6c0d87adc4588c73a01b8829cc08076253e2aed898ed30e2961faefa2e1": ({}, None),
    "8a42ae441b5e1634bd5bd732a437308185afeafe41bfc03fe1fbbecd08947467": (
        {"method": "idro", "method_settings": {"clusters": 4}},
        "idro",
    ),
    "01a078185b105c5dc454fdfb22456295e2e3badc6f3ad590573ca72430773c7e": ({"method": "groupdro"}, "groupdro"),
    "a2e91260966f6594681f1b752b96a3d248a73c43bbf1658df68bd01bccb29a95": (
        {"loss": "pairwise", "method_settings": {"queue": 6, "queue_entries": 2}},
        "modir",
    ),
    "37aef8298ec33e552096d64d3e34d8794cb7d395b67a4f121e1b05303f235542": (
        {"method": "berm", "method_settings": {"variant": "code"}},
        "berm",
    ),
    "6d65a923b82f75cdf928205a65b41213e64a833864d258e06fb251efe6644d3d": (
        {"ranker": "splade", "flops": 0.5},
        None,
    ),
}
"""By the fingerprint that commit 9d8aa5a gave the settings' part of the key, when they were flat."""
INPUTS = ("version", "judged", "dam", "rem")


class Nothing:
    """Judged queries, or a ranker, of which only the fingerprint is asked."""

    fingerprint = ""


@pytest.mark.parametrize("key", KEYS)
def test_settings_have_the_key_that_they_had(key: str) -> None:
    values, method = KEYS[key]
    found = identity(Nothing(), RemSettings(dam="x", **values), Nothing(), None, method)  # type: ignore[arg-type]
    assert fingerprint({name: value for name, value in found.items() if name not in INPUTS}) == key
