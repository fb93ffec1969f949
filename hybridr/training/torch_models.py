"""Opens models of transformers and sentence-transformers folders with torch."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..encoders.contract import (
    Usage,
    Vectors,
    base_model_name,
    encoder_fingerprint,
    longest_input,
    weights_digest,
)
from ..encoders.engines import Engine
from ..encoders.export.model_files import TorchBiEncoder
from ..encoders.model_usage import configured_tokenizer, read_usage
from ..encoders.stored_models import (
    FETCH_AGAIN,
    FILES,
    STEMS,
    backbone_folder,
    explain_errors,
    known_configuration,
    read_object,
    require_embeddings,
    require_intact,
    weight_files,
)
from ..encoders.tokens import (
    BATCH_TOKENS,
    GPU_BATCH_TOKENS,
    TOKENIZER_FILE,
    TextTokenizer,
    UsedModel,
    canonical_tokenizer,
)
from ..errors import ModelError, extra
from ..files.local import read_within, require_regular, require_size

with extra("train", "adapting or exporting a model"):
    import torch
    import transformers
    from safetensors.torch import load, load_file


class BackboneModel(UsedModel, torch.nn.Module):
    """Base of models with a transformer backbone and its usage (pooling, similarity, limits)."""

    def __init__(self, backbone: Any, usage: Usage, folder: Path | None) -> None:
        super().__init__()
        self.backbone, self.config = backbone, backbone.config
        self.max_positions = longest_input(self.config)
        self.usage = usage
        self.folder = folder

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        device: torch.device = next(self.backbone.parameters()).device
        return device

    @property
    def batch_tokens(self) -> int:
        """The number of tokens that a batch should have, larger on a GPU."""
        return GPU_BATCH_TOKENS if self.device.type == "cuda" else BATCH_TOKENS

    def pool(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return vectors `(n, dim)` pooled from token states `(n, tokens, dim)`."""
        if self.usage.pooling == "cls":
            vectors = states[:, 0]
        else:
            weights = mask.unsqueeze(-1).to(states.dtype)  # (n, tokens, 1)
            vectors = (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        vectors = vectors[:, : self.usage.truncate_dim]
        return torch.nn.functional.normalize(vectors, dim=-1) if self.similarity == "cosine" else vectors

    def infer(self, *arrays: NDArray[np.int64]) -> Any:
        """Run one batch of arrays without gradients on the weights' device, and return the model's output."""
        self.eval()
        with torch.inference_mode():
            return self(*(torch.from_numpy(array).to(self.device) for array in arrays))

    def run(self, *arrays: NDArray[np.int64]) -> Vectors:
        """Run one batch of arrays without gradients, and return its vectors or scores as an array."""
        output = self.infer(*arrays)
        vectors: torch.Tensor = output[-1] if isinstance(output, tuple) else output
        return vectors.float().cpu().numpy()


class BiEncoder(BackboneModel, TorchBiEncoder):
    """An encoder in torch: backbone, pooling and normalisation; it implements the protocol `Encoder`."""

    def __init__(self, backbone: Any, tokenizer: str, usage: Usage, folder: Path | None = None) -> None:
        super().__init__(backbone, usage, folder)
        self.base = base_model_name(folder)
        self.tokenizer_json = canonical_tokenizer(tokenizer)
        self.tokenizer = TextTokenizer(self.tokenizer_json)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the present weights (in fp32), tokenizer and usage; 64 hex digits."""
        return encoder_fingerprint(digest_weights(self.backbone), self.tokenizer_json, self.usage)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return token states `(n, tokens, dim)` and vectors `(n, dim)`; ids and mask are `(n, tokens)`."""
        kinds = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        states = self.backbone(input_ids=input_ids, attention_mask=attention_mask, **kinds).last_hidden_state
        return states, self.pool(states, attention_mask)

    def read(self, *arrays: NDArray[np.int64]) -> tuple[Vectors, Vectors]:
        """Run one batch without gradients; return states `(n, tokens, width)` and vectors `(n, dim)`."""
        states, vectors = self.infer(*arrays)
        return states.float().cpu().numpy(), vectors.float().cpu().numpy()


def plain_tensors(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies of the weights as contiguous fp32 tensors on the CPU."""
    return {key: weight.detach().float().cpu().clone().contiguous() for key, weight in weights.items()}


def digest_weights(backbone: torch.nn.Module) -> str:
    """Return the sha256 of names, shapes and fp32 values of the weights that vectors depend on."""
    items = (item for item in sorted(backbone.state_dict().items()) if not item[0].startswith("pooler."))
    return weights_digest((name, tensor.detach().float().cpu().numpy()) for name, tensor in items)


def stored_tensors(source: Path | bytes, name: str = "") -> dict[str, torch.Tensor]:
    """Read a `.bin` (torch pickle) or `.safetensors` file, by the end of its `name`, as named tensors.

    A pickle is read by torch's weights-only reader, which refuses every call to other code. Raises ValueError
    for anything but plain tensors of the file's bytes, and the errors of torch and safetensors.
    """
    if isinstance(source, Path):
        require_size(source)
    if not (name or str(source)).endswith(".bin"):
        return load_file(source) if isinstance(source, Path) else load(source)
    size = source.stat().st_size if isinstance(source, Path) else len(source)
    file = source if isinstance(source, Path) else io.BytesIO(source)
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file if isinstance(file, io.BytesIO) else require_regular(file)) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("it is compressed, which torch's files are not")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about pickle protocols
        tensors = torch.load(
            io.BytesIO(source) if isinstance(source, bytes) else source, map_location="cpu", weights_only=True
        )
    if not isinstance(tensors, dict) or not all(
        isinstance(value, torch.Tensor) for value in tensors.values()
    ):
        raise ValueError("it holds something else than named tensors")
    plain = all(value.layout == torch.strided and value.device.type == "cpu" for value in tensors.values())
    if not plain or sum(value.numel() * value.element_size() for value in tensors.values()) > 4 * size:
        raise ValueError("it holds tensors that are not in the file")
    return {str(key): value for key, value in tensors.items()}


OLDER_KEYS = {"global_rope_theta", "local_rope_theta", "layer_norm_epsilon"}
"""Keys of older configurations that transformers still reads."""
NOT_HANDED_ON = {"transformers_version", "dtype", "architectures", "model_type", "_name_or_path"}


def read_retriever(folder: Path | str, *, max_tokens: int | None = None) -> BiEncoder:
    """Open a sentence-transformers bi-encoder in fp32 on the CPU.

    The input limit is `max_tokens`, 512 without it, and never more than the model's own. Raises ModelError if
    the folder is missing, damaged, or holds another kind of model, MissingExtra without transformers.
    """
    folder = Path(folder)
    require_intact(folder)
    with explain_errors(folder):
        usage = read_usage(folder, max_tokens)
    backbone, tokenizer, missing = read_model(backbone_folder(folder))
    if used := sorted(name for name in missing if not name.startswith("pooler.")):
        raise ModelError(f"the model {folder} lacks {len(used)} weights, such as {used[0]}", hint=FETCH_AGAIN)
    if missing:
        backbone.pooler = None  # it is not used
    limit = min(usage.max_tokens, longest_input(backbone.config))
    return BiEncoder(backbone, tokenizer, replace(usage, max_tokens=limit), folder)


def read_model(folder: Path, head: str = "Model") -> tuple[Any, str, set[str]]:
    """Return a transformers model in fp32, its tokenizer as JSON, and the names of missing weights.

    The name of its class ends in `head`. Raises ModelError.
    """
    with explain_errors(folder):
        config = read_configuration(folder)
        tokenizer = canonical_tokenizer(
            configured_tokenizer(folder, read_tokenizer(folder, config.model_type))
        )
        weights: dict[str, torch.Tensor] = {}
        for path in weight_files(folder):
            weights |= stored_tensors(path)
        kind = getattr(transformers, f"{STEMS[config.model_type]}{head}")
        model, info = load_weights(folder, kind, config, weights)
        if surplus := sorted(key for key in info["unexpected_keys"] if ".layer." in key):
            raise ModelError(
                f"the model {folder} has more layers than config.json says, such as {surplus[0]}",
                hint=FETCH_AGAIN,
            )
        require_embeddings(folder, tokenizer, int(model.get_input_embeddings().weight.shape[0]))
    return model, tokenizer, set(info["missing_keys"])


def read_configuration(folder: Path) -> Any:
    """Return a backbone's configuration as a transformers object, from its folder. Raise ModelError.

    Only options that transformers' configuration class knows are passed on. So nothing in the file can name
    code, kernels or another place.
    """
    record = known_configuration(folder)
    make = getattr(transformers, f"{STEMS[record['model_type']]}Config")
    names = (make().to_dict().keys() | OLDER_KEYS) - NOT_HANDED_ON
    with explain_errors(folder):
        return make(**{name: value for name, value in record.items() if name in names})


def load_weights(
    folder: Path, kind: Any, config: Any, weights: Mapping[str, torch.Tensor]
) -> tuple[Any, dict[str, Any]]:
    """Return a model of the class `kind` with these weights, in fp32, and the names that did not match.

    Raises ModelError, also if the configuration describes over 8 times the weights in the files.
    """
    present = sum(weight.numel() for weight in weights.values())
    with explain_errors(folder), quiet_transformers():
        with torch.device("meta"):
            needed = sum(weight.numel() for weight in kind(config).parameters())
        if needed > 8 * max(present, 1_000):
            raise ModelError(
                f"config.json of {folder} describes {needed:,} weights; the files hold {present:,}",
                hint=FETCH_AGAIN,
            )
        model, info = kind.from_pretrained(  # the weights replace the usual random initialisation
            None,
            config=config,
            state_dict=weights,
            attn_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
        )
    return model.float().eval(), info


def names_file(key: str) -> bool:
    """Return whether a key of a tokenizer's configuration names a file."""
    return key.endswith("_file") and key != "special_tokens_map_file"


def read_tokenizer(folder: Path, kind: str) -> str:
    """Return the tokenizer as JSON of `tokenizers`; transformers converts older folders."""
    path = folder / TOKENIZER_FILE
    if path.is_file():
        return read_within(path).decode()
    if keys := [name for name, value in read_object(folder, FILES[1]).items() if value and names_file(name)]:
        raise ModelError(f"the model {folder} takes its {keys[0]} from elsewhere", hint=FETCH_AGAIN)
    make = getattr(transformers, f"{STEMS[kind]}TokenizerFast")
    fast = make.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return str(fast.backend_tokenizer.to_str())


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Run the block without transformers' progress bars and warnings."""
    logging: Any = transformers.utils.logging
    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def open_torch(folder: Path, precision: str) -> Engine:
    """Return an engine that encodes with torch, on the GPU if there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = read_retriever(folder).to(device)

    @contextmanager
    def computing() -> Iterator[None]:
        """Run the block in the chosen precision. Raises ModelError if the GPU's memory is too small."""
        try:
            with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
                yield
        except torch.cuda.OutOfMemoryError as error:
            raise ModelError(
                f"the memory of the GPU is too small: {str(error).splitlines()[0]}",
                hint="fewer tokens need less (--max-tokens), so do fewer workers on one GPU",
            ) from error

    def run(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> Vectors:
        """Return the vectors of a batch."""
        with computing():
            return model.run(ids, mask)

    def read(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> tuple[Vectors, Vectors]:
        """Return the token states and vectors of a batch."""
        with computing():
            return model.read(ids, mask)

    return Engine(run, read, model.width, model.batch_tokens, on_gpu=device == "cuda")
