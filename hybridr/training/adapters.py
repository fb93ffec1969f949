"""LoRA (by peft) and parallel adapters in a backbone: attached, filled with weights, merged.

The formulas are those of Zhan et al. 2022 (DDR), as their code computes them:

    q = W_q h + b_q + alpha / rank * B A h            (also v; merged: W_q + alpha / rank * B A)
    p = W_up f(W_down a + b_down) + b_up              a: what the feed-forward network reads
    h' = LayerNorm(FFN(a) + scaling * p + a)

`adapter_config.json` describes the adapters of a REM; an unsupported option is refused by name.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import ModelError, extra
from .backbone import FETCH_AGAIN, Tensors

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
"""Options with their only supported value, which is also the default."""

MAX_RANK, MIN_REDUCTION = 65_536, 0.1
"""Limits beyond which an adapter would be larger than any backbone."""
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

    reduction_factor: float | Mapping[str, float] = 4
    """Layer width divided by bottleneck width; a mapping gives it by layer number, with "default"."""
    scaling: float | None = 4.0
    """Factor of its output; None learns it."""
    activation: str = "relu"

    def bottleneck(self, width: int, layer: int) -> int:
        """Return the size of the bottleneck for the layer number `layer` (from 0) of `width`."""
        factor = self.reduction_factor
        if isinstance(factor, Mapping):
            factor = factor[str(layer)] if str(layer) in factor else factor["default"]
        return max(1, int(width // factor))


@dataclass(frozen=True)
class Design:
    """The adapters of a REM: LoRA, parallel, or both."""

    lora: Lora | None = None
    parallel: Parallel | None = None


def read_design(config: Mapping[str, Any]) -> Design:
    """Return the design in `adapter_config.json`: one method, or a union of two. Raises ModelError."""
    parts = config.get("configs", ()) if config.get("architecture") == "union" else (config,)
    if not isinstance(parts, list | tuple) or not all(isinstance(part, Mapping) for part in parts):
        raise unsupported_error("configs", parts, "a list of objects")
    loras = [part for part in parts if part.get("architecture") == "lora"]
    parallels = [part for part in parts if part.get("architecture") is None]
    unsupported = [part["architecture"] for part in parts if part.get("architecture") not in (None, "lora")]
    if unsupported:
        raise unsupported_error(
            "architecture", unsupported[0], "lora, a parallel adapter, or a union of both"
        )
    if len(loras) > 1 or len(parallels) > 1 or not parts:
        counts = f"{len(loras)} LoRA and {len(parallels)} parallel adapters"
        raise ModelError(f"the REM has {counts}; at most one of each is supported, and one in all")
    return Design(
        lora=read_lora(loras[0]) if loras else None,
        parallel=read_parallel(parallels[0]) if parallels else None,
    )


def read_lora(part: Mapping[str, Any]) -> Lora:
    """Return the LoRA that a part of the configuration describes. Raises ModelError."""
    require_supported(part, LORA_NEEDS)
    matrices = part.get("attn_matrices")
    projections = tuple(str(matrix) for matrix in matrices) if isinstance(matrices, list | tuple) else ()
    if not projections or set(projections) - {"q", "k", "v"}:
        raise unsupported_error("attn_matrices", part.get("attn_matrices"), "some of q, k and v")
    rank, alpha = read_number(part, "r"), read_number(part, "alpha")
    if not 1 <= rank <= MAX_RANK or rank != int(rank):
        raise unsupported_error("r", part["r"], f"a whole number from 1 to {MAX_RANK}")
    dropout = read_number(part, "dropout") if part.get("dropout") else 0.0
    if not 0 <= dropout <= 1:
        raise unsupported_error("dropout", dropout, "a number from 0 to 1")
    return Lora(int(rank), alpha, projections, dropout)


def read_parallel(part: Mapping[str, Any]) -> Parallel:
    """Return the parallel adapter that a part of the configuration describes. Raises ModelError."""
    require_supported({"is_parallel": False} | dict(part), PARALLEL_NEEDS)
    activation = str(part.get("non_linearity"))
    if activation not in ACTIVATIONS:
        raise unsupported_error("non_linearity", activation, ", ".join(ACTIVATIONS))
    scaling = None if part.get("scaling") == "learned" else read_number(part, "scaling")
    reduction = part.get("reduction_factor")
    factors: dict[str, Any] = dict(reduction) if isinstance(reduction, Mapping) else {"default": reduction}
    numbers = {
        str(layer): factor
        for layer, factor in factors.items()
        if is_number(factor) and MIN_REDUCTION <= factor <= MAX_RANK
    }
    if len(numbers) < len(factors) or "default" not in numbers:
        needed = f"a number from {MIN_REDUCTION} to {MAX_RANK}, or such numbers by layer with 'default',"
        raise unsupported_error("reduction_factor", reduction, needed)
    by_layer = isinstance(reduction, Mapping)
    return Parallel(numbers if by_layer else numbers["default"], scaling, activation)


def require_supported(part: Mapping[str, Any], needs: Mapping[str, Any]) -> None:
    """Raise ModelError for the first option of `part` that differs from the supported one in `needs`."""
    for option, expected in needs.items():
        value = part.get(option, expected)
        if (value or None) != (expected or None):
            raise unsupported_error(option, value, repr(expected))


def read_number(part: Mapping[str, Any], option: str) -> float:
    """Return an option that is a number. Raises ModelError."""
    if not is_number(part.get(option)):
        raise unsupported_error(option, part.get(option), "a number")
    return float(part[option])


def is_number(value: Any) -> bool:
    """Return whether `value` is a finite number, not a boolean."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def unsupported_error(option: str, value: Any, needed: str) -> ModelError:
    """Return a ModelError for an option of the REM that is not supported."""
    return ModelError(
        f"the REM has {option} {repr(value)[:80]}, which is not supported; {needed} is needed",
        hint="train it again with the supported options, or take one of `hybridr models`",
    )


