"""Reads and writes DAM folders, and reads the files of a REM from a folder or a zip.

A DAM is a masked-LM checkpoint of BERT, RoBERTa or DistilBERT with a tokenizer.
Only tensors and JSON are read, by weights-only unpickling or safetensors.
"""

from __future__ import annotations

import hashlib
import pickle
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ..encoders.contract import WEIGHTS_FILE, longest_input, require_no_links
from ..encoders.stored_models import (
    STEMS,
    explain_errors,
    read_object,
    read_special_tokens,
    require_embeddings,
)
from ..encoders.tokens import TOKENIZER_FILE, canonical_tokenizer
from ..errors import ModelError, extra, first_line
from ..files.local import fingerprint, parsed_json, read_members, read_within, require_regular, write_json
from .torch_models import (
    load_weights,
    names_file,
    plain_tensors,
    read_configuration,
    read_tokenizer,
    stored_tensors,
)

with extra("train", "assembling DAM and REM"):
    import torch
    import transformers
    from safetensors.torch import save_file


Tensors: TypeAlias = dict[str, torch.Tensor]

FETCH_AGAIN = "the file is damaged: fetch or make it again"


def read_tensors(source: Path | bytes, name: str) -> Tensors:
    """Read a `.bin` (torch pickle) or `.safetensors` file to float32 tensors on the CPU.

    `name` is the file's name in errors. Integers keep their type. Raises ModelError if the file is
    missing, truncated, asks to run code, or holds anything but finite tensors.
    """
    if isinstance(source, Path) and not source.is_file():
        raise ModelError(f"{name} is missing", hint=FETCH_AGAIN)
    try:
        stored = stored_tensors(source, name)
        tensors = {
            key: value.float() if value.is_floating_point() else value for key, value in stored.items()
        }
        broken = [key for key, value in tensors.items() if not bool(torch.isfinite(value).all())]
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{name} is not a plain set of tensors; it was not opened, since that may run code",
            hint="take the checkpoint from a source you trust, saved as tensors only",
        ) from error
    except ModelError:
        raise
    except Exception as error:  # torch, zipfile and safetensors raise many kinds
        raise ModelError(f"{name} cannot be read: {first_line(error)}", hint=FETCH_AGAIN) from error
    if broken:
        raise ModelError(f"{name} holds values that are not finite, in {broken[0]}", hint=FETCH_AGAIN)
    return tensors


def read_record(source: Path | bytes, name: str) -> dict[str, Any]:
    """Read a JSON object. Raises ModelError."""
    try:
        record = parsed_json(source if isinstance(source, bytes) else read_within(source))
    except ValueError as error:
        raise ModelError(f"{name} is not valid JSON: {error}", hint=FETCH_AGAIN) from error
    if not isinstance(record, dict):
        raise ModelError(f"{name} is not a JSON object", hint=FETCH_AGAIN)
    return record


CONFIG, WEIGHTS = "adapter_config.json", "pytorch_adapter.bin"
HEAD_CONFIG, HEAD_WEIGHTS = "head_config.json", "pytorch_model_head.bin"
EMBEDDINGS = "embeddings.bin"
KNOWN = {CONFIG, WEIGHTS, HEAD_CONFIG, HEAD_WEIGHTS, EMBEDDINGS}
"""Files that are read; all others, such as `training_args.bin`, are never opened."""

TYPES: dict[str, type] = {"name": str, "model_type": str, "hidden_size": int, "config": dict}
"""Required entries of `adapter_config.json`, with their types."""

RANKERS = {"dense": "dense", "unicoil": "unicoil", "splade": "splade", "colbert": "colbert"}
"""Suffix of `model_class` -> ranker; the re-ranker's class has none."""


@dataclass(frozen=True)
class RemFiles:
    """The files of a REM, with its parsed configuration; weights are read on request."""

    origin: Path
    files: Mapping[str, Path | bytes]
    """The known files by base name."""
    record: Mapping[str, Any]
    """`adapter_config.json`."""

    @property
    def name(self) -> str:
        """The adapter's name, which is a part of every key in its files."""
        return str(self.record["name"])

    @property
    def ranker(self) -> str | None:
        """The ranker that the REM was trained for, by its `model_class`; None if that names none."""
        kind = str(self.record.get("model_class") or "").lower()
        return next((ranker for end, ranker in RANKERS.items() if kind.endswith(end)), None)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of design and weights; 64 hex digits."""
        digest = hashlib.sha256(fingerprint(self.record["config"]).encode())
        for file in (WEIGHTS, HEAD_WEIGHTS, EMBEDDINGS):
            for key, value in sorted(self.tensors(file).items()):
                digest.update(key.encode() + value.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def tensors(self, file: str) -> Tensors:
        """Return the tensors of one weight file; empty if the REM lacks it. Raises ModelError."""
        return read_tensors(self.files[file], self.path_of(file)) if file in self.files else {}

    def path_of(self, file: str) -> str:
        """Return a file's path as text for messages."""
        return f"{self.origin}: {file}"


