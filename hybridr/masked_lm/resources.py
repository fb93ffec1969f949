"""Whether disk and memory will do, said before anything starts, by estimates on the high side."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import psutil
import torch

from ..errors import DownloadError, ModelError
from ..staging import storing

CHECKPOINT = 3  # times the weights: themselves and two moments
CHECKPOINTS = 2  # a new one is written before the former goes
STILL_TO_COME = 3  # times the weights in memory beside themselves: gradients and two moments
CACHE_BYTES_PER_BYTE = 1.2  # 4 bytes for a token of about 4 letters, and what is kept of each document
STATES_PER_LAYER = 20  # numbers of the width of a state that one token's backward pass keeps in each layer
MASKED_SHARE = 0.2  # of the tokens; their logits are kept three times
CGROUP = Path("/sys/fs/cgroup")


def weight_bytes(model: Any) -> int:
    """Count the bytes of a model's weights."""
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


def require_disk(folder: Path, model: Any, text_bytes: int) -> None:
    """Raise DownloadError unless token cache, two checkpoints and the result fit on the disk of `folder`."""
    weights = weight_bytes(model)
    needed = int(text_bytes * CACHE_BYTES_PER_BYTE) + (CHECKPOINTS * CHECKPOINT + 1) * weights
    existing = next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())
    with storing(folder):
        free = shutil.disk_usage(existing).free
    if free < needed:
        raise DownloadError(
            f"{existing} has {free / 1e6:,.0f} MB free; tokens and checkpoints need about "
            f"{needed / 1e6:,.0f} MB",
            hint="free some space, or choose a folder on a larger disk with --out",
        )


def require_memory(model: Any, tokens: int, device: torch.device) -> None:
    """Raise ModelError unless weights, optimiser and a micro-batch of `tokens` fit into memory."""
    needed = STILL_TO_COME * weight_bytes(model) + activation_bytes(model, tokens)
    free = free_memory(device)
    if free < needed:
        raise ModelError(
            f"{free / 1e6:,.0f} MB of memory are free on {device}, training needs about "
            f"{needed / 1e6:,.0f} MB",
            hint=f"--token-budget {max(256, tokens // 4)} needs less, or choose a smaller base model",
        )


def activation_bytes(model: Any, tokens: int) -> int:
    """Estimate what the backward pass of `tokens` tokens keeps, in fp32."""
    config = model.config
    states = config.num_hidden_layers * STATES_PER_LAYER * config.hidden_size
    logits = MASKED_SHARE * 3 * config.vocab_size
    return int(4 * tokens * (states + logits))


def free_memory(device: torch.device) -> int:
    """Give the bytes that may still be taken, on the GPU or under the limit of this container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min(int(psutil.virtual_memory().available), container_memory())


def container_memory() -> int:
    """Give what the control group leaves; a very large number without a limit."""
    try:
        limit = (CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = (CGROUP / "memory.current").read_text(encoding="ascii").strip()
        return int(limit) - int(used)
    except (OSError, ValueError):  # another system, another version, or "max"
        return 1 << 62
