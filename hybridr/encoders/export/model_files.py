"""Writes an encoder's other files: weights, configuration and tokenizer for transformers, and the card."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from ...files.local import cache_folder, write_json
from ..contract import WEIGHTS_FILE, require_no_links
from ..stored_models import backbone_folder, read_special_tokens
from ..tokens import TOKENIZER_FILE, TextModel
from .weights import NumpyBiEncoder, needed_weights


class TorchBiEncoder(TextModel):
    """The part of a torch bi-encoder that an export needs; the class is `training.torch_models.BiEncoder`."""

    backbone: Any
    base: str
    """Name of the model that this one was made from."""
    tokenizer_json: str

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of weights, tokenizer and usage."""
        raise NotImplementedError


Exportable: TypeAlias = TorchBiEncoder | NumpyBiEncoder
"""Content of an encoder folder: a bi-encoder in torch, or its weights as arrays."""

CLASSES = {
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "distilbert": "DistilBertModel",
}
KEPT = ("vocab.txt", "losses.jsonl", "dam")
"""Files, and the folder of a DAM, that are copied when a folder is exported again."""


def write_model(retriever: Exportable, folder: Path) -> None:
    """Write weights, configuration and tokenizer for transformers and sentence-transformers.

    For a model with a parallel adapter only the tokenizer is written, because transformers would ignore the
    adapter.
    """
    write_tokenizer_files(retriever, folder)
    if is_graph_only(retriever):
        return
    weights_file = folder / WEIGHTS_FILE
    if isinstance(retriever, NumpyBiEncoder):
        source = retriever.folder / WEIGHTS_FILE if retriever.folder else weights_file
        is_reusable = source.is_file() and source.is_relative_to(cache_folder())
        if is_reusable:  # if all weights are in fp32 under the backbone's names
            with safe_open(source, framework="np") as file:
                kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
            is_reusable = all(kinds.get(name) == "F32" for name in needed_weights(retriever.config))
        if is_reusable:  # linked, not copied
            try:
                os.link(source.resolve(), weights_file)  # in the hub's cache the source is a symbolic link
            except OSError:  # the file system has no links
                shutil.copyfile(source, weights_file)
        else:
            save_file(dict(retriever.weights), weights_file, metadata={"format": "pt"})
        configuration, opened_by = vars(retriever.config), CLASSES[retriever.config.model_type]
    else:
        from safetensors.torch import save_file as save_tensors

        state = retriever.backbone.state_dict()
        weights = {name: value.detach().cpu().contiguous() for name, value in state.items()}
        save_tensors(weights, weights_file, metadata={"format": "pt"})
        configuration, opened_by = retriever.backbone.config.to_dict(), type(retriever.backbone).__name__
    configuration = configuration | {"architectures": [opened_by], "dtype": "float32"}
    write_json(folder / "config.json", {key: value for key, value in configuration.items() if key[0] != "_"})
    write_modules(retriever, folder)


def is_graph_only(retriever: Exportable) -> bool:
    """Return whether transformers cannot open the model: an ensemble, or one with a parallel adapter."""
    if isinstance(retriever, NumpyBiEncoder):
        return retriever.graph_only
    return any(".parallel_adapter." in name for name in retriever.backbone.state_dict())


def write_tokenizer_files(retriever: Exportable, folder: Path) -> None:
    """Write the tokenizer and its configuration, and copy further files of the source.

    The configuration names the plain fast tokenizer, because model-specific classes would rebuild it by other
    rules.
    """
    (folder / TOKENIZER_FILE).write_text(retriever.tokenizer_json, encoding="utf-8")
    if retriever.folder:
        require_no_links(retriever.folder)
    for name in KEPT if retriever.folder else ():
        source = Path(str(retriever.folder)) / name
        if source.exists():
            copy_all(source, folder / name)
    # Special tokens that the tokenizer lacks are omitted: they would get ids without an embedding.
    tokenizer, tokenizer_folder = Tokenizer.from_str(retriever.tokenizer_json), retriever.folder
    if tokenizer_folder and (tokenizer_folder / "modules.json").is_file():
        tokenizer_folder = backbone_folder(tokenizer_folder)
    tokens = read_special_tokens(tokenizer_folder, retriever.config.model_type)
    special = {role: token for role, token in tokens.items() if tokenizer.token_to_id(token) is not None}
    write_json(folder / "special_tokens_map.json", special)
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": retriever.input_names,
        "model_max_length": retriever.max_tokens,
    }
    write_json(folder / "tokenizer_config.json", configuration | special)


