"""A sentence-transformers bi-encoder in torch: what is adapted, and what is exported."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..encoders.contract import (
    Usage,
    Vectors,
    digest_of,
    encoder_fingerprint,
)
from ..encoders.export.model_files import TorchBiEncoder
from ..encoders.tokens import (
    BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    TextTokenizer,
    UsedModel,
    canonical_tokenizer,
)
from ..errors import extra
from ..files.foreign import regular, require_size

with extra("train", "adapting or exporting a model"):
    import torch
    from safetensors.torch import load, load_file


class BackboneModel(UsedModel, torch.nn.Module):
    """A backbone and how it is used: what all that encodes or scores with one has in common."""

    def __init__(self, backbone: Any, usage: Usage, folder: Path | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.usage = usage
        self.folder = folder

    @property
    def config(self) -> Any:
        """The configuration of the backbone."""
        return self.backbone.config

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = next(self.backbone.parameters()).device
        return device

    @property
    def batch_tokens(self) -> int:
        """How many tokens a batch should have: a GPU is idle with what a processor's cache holds."""
        return GPU_BATCH_TOKENS if self.device.type == "cuda" else BATCH_TOKENS

    def pool(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Give vectors `(n, dim)` of states `(n, tokens, dim)`."""
        if self.usage.pooling == "cls":
            vectors = states[:, 0]
        else:
            weights = mask.unsqueeze(-1).to(states.dtype)  # (n, tokens, 1)
            vectors = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        vectors = vectors[:, : self.usage.truncate_dim]
        return torch.nn.functional.normalize(vectors, dim=-1) if self.similarity == "cosine" else vectors

    def answer(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Give what a batch is run for: vectors or scores."""
        answer: torch.Tensor = self(*inputs)
        return answer

    def run(self, *arrays: NDArray[np.int64]) -> Vectors:
        """Run one batch without gradients."""
        self.eval()
        with torch.inference_mode():
            output = self.answer(*self.on_device(arrays))
        result: Vectors = output.float().cpu().numpy()
        return result

    def on_device(self, arrays: Iterable[NDArray[np.int64]]) -> Iterator[torch.Tensor]:
        """Bring arrays to where the weights are."""
        return (torch.from_numpy(array).to(self.device) for array in arrays)


class BiEncoder(BackboneModel, TorchBiEncoder):
    """Backbone, pooling and normalisation; has what `Encoder` asks for, on any torch device."""

    def __init__(self, backbone: Any, tokenizer: str, usage: Usage, folder: Path | None = None) -> None:
        super().__init__(backbone, usage, folder)
        self.tokenizer_json = canonical_tokenizer(tokenizer)
        self.tokenizer = TextTokenizer(self.tokenizer_json)

    @property
    def dim(self) -> int:
        """Size of a vector."""
        return min(self.width, self.usage.truncate_dim or self.width)

    @property
    def width(self) -> int:
        """Size of a token's state."""
        return int(self.config.hidden_size)

    @property
    def fingerprint(self) -> str:
        """Hash weights (as they are now, in fp32), tokenizer and usage; 64 hex digits."""
        return encoder_fingerprint(digest_weights(self.backbone), self.tokenizer_json, self.usage)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Give token states `(n, tokens, dim)` and vectors `(n, dim)`; ids and mask are `(n, tokens)`."""
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **kinds).last_hidden_state
        return states, self.pool(states, attention_mask)

    def answer(self, *inputs: torch.Tensor) -> torch.Tensor:
        """Give the vectors `(n, dim)` of ids and mask."""
        vectors: torch.Tensor = self(*inputs)[1]
        return vectors

    def read(self, *arrays: NDArray[np.int64]) -> tuple[Vectors, Vectors]:
        """Run one batch without gradients, for states `(n, tokens, width)` and vectors `(n, dim)`."""
        self.eval()
        with torch.inference_mode():
            states, vectors = self(*self.on_device(arrays))
        return states.float().cpu().numpy(), vectors.float().cpu().numpy()


def digest_weights(backbone: torch.nn.Module) -> str:
    """Hash names, shapes and fp32 values of the weights that reach the vectors."""
    items = (item for item in sorted(backbone.state_dict().items()) if not item[0].startswith("pooler."))
    return digest_of((name, tensor.detach().float().cpu().numpy()) for name, tensor in items)


def stored_tensors(source: Path | bytes, name: str = "") -> dict[str, torch.Tensor]:
    """Read a `.bin` (torch pickle) or `.safetensors` file, by the end of its `name`, as named tensors.

    A pickle is read by torch's weights-only reader, which refuses every call to other code. Raises
    ValueError for anything else than plain tensors of the file's own bytes, and what torch and safetensors
    raise.
    """
    if isinstance(source, Path):
        require_size(source)
    if not (name or str(source)).endswith(".bin"):
        return load_file(source) if isinstance(source, Path) else load(source)
    size = source.stat().st_size if isinstance(source, Path) else len(source)
    file = source if isinstance(source, Path) else io.BytesIO(source)
    require_unpacked(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of pickle protocols
        tensors = torch.load(
            io.BytesIO(source) if isinstance(source, bytes) else source, map_location="cpu", weights_only=True
        )
    return tensors_of_file(tensors, size)


def require_unpacked(file: Path | io.BytesIO) -> None:
    """Raise ValueError when a torch file is compressed: torch never does that, and it may hide any size."""
    if not zipfile.is_zipfile(file):
        return
    with zipfile.ZipFile(file if isinstance(file, io.BytesIO) else regular(file)) as archive:
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("it is compressed, which torch's files are not")


def tensors_of_file(tensors: object, size: int) -> dict[str, torch.Tensor]:
    """Give what was unpickled of `size` bytes. Raises ValueError unless it is named tensors of them."""
    if not isinstance(tensors, dict) or not all(
        isinstance(value, torch.Tensor) for value in tensors.values()
    ):
        raise ValueError("it holds something else than named tensors")
    plain = all(value.layout == torch.strided and value.device.type == "cpu" for value in tensors.values())
    if not plain or sum(value.numel() * value.element_size() for value in tensors.values()) > 4 * size:
        raise ValueError("it holds tensors that are not in the file")
    return {str(key): value for key, value in tensors.items()}
