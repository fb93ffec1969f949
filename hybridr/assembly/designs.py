"""What a REM is made of: the settings of `adapter_config.json`, every unsupported one refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError

LORA_NEEDS: dict[str, Any] = {
    "composition_mode": "add",
    "use_gating": False,
    "selfattn_lora": True,
    "intermediate_lora": False,
    "output_lora": False,
}
PARALLEL_NEEDS: dict[str, Any] = {
    "is_parallel": True,
    "output_adapter": True,
    "mh_adapter": False,
    "cross_adapter": False,
    "phm_layer": False,
    "use_gating": False,
    "inv_adapter": None,
    "leave_out": [],
    "ln_before": False,
    "ln_after": False,
    "original_ln_before": False,
    "original_ln_after": True,
    "adapter_residual_before_ln": False,
}
"""The only value of these options that is supported, and what an absent one means."""

MOST_RANK, LEAST_REDUCTION = 65_536, 0.1
"""Beyond them an adapter would be larger than any backbone."""
ACTIVATIONS = ("relu", "gelu", "tanh", "silu", "swish", "sigmoid")


@dataclass(frozen=True)
class Lora:
    """A low-rank change `alpha / rank * B A` of projections of the self-attention."""

    rank: int
    alpha: float
    projections: tuple[str, ...] = ("q", "v")
    """Among "q", "k" and "v"."""
    dropout: float = 0.0
    """0..1, on the input of A while training."""


@dataclass(frozen=True)
class Parallel:
    """A bottleneck beside the feed-forward network of every layer."""

    reduction_factor: float | Mapping[str, float] = 4.0
    """Width of the layer divided by that of the bottleneck; by layer number, with "default"."""
    scaling: float | None = 4.0
    """What its output is multiplied by; None learns it."""
    activation: str = "relu"

    def bottleneck(self, width: int, layer: int) -> int:
        """Give the size of the bottleneck in a layer of `width`, numbered from 0."""
        factor = self.reduction_factor
        if isinstance(factor, Mapping):
            factor = factor[str(layer)] if str(layer) in factor else factor["default"]
        return max(1, int(width // factor))


@dataclass(frozen=True)
class Design:
    """The parts of a REM; at least one is there."""

    lora: Lora | None = None
    parallel: Parallel | None = None


PUBLISHED = Design(Lora(rank=192, alpha=192), Parallel())
"""The design of the published REMs (`lora192-pa4`)."""


def read_design(config: Mapping[str, Any]) -> Design:
    """Read the `config` of `adapter_config.json`: one method, or a union of two. Raises ModelError."""
    parts = config.get("configs", ()) if config.get("architecture") == "union" else (config,)
    if not isinstance(parts, list | tuple) or not all(isinstance(part, Mapping) for part in parts):
        raise refusal("configs", parts, "a list of objects")
    loras = [part for part in parts if part.get("architecture") == "lora"]
    parallels = [part for part in parts if part.get("architecture") is None]
    others = [part["architecture"] for part in parts if part.get("architecture") not in (None, "lora")]
    if others:
        raise refusal("architecture", others[0], "lora, a parallel adapter, or a union of both")
    if len(loras) > 1 or len(parallels) > 1 or not parts:
        found = f"{len(loras)} LoRA and {len(parallels)} parallel adapters"
        raise ModelError(f"the REM has {found}; at most one of each is supported, and one in all")
    return Design(
        lora=read_lora(loras[0]) if loras else None,
        parallel=read_parallel(parallels[0]) if parallels else None,
    )


def read_lora(part: Mapping[str, Any]) -> Lora:
    """Read the settings of a LoRA. Raises ModelError."""
    refuse_others(part, LORA_NEEDS)
    given = part.get("attn_matrices")
    projections = tuple(str(one) for one in given) if isinstance(given, list | tuple) else ()
    if not projections or set(projections) - {"q", "k", "v"}:
        raise refusal("attn_matrices", part.get("attn_matrices"), "some of q, k and v")
    rank, alpha = number(part, "r"), number(part, "alpha")
    if not 1 <= rank <= MOST_RANK or rank != int(rank):
        raise refusal("r", part["r"], f"a whole number from 1 to {MOST_RANK}")
    dropout = number(part, "dropout") if part.get("dropout") else 0.0
    if not 0 <= dropout <= 1:
        raise refusal("dropout", dropout, "a number from 0 to 1")
    return Lora(int(rank), alpha, projections, dropout)


def read_parallel(part: Mapping[str, Any]) -> Parallel:
    """Read the settings of a parallel adapter. Raises ModelError."""
    refuse_others({"is_parallel": False} | dict(part), PARALLEL_NEEDS)
    activation = str(part.get("non_linearity"))
    if activation not in ACTIVATIONS:
        raise refusal("non_linearity", activation, ", ".join(ACTIVATIONS))
    scaling = None if part.get("scaling") == "learned" else number(part, "scaling")
    return Parallel(read_reduction(part), scaling, activation)


def read_reduction(part: Mapping[str, Any]) -> float | Mapping[str, float]:
    """Read the reduction factor: one number, or numbers by layer with a default. Raises ModelError."""
    given = part.get("reduction_factor")
    factors: dict[str, Any] = dict(given) if isinstance(given, Mapping) else {"default": given}
    numbers = {
        str(layer): factor
        for layer, factor in factors.items()
        if is_number(factor) and LEAST_REDUCTION <= factor <= MOST_RANK
    }
    if len(numbers) < len(factors) or "default" not in numbers:
        needed = f"a number from {LEAST_REDUCTION} to {MOST_RANK}, or such numbers by layer with 'default',"
        raise refusal("reduction_factor", given, needed)
    return numbers if isinstance(given, Mapping) else numbers["default"]


def refuse_others(part: Mapping[str, Any], needs: Mapping[str, Any]) -> None:
    """Raise ModelError at the first option whose value is not the supported one."""
    for option, needed in needs.items():
        found = part.get(option, needed)
        if (found or None) != (needed or None):
            raise refusal(option, found, repr(needed))


def number(part: Mapping[str, Any], option: str) -> float:
    """Read a number. Raises ModelError."""
    if not is_number(part.get(option)):
        raise refusal(option, part.get(option), "a number")
    return float(part[option])


def is_number(value: Any) -> bool:
    """Tell whether `value` is a finite number, which a truth value is not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e300


def refusal(option: str, found: Any, needed: str) -> ModelError:
    """Say which option of the REM is not supported."""
    return ModelError(
        f"the REM has {option} {repr(found)[:80]}, which is not supported: {needed} is needed",
        hint="train it again with the supported options, or take one of `hybridr models`",
    )