def copy_all(source: Path, target: Path) -> None:
    """Copy a file, or a folder with all its content."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def write_modules(retriever: Exportable, folder: Path) -> None:
    """Write the sentence-transformers files in the form that old and new versions read."""
    usage = retriever.usage
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    if usage.similarity == "cosine":
        modules.append(("2_Normalize", "Normalize"))
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    write_json(folder / "modules.json", entries)
    write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": usage.max_tokens, "do_lower_case": False}
    )
    names = {"cosine": "cosine", "ip": "dot"}
    write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": dict(usage.prefixes), "similarity_fn_name": names[usage.similarity]}
        | ({"truncate_dim": usage.truncate_dim} if usage.truncate_dim else {}),
    )
    for path, _ in modules[1:]:
        (folder / path).mkdir()
    kinds = ("cls", "mean", "max", "mean_sqrt_len")
    pooling = {
        f"pooling_mode_{kind}_{'token' if kind == 'cls' else 'tokens'}": kind == usage.pooling
        for kind in kinds
    }
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": retriever.width, **pooling})


CARD_FILE = "README.md"

ELSEWHERE = """
from sentence_transformers import SentenceTransformer
vectors = SentenceTransformer("FOLDER").encode(["a text"])
"""
GRAPH_ONLY = """
# It has a parallel adapter, or is two retrievers in one: ONNX Runtime opens it,
# transformers and sentence-transformers do not.
"""

TRAINED = """Trained without labels on {documents:,} documents: {steps} steps of `{objective}`{method}, \
loss {loss_start:.3f} to {loss_end:.3f}, strength {strength:g}, seed {seed}."""
JOINED = """Fitted without labels to {documents:,} documents: `{objective}`{method}, whose share is \
{strength:g}; {dim} components lose {loss_end:.1%} of their vectors, seed {seed}."""
ADAPTATION = """
## Adaptation

{work}

{gate}

| on {queries} | before | after | p |
|---|---|---|---|
{rows}
"""


def render_card(manifest: Mapping[str, Any]) -> str:
    """Return the README.md of an encoder folder, made from its manifest."""
    encoder, parity = manifest["encoder"], manifest["parity"]
    adaptation = manifest.get("adaptation")
    adapted = bool(adaptation and adaptation["promoted"])
    int8_cosine, assembly = parity.get("int8_cosine"), manifest.get("assembly")
    if assembly:
        dam, rem = f"`{assembly['dam']}`", f"`{assembly['rem']}`" if assembly["rem"] else ""
        origin = f"Assembled from the masked-LM backbone {dam}{rem and f' and the relevance module {rem}'}."
        method = f"| trained by | {assembly['method']} |\n" if assembly.get("method") else ""
        modules = f"| domain module (DAM) | {dam} |\n| relevance module (REM) | {rem or 'none'} |\n{method}"
    else:
        trained = adapted and manifest["adaptation"]["training"]["steps"]
        origin = f"Made from `{encoder['base']}`{' by LoRA, merged' if trained else ''}."
        modules = ""
    template = resources.files(__package__).joinpath("card.md").read_text(encoding="utf-8")
    return template.format(
        manifest=manifest,
        encoder=encoder,
        parity=parity,
        title="An encoder adapted to one collection" if adapted else "A sentence encoder",
        origin=origin,
        library="onnx" if encoder["graph_only"] else "sentence-transformers",
        ndcg=render_ndcg(parity),
        modules=modules,
        int8=f"; int8 against fp32: mean cosine {int8_cosine['mean']:.4f}, least {int8_cosine['least']:.4f}"
        if int8_cosine
        else "",
        adaptation=render_adaptation(adaptation) if adaptation else "",
        elsewhere=GRAPH_ONLY if encoder["graph_only"] else ELSEWHERE,
    )


def render_ndcg(parity: Mapping[str, Any]) -> str:
    """Return a line with the nDCG of each form of the encoder, measured on queries made from documents."""
    ndcg = parity["ndcg"]
    if ndcg is None:
        return f"not measured: {parity['ndcg_reason']}"
    values = ", ".join(
        f"{name} {ndcg[name]:.4f}" for name in ("torch", "numpy", "fp32", "int8") if name in ndcg
    )
    return f"{values} on {ndcg['probes']:,} queries made from {ndcg['documents']:,} documents"


def render_adaptation(adaptation: Mapping[str, Any]) -> str:
    """Return the card's section about training and gate, and which weights the folder holds."""
    gate, training = adaptation["gate"], adaptation["training"]
    verb = TRAINED if training["steps"] else JOINED
    method = f" ({adaptation['method']})" if "method" in adaptation else ""
    count, unseen = gate.get("judged", 0), f"queries made from {gate['held_out']} held-out documents"
    rows = (
        f"| {row['name']} | {row['old']:.4f} | {row['new']:.4f} | {row['p']:.3f} |" for row in gate["rows"]
    )
    reasons = "; ".join(gate["reasons"])
    verdict = f"The gate saw {'a gain' if count else 'no harm'}: these are the adapted weights."
    if not adaptation["promoted"]:
        verdict = f"The gate said no ({reasons}): these are the weights of the UNADAPTED encoder."
    elif adaptation["forced"]:
        verdict = f"The gate said no ({reasons}); the adapted encoder was exported by force."
    return ADAPTATION.format(
        work=verb.format(**adaptation["settings"] | dict(training), method=method),
        gate=verdict,
        queries=f"{count} judged queries" if count else unseen,
        rows="\n".join(rows),
    )
