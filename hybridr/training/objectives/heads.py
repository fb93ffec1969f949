"""Heads that are trained on a backbone: the projection of ANCE, and the layers of Condenser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertEncoder

from ...errors import ModelError
from ..backbone import Dam
from ..rem_files import read_tensors

CONDENSER_FILE = "condenser.safetensors"
CONDENSER = "condenser."


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


class CondenserHead(torch.nn.Module):
    """Layers of BERT that restore masked tokens from an early layer and the last [CLS] (Gao and Callan 2021).

    Whatever [CLS] does not say, they do not know: so it learns to say more.
    """

    def __init__(self, config: Any, layers: int) -> None:
        """Make layers of the sizes of a backbone's configuration, drawn as those of a fresh BERT are."""
        super().__init__()
        sizes = {name: getattr(config, name) for name in ("hidden_size", "num_attention_heads")}
        self.layers = BertEncoder(  # type: ignore[no-untyped-call]
            BertConfig(
                **sizes,
                num_hidden_layers=layers,
                intermediate_size=getattr(config, "intermediate_size", None) or config.hidden_dim,
                hidden_act=getattr(config, "hidden_act", None) or config.activation,
                layer_norm_eps=getattr(config, "layer_norm_eps", 1e-12),
            )
        )
        for module in self.layers.modules():
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.normal_(module.weight, std=config.initializer_range)
                torch.nn.init.zeros_(module.bias)

    def set_attn_implementation(self, attention: str) -> None:
        """Choose how attention is computed: "eager" or "sdpa"."""
        self.layers.config._attn_implementation = attention

    def forward(self, last: Tensor, early: Tensor, mask: Tensor | None) -> Tensor:
        """Give states `(n, tokens, dim)` of [CLS] from `last` and the other tokens from `early`.

        `mask` `(n, tokens)` is 0 at padding; None where there is none.
        """
        hidden = None
        if mask is not None:
            hidden = (1 - mask[:, None, None]).to(last.dtype) * torch.finfo(last.dtype).min
        states: Tensor = self.layers(torch.cat([last[:, :1], early[:, 1:]], dim=1), hidden)[0]
        return states

    def named(self) -> dict[str, torch.nn.Parameter]:
        """Name the weights as files do: `condenser.0.attention.self.query.weight`."""
        return {
            CONDENSER + name.removeprefix("layer."): parameter
            for name, parameter in self.layers.named_parameters()
        }

    def write(self, folder: Path) -> list[str]:
        """Write the weights beside the DAM's, and name the file."""
        weights = {name: weight.detach().cpu().contiguous() for name, weight in self.named().items()}
        save_file(weights, folder / CONDENSER_FILE, metadata={"format": "pt"})
        return [CONDENSER_FILE]


def condenser_of(dam: Dam, count: int | None, seed: int) -> CondenserHead | None:
    """Open the Condenser head beside a DAM, or make one of `wanted` layers drawn from the seed.

    None as wanted takes what the DAM has; None is given for no layers. Raises ModelError when the DAM has
    another number of layers.
    """
    path = dam.folder / CONDENSER_FILE
    stored = read_tensors(path, str(path)) if path.is_file() else {}
    had = len({name.split(".")[1] for name in stored})
    layers = had if count is None else count
    if not layers:
        return None
    if had not in (0, layers):
        raise ModelError(
            f"the DAM {dam.folder} was trained with a head of {had} layers, not of {layers}",
            hint=f"--head-layers {had}, or 0 to go on without",
        )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = CondenserHead(dam.model.config, layers)
    fill(head, stored, path)
    return head


def fill(head: CondenserHead, stored: dict[str, Tensor], path: Path) -> None:
    """Copy stored weights into a head; nothing where none are. Raises ModelError when they do not fit."""
    weights = head.named()
    if stored and {name: tensor.shape for name, tensor in stored.items()} != {
        name: parameter.shape for name, parameter in weights.items()
    }:
        raise ModelError(f"the weights in {path} do not fit the DAM beside them", hint="fetch both again")
    with torch.no_grad():
        for name, value in stored.items():
            weights[name].copy_(value)