def read_rem(path: Path) -> RemFiles:
    """Return the REM in a folder or zip, at any depth. Raises ModelError."""
    files = zipped_files(path) if path.is_file() else folder_files(path)
    missing = sorted({CONFIG, WEIGHTS} - files.keys())
    if missing:
        raise ModelError(
            f"{path} is not a REM: it has no {missing[0]}",
            hint="give the folder or zip that holds adapter_config.json and pytorch_adapter.bin",
        )
    record = read_record(files[CONFIG], f"{path}: {CONFIG}")
    absent = sorted(TYPES.keys() - record.keys())
    if absent:
        raise ModelError(f"{path}: {CONFIG} has no '{absent[0]}'", hint=FETCH_AGAIN)
    wrong = [name for name, kind in TYPES.items() if not isinstance(record[name], kind)]
    if wrong:
        raise ModelError(f"{path}: {CONFIG} holds a wrong '{wrong[0]}'", hint=FETCH_AGAIN)
    return RemFiles(path, files, record)


def folder_files(path: Path) -> dict[str, Path | bytes]:
    """Return base name -> path of the known files below a folder or in its only zip. Raises ModelError."""
    if not path.is_dir():
        raise ModelError(f"there is no REM {path}", hint="`hybridr models` lists the published names")
    require_no_links(path)
    files = [file for file in sorted(path.rglob("*")) if file.name in KNOWN and file.is_file()]
    zips = sorted(path.glob("*.zip"))
    if not files and len(zips) == 1:
        return zipped_files(zips[0])
    require_single_rem(path, [str(file.parent) for file in files if file.name == CONFIG])
    return {file.name: file for file in files}


def zipped_files(path: Path) -> dict[str, Path | bytes]:
    """Return base name -> bytes of the known files in a zip, without unpacking it. Raises ModelError."""
    try:
        with zipfile.ZipFile(require_regular(path)) as archive:
            members = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] in KNOWN]
            require_single_rem(path, [name for name in members if name.endswith(CONFIG)])
            files = read_members(archive, members, path.stat().st_size)
            return {name.rsplit("/", 1)[-1]: content for name, content in files.items()}
    except ModelError:
        raise
    except Exception as error:  # zipfile and the libraries of its methods raise many kinds
        raise ModelError(f"{path} cannot be read as a zip: {error}", hint=FETCH_AGAIN) from error


def require_single_rem(path: Path, places: list[str]) -> None:
    """Raise ModelError if more than one REM is in the same folder or zip."""
    if len(places) > 1:
        raise ModelError(f"{path} holds {len(places)} REMs: {', '.join(places)}", hint="give one of them")


MODELS: dict[str, Any] = {
    "bert": transformers.BertForMaskedLM,
    "roberta": transformers.RobertaForMaskedLM,
    "distilbert": transformers.DistilBertForMaskedLM,
}
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json")
UNUSED = ("position_ids", "token_type_ids", "pooler.dense.weight", "pooler.dense.bias")
"""Ends of keys that old files carry and no ranker uses."""
TIED = ("decoder.weight", "decoder.bias", "vocab_projector.weight")
"""Ends of keys that newer files omit, since they equal the word embeddings or the head's bias."""
ROLES = ("pad_token", "cls_token", "sep_token", "mask_token")
CONFIG_FILE, TOKENIZER_CONFIG_FILE = "config.json", "tokenizer_config.json"
COPIED = ("vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json")


@dataclass(frozen=True)
class Dam:
    """A masked-LM model with tokenizer, as read from its folder."""

    folder: Path
    model: Any
    """The masked-LM model, in fp32 and without dropout; its `base_model` is the backbone."""
    tokenizer: str | None
    """Tokenizer as JSON of the `tokenizers` package; None if the folder has none."""
    special_tokens: Mapping[str, str]
    has_language_head: bool
    """Whether the folder held the masked-LM head (a bare backbone does not)."""
    heads: Tensors = field(default_factory=dict)
    """Weights of ranker heads, which full models trained without a REM have."""


