"""The processes that train together, as `accelerate launch` starts them; one without a launcher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import distributed

from ..errors import MissingExtra

try:
    from accelerate import PartialState
except ImportError as missing:
    raise MissingExtra(missing.name or "accelerate", "train", "training a model") from missing


class Processes:
    """This process among those that train together."""

    def __init__(self, device: str = "auto") -> None:
        """Join the others; `device` "cpu" keeps off the GPU, "auto" and "cuda" take what there is."""
        self._state = PartialState(cpu=device == "cpu")
        self.rank: int = self._state.process_index
        self.count: int = self._state.num_processes
        self.device: torch.device = self._state.device

    @property
    def is_main(self) -> bool:
        """Whether this one writes the files."""
        return self.rank == 0

    def add_up(self, tensors: Iterable[torch.Tensor]) -> None:
        """Replace each tensor by its sum over the processes; all give the same shapes in the same order."""
        if self.count > 1:
            for tensor in tensors:
                distributed.all_reduce(tensor)

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Join the `(n, ...)` tensors of all processes by rank to `(count * n, ...)`.

        The own slice keeps its gradient, the others are constants. All must have the same shape.
        """
        if self.count == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.count)]
        distributed.all_gather(parts, tensor.detach().contiguous())
        parts[self.rank] = tensor
        return torch.cat(parts)

    def wait(self) -> None:
        """Wait until every process is here."""
        self._state.wait_for_everyone()

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the main process run the block alone, then the others."""
        with self._state.main_process_first():
            yield
