"""LoRA (by peft) and parallel adapters inside a backbone: attached, filled, merged and taken back.

The formulas are those of Zhan et al. 2022 (DDR), as their code computes them:

    q = W_q h + b_q + alpha / rank * B A h            (also v; merged: W_q + alpha / rank * B A)
    p = W_up f(W_down a + b_down) + b_up              a: what the feed-forward network reads
    h' = LayerNorm(FFN(a) + scaling * p + a)
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..errors import MissingExtra, ModelError
from .checkpoints import FETCH_AGAIN, Tensors
from .designs import Design, Parallel

try:
    import peft
    import torch
    from peft.tuners.lora import LoraLayer
    from torch import nn
    from transformers.activations import ACT2FN
except ImportError as missing:
    raise MissingExtra(missing.name or "peft", "train", "assembling DAM and REM") from missing

ADAPTER = "rem"  # the name inside the modules; in files it is the REM's own


@dataclass(frozen=True)
class Anatomy:
    """Where a kind of backbone keeps what a REM changes; paths as the checkpoints spell them."""

    layers: str
    projections: dict[str, str]
    host: str
    """The module in a layer that the parallel adapter stands beside."""
    adapters: str
    """How files call that place."""


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
    """`scaling * (W_up f(W_down a + b_down) + b_up)`; starts as zero, as in He et al. 2022 (MAM)."""

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
        """Give what is added before the LayerNorm; states and result are `(n, tokens, width)`."""
        added: torch.Tensor = self.adapter_up(self.adapter_down(states)) * self.scaling
        return added


def attach(backbone: Any, design: Design) -> None:
    """Put fresh adapters, which change nothing yet, into `backbone`; only they are trainable then."""
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
            warnings.simplefilter("ignore", FutureWarning)  # peft calls what transformers renamed
            peft.inject_adapter_in_model(settings, backbone, adapter_name=ADAPTER)
    if design.parallel:
        for number, layer in enumerate(backbone.get_submodule(anatomy.layers)):
            stand_beside(layer.get_submodule(anatomy.host), backbone.config, design.parallel, number)


def stand_beside(host: nn.Module, config: Any, design: Parallel, layer: int) -> None:
    """Hook a parallel adapter to `host`, so that the names of the backbone's own weights stay."""
    device = next(host.parameters()).device
    bottleneck = design.bottleneck(config.hidden_size, layer)
    host.add_module("parallel_adapter", ParallelAdapter(config.hidden_size, bottleneck, design, device))
    if config.model_type == "distilbert":
        host.register_forward_hook(add_to_output)
    else:
        host.register_forward_pre_hook(add_to_residual)


def add_to_residual(host: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """BERT's output module reads (FFN, a) and adds a before its LayerNorm: hand it a + adapter(a)."""
    hidden, residual = inputs
    return hidden, residual + host.parallel_adapter(residual)


def add_to_output(host: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
    """DistilBERT's FFN module reads a; its LayerNorm comes after: give FFN(a) + adapter(a)."""
    added: torch.Tensor = output + host.parallel_adapter(inputs[0])
    return added


def adapter_weights(backbone: Any, name: str) -> dict[str, nn.Parameter]:
    """Give the adapters' parameters by the keys they have in the files of a REM called `name`."""
    kind = backbone.config.model_type
    anatomy = ANATOMIES[kind]
    found: dict[str, nn.Parameter] = {}
    for path, module in lora_layers(backbone):
        for matrix in ("lora_A", "lora_B"):
            found[f"{kind}.{path}.loras.{name}.{matrix}"] = getattr(module, matrix)[ADAPTER].weight
    for number, layer in enumerate(backbone.get_submodule(anatomy.layers)):
        beside = getattr(layer.get_submodule(anatomy.host), "parallel_adapter", None)
        for key, weight in beside.named_parameters() if beside is not None else ():
            found[f"{kind}.{anatomy.layers}.{number}.{anatomy.adapters}.{name}.{key}"] = weight
    return found


def lora_layers(backbone: nn.Module) -> Iterator[tuple[str, Any]]:
    """Give the paths and modules that carry a low-rank change."""
    return ((path, module) for path, module in backbone.named_modules() if isinstance(module, LoraLayer))


def fill_weights(weights: dict[str, nn.Parameter], tensors: Tensors, file: str) -> None:
    """Copy `tensors` into `weights`: the same names and shapes. Raises ModelError, nothing changed then."""
    for complaint, names in (
        ("lacks", weights.keys() - tensors.keys()),
        (
            "has, beyond what the backbone and the configuration have room for,",
            tensors.keys() - weights.keys(),
        ),
    ):
        if names:
            raise ModelError(f"{file} {complaint} {len(names)} weights, such as {min(names)}", hint=OTHER_ONE)
    for name, weight in weights.items():
        if weight.shape != tensors[name].shape:
            sizes = f"{tuple(tensors[name].shape)}, {tuple(weight.shape)} is needed"
            raise ModelError(f"{file}: {name} has the size {sizes}", hint=OTHER_ONE)
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(tensors[name])


OTHER_ONE = f"it was made for another backbone or configuration, or {FETCH_AGAIN}"


def merge(backbone: nn.Module) -> dict[str, torch.Tensor]:
    """Fold the low-rank change into the projections; give their former weights, which undo it exactly."""
    former = {}
    for path, layer in lora_layers(backbone):
        former[path] = layer.get_base_layer().weight.detach().clone()
        layer.merge()
    return former


def unmerge(backbone: nn.Module, former: dict[str, torch.Tensor]) -> None:
    """Put the projections' former weights back."""
    for path, layer in lora_layers(backbone):
        layer.unmerge()
        with torch.no_grad():
            layer.get_base_layer().weight.copy_(former[path])


def plain_copy(backbone: nn.Module) -> Any:
    """Give a copy with the low-rank change folded in and peft's modules gone; parallel adapters stay."""
    result = copy.deepcopy(backbone)
    for path, layer in list(lora_layers(result)):
        if not layer.merged:
            layer.merge()
        parent, _, child = path.rpartition(".")
        setattr(result.get_submodule(parent), child, layer.get_base_layer())
    return result
