"""The projection of ANCE: a head that the references of MoDIR and COCO-DR put on a backbone."""

from __future__ import annotations

import torch
from torch import Tensor


class ProjectionHead(torch.nn.Module):
    """A linear map and a LayerNorm after pooling, trained like the encoder (Xiong et al. 2021, ANCE)."""

    def __init__(self, dim: int) -> None:
        """Make a head for vectors of `dim` numbers; the epsilon of the LayerNorm is 1e-5."""
        super().__init__()
        self.linear = torch.nn.Linear(dim, dim)
        self.norm = torch.nn.LayerNorm(dim, eps=1e-5)

    def forward(self, vectors: Tensor) -> Tensor:
        """Map pooled vectors `(n, dim)` to `(n, dim)`."""
        return self.norm(self.linear(vectors))  # type: ignore[no-any-return]
