"""COCO-DR (Yu et al. 2022): contrast of spans."""

from __future__ import annotations

from ...errors import MissingExtra

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "train", "training a model") from missing


def sequence_contrastive(states: Tensor) -> Tensor:
    """Tell a span of the same document from all other spans; `(2n,)`, to be averaged.

    `states` `(2n, dim)` are [CLS] states, those of a document adjacent. Products, temperature 1, a span is no
    candidate for itself. COCO-DR (Yu et al. 2022, equation 5), after coCondenser (Gao and Callan 2022).
    """
    scores = states @ states.T
    scores = scores.masked_fill(torch.eye(len(states), dtype=torch.bool, device=states.device), -torch.inf)
    partners = torch.arange(len(states), device=states.device) ^ 1
    return functional.cross_entropy(scores, partners, reduction="none")