with extra("train", "assembling DAM and REM"):
    import peft
    import torch
    from peft.tuners.lora import LoraLayer
    from torch import nn
    from transformers.activations import ACT2FN

ADAPTER = "rem"  # the name inside the modules; files use the name of the REM


@dataclass(frozen=True)
class Anatomy:
    """Paths of the modules that a REM changes in a kind of backbone, spelt as in checkpoints."""

    layers: str
    projections: dict[str, str]
    host: str
    """The module in a layer that the parallel adapter stands beside."""
    adapters: str
    """Path of the parallel adapter in the files of a REM."""


BERT = Anatomy(
    layers="encoder.layer",
    projections={"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"},
    host="output",
    adapters="output.adapters",
)
ANATOMIES = {
    "bert": BERT,
    "roberta": BERT,
    "distilbert": Anatomy(
        layers="transformer.layer",
        projections={letter: f"attention.{letter}_lin" for letter in "qkv"},
        host="ffn",
        adapters="output_adapters.adapters",
    ),
}


class ParallelAdapter(nn.Module):
    """The module `scaling * (W_up f(W_down a + b_down) + b_up)`; its initial output is zero (He et al. 2022,
    MAM).
    """

    def __init__(self, width: int, bottleneck: int, design: Parallel, device: torch.device) -> None:
        super().__init__()
        down = nn.Linear(width, bottleneck, device=device)
        self.adapter_down = nn.Sequential(down, ACT2FN[design.activation])
        self.adapter_up = nn.Linear(bottleneck, width, device=device)
        for zero in (down.bias, self.adapter_up.weight, self.adapter_up.bias):
            nn.init.zeros_(zero)
        learned = design.scaling is None
        self.scaling: nn.Parameter | float = (
            nn.Parameter(torch.ones(1, device=device)) if learned else float(design.scaling or 0.0)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the term that is added before the LayerNorm; states and result are `(n, tokens, width)`."""
        term: torch.Tensor = self.adapter_up(self.adapter_down(states)) * self.scaling
        return term


def attach(backbone: Any, design: Design) -> None:
    """Add new adapters to `backbone`, which leave its output unchanged, and freeze its other weights."""
    backbone.requires_grad_(False)
    anatomy = ANATOMIES[backbone.config.model_type]
    if design.lora:
        targets = [anatomy.projections[letter].rsplit(".", 1)[-1] for letter in design.lora.projections]
        settings = peft.LoraConfig(
            r=design.lora.rank,
            lora_alpha=design.lora.alpha,  # type: ignore[arg-type]  # 1.5 works as 2 does
            lora_dropout=design.lora.dropout,
            target_modules=targets,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # peft uses names that transformers deprecates
            peft.inject_adapter_in_model(settings, backbone, adapter_name=ADAPTER)
    if design.parallel:
        config = backbone.config
        for number, layer in enumerate(backbone.get_submodule(anatomy.layers)):
            host = layer.get_submodule(anatomy.host)
            device = next(host.parameters()).device
            bottleneck = design.parallel.bottleneck(config.hidden_size, number)
            adapter = ParallelAdapter(config.hidden_size, bottleneck, design.parallel, device)
            host.add_module("parallel_adapter", adapter)
            # A hook keeps the names of the backbone's weights.
            if config.model_type == "distilbert":
                host.register_forward_hook(add_to_output)
            else:
                host.register_forward_pre_hook(add_to_residual)


def add_to_residual(host: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """Forward pre-hook of BERT's output module: add the adapter's output to the residual input."""
    hidden, residual = inputs
    return hidden, residual + host.parallel_adapter(residual)


def add_to_output(host: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    """Forward hook of DistilBERT's feed-forward module: add the adapter's output to the module's."""
    total: torch.Tensor = output + host.parallel_adapter(inputs[0])
    return total


def adapter_weights(backbone: Any, name: str) -> dict[str, nn.Parameter]:
    """Return the parameters of LoRA and parallel adapters, by their keys in the files of the REM `name`."""
    kind = backbone.config.model_type
    anatomy = ANATOMIES[kind]
    parameters: dict[str, nn.Parameter] = {}
    for path, module in lora_layers(backbone):
        for matrix in ("lora_A", "lora_B"):
            parameters[f"{kind}.{path}.loras.{name}.{matrix}"] = getattr(module, matrix)[ADAPTER].weight
    for number, layer in enumerate(backbone.get_submodule(anatomy.layers)):
        adapter = getattr(layer.get_submodule(anatomy.host), "parallel_adapter", None)
        for key, weight in adapter.named_parameters() if adapter is not None else ():
            parameters[f"{kind}.{anatomy.layers}.{number}.{anatomy.adapters}.{name}.{key}"] = weight
    return parameters


def lora_layers(backbone: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (path, module) of the modules with a LoRA."""
    return ((path, module) for path, module in backbone.named_modules() if isinstance(module, LoraLayer))


def fill_weights(weights: dict[str, nn.Parameter], tensors: Tensors, file: str) -> None:
    """Copy `tensors` into `weights` of the same names and shapes. Raises ModelError before any change."""
    for complaint, names in (
        ("lacks", weights.keys() - tensors.keys()),
        ("has, without a place in the backbone,", tensors.keys() - weights.keys()),
    ):
        if names:
            raise ModelError(
                f"{file} {complaint} {len(names)} weights, such as {min(names)}", hint=ANOTHER_BACKBONE
            )
    for name, weight in weights.items():
        if weight.shape != tensors[name].shape:
            sizes = f"{tuple(tensors[name].shape)} instead of {tuple(weight.shape)}"
            raise ModelError(f"{file}: {name} has the shape {sizes}", hint=ANOTHER_BACKBONE)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[name])


ANOTHER_BACKBONE = f"it was made for another backbone or configuration, or {FETCH_AGAIN}"


def plain_copy(backbone: nn.Module) -> Any:
    """Return a copy of a backbone with LoRA merged and peft's modules removed; parallel adapters stay."""
    result = copy.deepcopy(backbone)
    for path, layer in list(lora_layers(result)):
        if not layer.merged:
            layer.merge()
        parent, _, child = path.rpartition(".")
        setattr(result.get_submodule(parent), child, layer.get_base_layer())
    return result
