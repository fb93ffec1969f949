"""The files beside a graph: weights, configuration and tokenizer, for transformers and its kin."""

from __future__ import annotations

import shutil
from pathlib import Path

from tokenizers import Tokenizer

from ..encoding.retriever import WEIGHTS_FILE, Retriever
from ..encoding.sentence_transformers import read_special_tokens, require_no_links
from ..encoding.tokens import TOKENIZER_FILE
from ..errors import MissingExtra
from ..files.atomic import write_json

try:
    from safetensors.torch import save_file
except ImportError as missing:
    raise MissingExtra(missing.name or "safetensors", "train", "exporting a model") from missing

KEPT = ("vocab.txt", "losses.jsonl", "training.safetensors", "dam")
"""What is handed on when a folder is exported again: files, and the DAM that was fitted."""


def write_model(retriever: Retriever, folder: Path) -> None:
    """Write weights, configuration and tokenizer as transformers and sentence-transformers read them.

    What has a parallel adapter gets the tokenizer only: transformers would ignore the adapter.
    """
    write_tokenizer_files(retriever, folder)
    if is_graph_only(retriever):
        return
    weights = {
        name: value.detach().cpu().contiguous() for name, value in retriever.backbone.state_dict().items()
    }
    save_file(weights, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    configuration = retriever.backbone.config.to_dict()
    configuration |= {"architectures": [type(retriever.backbone).__name__], "dtype": "float32"}
    write_json(folder / "config.json", {key: value for key, value in configuration.items() if key[0] != "_"})
    write_modules(retriever, folder)


def is_graph_only(retriever: Retriever) -> bool:
    """Tell whether the backbone has modules that transformers would ignore: a parallel adapter's."""
    return any(".parallel_adapter." in name for name in retriever.backbone.state_dict())


def write_tokenizer_files(retriever: Retriever, folder: Path) -> None:
    """Write the tokenizer, and hand on what else belongs to the source.

    Its configuration is written anew: classes of a kind of model rebuild the tokenizer by their own rules,
    the plain one takes `tokenizer.json` as it is.
    """
    (folder / TOKENIZER_FILE).write_text(retriever.tokenizer_json, encoding="utf-8")
    if retriever.folder:
        require_no_links(retriever.folder)
    for name in KEPT if retriever.folder else ():
        source = Path(str(retriever.folder)) / name
        if source.exists():
            copy_whole(source, folder / name)
    special = known_tokens(retriever)
    write_json(folder / "special_tokens_map.json", special)
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": retriever.input_names,
        "model_max_length": retriever.max_tokens,
    }
    write_json(folder / "tokenizer_config.json", configuration | special)


def copy_whole(source: Path, target: Path) -> None:
    """Copy a file, or a folder with all that is in it."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def known_tokens(retriever: Retriever) -> dict[str, str]:
    """Give the special tokens that the tokenizer has; others would get ids that no embedding has."""
    tokenizer = Tokenizer.from_str(retriever.tokenizer_json)
    named = read_special_tokens(retriever.folder, retriever.backbone.config.model_type)
    return {role: token for role, token in named.items() if tokenizer.token_to_id(token) is not None}


def write_modules(retriever: Retriever, folder: Path) -> None:
    """Write the sentence-transformers files, in the form that old and new versions read."""
    usage = retriever.usage
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if usage.similarity == "cosine":
        modules.append(("2_Normalize", "Normalize"))
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    write_json(folder / "modules.json", listed)
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": usage.max_tokens, "do_lower_case": False}
    )
    names = {"cosine": "cosine", "ip": "dot"}
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": dict(usage.prefixes), "similarity_fn_name": names[usage.similarity]},
    )
    for path, _ in modules[1:]:
        (folder / path).mkdir()
    kinds = ("cls", "mean", "max", "mean_sqrt_len")
    pooling = {
        f"pooling_mode_{kind}_{'token' if kind == 'cls' else 'tokens'}": kind == usage.pooling
        for kind in kinds
    }
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": retriever.dim, **pooling})