def read_dam(folder: Path) -> Dam:
    """Read a DAM folder to the CPU. Raises ModelError if it is missing, damaged, or of another kind."""
    config = read_dam_config(folder)
    tensors, kind = read_weights(folder, config.model_type), MODELS[config.model_type]
    heads = {key: tensors.pop(key) for key in list(tensors) if key.startswith("heads.")}
    with torch.device("meta"):
        needed = {key: tuple(value.shape) for key, value in kind(config).state_dict().items()}
    prefix = f"{config.model_type}."
    missing = [key for key in needed if key.startswith(prefix) and key not in tensors]
    surplus = [key for key in tensors.keys() - needed.keys() if key.startswith(prefix)]
    wrong = [key for key in tensors.keys() & needed.keys() if tuple(tensors[key].shape) != needed[key]]
    surplus = [key for key in surplus if not key.endswith(UNUSED)]
    for complaint, keys in (("lacks", missing), ("has too many", surplus), ("has wrong sizes of", wrong)):
        if keys:
            raise ModelError(
                f"the DAM {folder} {complaint} weights, such as {min(keys)}",
                hint="its config.json belongs to another model, or the weights are damaged: fetch it again",
            )
    special_tokens = read_special_tokens(folder, config.model_type)
    return Dam(
        folder=folder,
        model=load_weights(folder, kind, config, tensors)[0],
        tokenizer=read_dam_tokenizer(folder, config.model_type, config.vocab_size),
        special_tokens={role: special_tokens[role] for role in ROLES},
        has_language_head=all(key in tensors or key.endswith(TIED) for key in needed),
        heads=heads,
    )


def read_dam_config(folder: Path) -> Any:
    """Return the configuration in `config.json`. Raises ModelError for an unsupported kind of model."""
    if not (folder / "config.json").is_file():
        problem = "has no config.json" if folder.is_dir() else "does not exist"
        raise ModelError(f"the DAM {folder} {problem}", hint="`hybridr models` lists the published names")
    require_no_links(folder)
    record = read_object(folder, CONFIG_FILE)
    if str(kind := record.get("model_type")) not in MODELS:
        kinds = ", ".join(MODELS)
        raise ModelError(f"the DAM {folder} is of the kind '{kind}'; one of {kinds} is needed")
    return read_configuration(folder)


def read_weights(folder: Path, kind: str) -> Tensors:
    """Return the weights by their names in a masked-LM checkpoint, from safetensors if present. Raise
    ModelError.

    Names of bare backbones and of the first BERTs are converted; those that begin with `heads.` stay.
    """
    present = [name for name in WEIGHT_FILES if (folder / name).is_file()]
    if not present:
        raise ModelError(
            f"the DAM {folder} has no weights: {' or '.join(WEIGHT_FILES)} is needed", hint=FETCH_AGAIN
        )
    tensors = read_tensors(folder / present[0], f"{folder}: {present[0]}")
    is_backbone = not any(key.startswith(f"{kind}.") for key in tensors)
    renamed = {}
    for key, value in tensors.items():
        if value.is_floating_point():
            name = key.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
                "LayerNorm.beta", "LayerNorm.bias"
            )
            renamed[f"{kind}.{name}" if is_backbone and not key.startswith("heads.") else name] = value
    return renamed


def read_dam_tokenizer(folder: Path, kind: str, vocabulary: int) -> str | None:
    """Return the tokenizer as JSON; None if the folder has none.

    Raises ModelError if the tokenizer is damaged or has ids beyond the embeddings.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return None
    with explain_errors(folder):
        definition = canonical_tokenizer(read_tokenizer(folder, kind))
    require_embeddings(folder, definition, vocabulary)
    return definition


def write_dam_files(
    dam: Dam, folder: Path, *, heads: Mapping[str, torch.Tensor] | None = None, language_head: bool = True
) -> list[str]:
    """Write weights, configuration and tokenizer into `folder`; return the names of the files.

    `heads` are further weights, of a ranker's head; without `language_head` the masked-LM head is left out.
    """
    model, prefix = dam.model, f"{dam.model.base_model_prefix}."
    first_names: dict[int, str] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first_names.setdefault(
            value.data_ptr(), name
        )  # tied weights, such as the decoder's, are written once
    weights = {
        name: value
        for name, value in model.state_dict().items()
        if name in first_names.values() and (language_head or name.startswith(prefix))
    }
    save_file(plain_tensors(weights | dict(heads or {})), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    configuration = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "float32"}
    write_json(folder / CONFIG_FILE, {key: value for key, value in configuration.items() if key[0] != "_"})
    copied_files = [file for file in COPIED if (dam.folder / file).is_file()]
    for file in copied_files:
        shutil.copyfile(dam.folder / file, folder / file)
    if dam.tokenizer is not None:
        (folder / TOKENIZER_FILE).write_text(dam.tokenizer, encoding="utf-8")
        copied_files.append(TOKENIZER_FILE)
    stored = read_object(dam.folder, TOKENIZER_CONFIG_FILE)
    options = {name: value for name, value in stored.items() if not names_file(name)}
    defaults = {"tokenizer_class": f"{STEMS[dam.model.config.model_type]}TokenizerFast", **dam.special_tokens}
    write_json(
        folder / TOKENIZER_CONFIG_FILE, defaults | options | {"model_max_length": longest_input(model.config)}
    )
    return [WEIGHTS_FILE, CONFIG_FILE, *copied_files, TOKENIZER_CONFIG_FILE]
