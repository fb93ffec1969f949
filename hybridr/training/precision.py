"""In which number format the forward pass is computed."""

from __future__ import annotations

from typing import Literal

import torch

from ..errors import ModelError
from ..machine import FEATURES, amx_works, read_cpu

Precision = Literal["fp32", "bf16"]


def choose_precision(wanted: Literal["auto", "fp32", "bf16"], device: torch.device) -> Precision:
    """Choose bf16 where the device computes in it, else fp32; weights and optimiser are fp32 either way.

    On a processor that is AMX, tried in a child process: some virtual machines list an AMX that kills
    the process, and without AMX bf16 is slower than fp32. Raises ModelError when bf16 is asked for there.
    """
    if wanted == "fp32":
        return "fp32"
    if device.type == "cuda":
        able = torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if able or wanted == "bf16" else "fp32"
    cpu = read_cpu()
    advertised = FEATURES["AMX"] in cpu.flags
    works = advertised and device.type == "cpu" and amx_works(cpu) is True
    if wanted == "bf16" and advertised and not works:
        raise ModelError(
            "bf16 is asked for and this processor's AMX does not work: the process would be killed",
            hint="train with --precision fp32, or let it be chosen (auto)",
        )
    return "bf16" if works or wanted == "bf16" else "fp32"
