"""MoDIR (Xin et al. 2022): an adversarial classifier of domains, and what confuses it."""

from __future__ import annotations

from ...errors import MissingExtra

try:
    import torch
    from torch import Tensor
    from torch.nn import functional
except ImportError as missing:
    raise MissingExtra(missing.name or "torch", "train", "training a model") from missing


def domain_logits(classifier: Tensor, vectors: Tensor, bound: float = 5.0) -> Tensor:
    """Ask a linear classifier `(2, dim)` for the domain of vectors `(n, dim)`; `(n, 2)`, cut to +-`bound`.

    Column 0 is the source domain, column 1 the target. MoDIR (Xin et al. 2022).
    """
    return (vectors @ classifier.T).clamp(-bound, bound)


def domain_loss(logits: Tensor, domain: int) -> Tensor:
    """Give the cross-entropy of logits `(n, 2)` with one domain, 0 or 1; a scalar. MoDIR.

    On detached vectors it trains the classifier; on the target's with domain 0 it is the "GAN" loss.
    """
    return functional.cross_entropy(logits, torch.full((len(logits),), domain, device=logits.device))


def confusion(logits: Tensor) -> Tensor:
    """Ask the encoder that neither domain fits better; a scalar, log 2 at least. MoDIR's default."""
    return (domain_loss(logits, 0) + domain_loss(logits, 1)) / 2


def minimax(source: Tensor, target: Tensor) -> Tensor:
    """Ask the encoder that the classifier errs: minus its loss on the logits of both domains. MoDIR."""
    return -(domain_loss(source, 0) + domain_loss(target, 1))
