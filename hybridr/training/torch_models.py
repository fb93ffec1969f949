"""Models of transformers and sentence-transformers, opened by torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..encoders.contract import longest_input
from ..encoders.model_usage import configured_tokenizer, read_usage
from ..encoders.stored_models import (
    FETCH_AGAIN,
    FILES,
    STEMS,
    backbone_folder,
    explaining,
    known_configuration,
    read_object,
    require_embeddings,
    require_intact,
    weight_files,
)
from ..encoders.tokens import TOKENIZER_FILE, canonical_tokenizer
from ..errors import ModelError, extra
from ..files.foreign import read_within
from .retriever import BiEncoder, stored_tensors

with extra("train", "adapting or exporting a model"):
    import torch

OLDER_KEYS = {"global_rope_theta", "local_rope_theta", "layer_norm_epsilon"}
"""What older configurations say in other words, and transformers still reads."""
NOT_HANDED_ON = {"transformers_version", "dtype", "architectures", "model_type", "_name_or_path"}


def read_retriever(folder: Path | str, *, max_tokens: int | None = None) -> BiEncoder:
    """Open a sentence-transformers bi-encoder in fp32 on the CPU.

    The input limit is the model's own, or `max_tokens` if that is lower. Raises ModelError when the folder
    is missing, damaged, or holds another kind of model, MissingExtra without torch.
    """
    folder = Path(folder)
    require_intact(folder)
    with explaining(folder):
        usage = read_usage(folder, max_tokens)
    backbone, tokenizer, missing = read_model(backbone_folder(folder))
    drop_missing(backbone, missing, folder)
    limit = min(usage.max_tokens, longest_input(backbone.config))
    return BiEncoder(backbone, tokenizer, replace(usage, max_tokens=limit), folder)


class OpenedModel(NamedTuple):
    """A model of transformers in fp32, its tokenizer as JSON, and the names of weights that it lacks."""

    model: Any
    tokenizer: str
    missing: set[str]


def read_model(folder: Path, head: str = "Model") -> OpenedModel:
    """Open a model of transformers, named by its `head`, and the tokenizer beside it. Raises ModelError."""
    with explaining(folder):
        config = read_configuration(folder)
        tokenizer = canonical_tokenizer(
            configured_tokenizer(folder, read_tokenizer(folder, config.model_type))
        )
        with quiet():
            model, info = read_backbone(folder, config, head)
        require_same_model(folder, model, tokenizer, info)
    return OpenedModel(model.float().eval(), tokenizer, set(info["missing_keys"]))


def read_configuration(folder: Path) -> Any:
    """Make the configuration of a backbone in transformers. Raises ModelError.

    Only what the kind's own configuration knows is handed on, so that nothing in the file can name code,
    kernels or another place.
    """
    record = known_configuration(folder)
    make = getattr(imported_transformers(), f"{STEMS[record['model_type']]}Config")
    names = (make().to_dict().keys() | OLDER_KEYS) - NOT_HANDED_ON
    with explaining(folder):
        return make(**{name: value for name, value in record.items() if name in names})


def imported_transformers() -> Any:
    """Import transformers. Raises MissingExtra: what encodes and searches does without."""
    with extra("train", "adapting or exporting a model"):
        import transformers
    return transformers


def read_backbone(folder: Path, config: Any, head: str = "Model") -> tuple[Any, Mapping[str, Any]]:
    """Build the backbone around the folder's weights; `missing_keys` and `unexpected_keys` tell what differs.

    Raises ModelError, and what torch, safetensors and transformers raise.
    """
    weights: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        weights |= stored_tensors(path)
    kind = getattr(imported_transformers(), f"{STEMS[config.model_type]}{head}")
    require_plausible(folder, kind, config, weights)
    backbone, info = kind.from_pretrained(
        None,
        config=config,
        state_dict=weights,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
    )
    return backbone, info


def require_plausible(folder: Path, kind: Any, config: Any, weights: Mapping[str, torch.Tensor]) -> None:
    """Raise ModelError when the configuration is that of a far larger model, before memory is taken."""
    with torch.device("meta"):
        needed = sum(weight.numel() for weight in kind(config).parameters())
    there = sum(weight.numel() for weight in weights.values())
    if needed > 8 * max(there, 1_000):
        raise ModelError(
            f"config.json of {folder} speaks of {needed:,} weights, {there:,} are there", hint=FETCH_AGAIN
        )


def require_same_model(folder: Path, backbone: Any, tokenizer: str, info: Mapping[str, Any]) -> None:
    """Raise ModelError when configuration or tokenizer belong to another model than the weights."""
    beyond = sorted(key for key in info["unexpected_keys"] if ".layer." in key)
    if beyond:
        raise ModelError(
            f"the model {folder} has more layers than config.json says, such as {beyond[0]}", hint=FETCH_AGAIN
        )
    require_embeddings(folder, tokenizer, int(backbone.get_input_embeddings().weight.shape[0]))


def is_place(key: str) -> bool:
    """Tell whether a key of a tokenizer's configuration names a file, wherever it may lie."""
    return key.endswith("_file") and key != "special_tokens_map_file"


def read_tokenizer(folder: Path, kind: str) -> str:
    """Read the tokenizer as JSON of the `tokenizers` package; that of older folders by the kind's class."""
    path = folder / TOKENIZER_FILE
    if path.is_file():
        return read_within(path).decode()
    if named := [name for name, value in read_object(folder, FILES[1]).items() if value and is_place(name)]:
        raise ModelError(f"the model {folder} takes its {named[0]} from elsewhere", hint=FETCH_AGAIN)
    make = getattr(imported_transformers(), f"{STEMS[kind]}TokenizerFast")
    fast = make.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return str(fast.backend_tokenizer.to_str())


def drop_missing(backbone: Any, missing: set[str], folder: Path) -> None:
    """Remove an untrained pooler, which the vectors do not use; any other missing weight is an error."""
    lost = sorted(name for name in missing if not name.startswith("pooler."))
    if lost:
        raise ModelError(f"the model {folder} lacks {len(lost)} weights, such as {lost[0]}", hint=FETCH_AGAIN)
    if missing:
        backbone.pooler = None


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and from remarks on what it loads: it is checked here."""
    logging: Any = imported_transformers().utils.logging
    bars, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
