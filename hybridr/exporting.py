"""Writes an encoder folder that transformers, sentence-transformers and ONNX Runtime open unchanged."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .encoder import GRAPHS, OUTPUT, TOKENIZER_FILE, OnnxEncoder, Precision, Vectors, encoder_record
from .errors import MissingExtra, ModelError
from .manifest import read_manifest, write_json, write_manifest
from .model_card import CARD_FILE, render_card
from .progress import Progress, silent
from .retriever import WEIGHTS_FILE, Retriever, read_json, read_retriever
from .staging import staged_folder

try:
    import onnx  # noqa: F401  # torch's exporter and the quantiser need it
    import torch
    from safetensors.torch import save_file
except ImportError as missing:
    raise MissingExtra(missing.name or "onnx", "train", "exporting a model") from missing

if TYPE_CHECKING:
    from .assembly import Ranker

OPSET = 17
FP32_TOLERANCE = 1e-4
INT8_COSINE = 0.9  # the least mean cosine to fp32 that still counts as the same encoder
PARITY_TEXTS = 128
KEPT_FILES = ("vocab.txt", "special_tokens_map.json", "losses.jsonl", "training.safetensors")
SPECIAL_TOKENS: dict[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
    **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
}
"""The tokenizer's configuration where the source has none: BERT's."""
KEPT_RECORDS = ("adaptation", "assembly")
"""What is handed on when an encoder folder is exported again."""


def export(
    encoder: Retriever | Ranker | OnnxEncoder | Path | str,
    folder: Path | str,
    *,
    precision: Precision = "fp32",
    texts: Sequence[str] = (),
    records: Mapping[str, Any] | None = None,
    attachments: Mapping[str, Path] | None = None,
    progress: Progress = silent,
) -> Path:
    """Write `encoder` (a torch retriever, an assembled dense ranker, or a folder of either) into `folder`.

    What has a parallel adapter opens in ONNX Runtime only: its folder holds no weights for transformers.

    With "int8" the folder holds the fp32 graph and a dynamically quantised one, which is opened first.
    ONNX is compared with torch over `texts` (filled up to 128 with generated ones); the result goes into
    the manifest, beside `records`. `attachments` (name: file) are copied beside the weights. The folder is
    replaced whole or not at all; it may be the source's own. Raises ModelError when the source cannot be
    used, the results differ by more than 1e-4 (fp32), or `folder` holds something else; DownloadError when
    it cannot be written.
    """
    if precision not in GRAPHS:
        raise ModelError(f"there is no precision '{precision}'", hint="fp32 or int8")
    folder = Path(folder)
    require_replaceable(folder)
    retriever = opened(encoder)
    with staged_folder(folder) as staged:
        progress("export", 0, 3, "weights")
        write_model(retriever, staged)
        for name, path in (attachments or {}).items():
            shutil.copyfile(path, staged / name)
        progress("export", 1, 3, "graph")
        write_graph(retriever, staged / GRAPHS["fp32"])
        if precision == "int8":
            quantize(staged / GRAPHS["fp32"], staged / GRAPHS["int8"])
        progress("export", 2, 3, "parity")
        record_export(retriever, staged, precision, texts, assembled(encoder) | dict(records or {}))
        progress("export", 3, 3)
    return folder


def export_target(source: Path) -> Path:
    """Choose where to export by default: an encoder folder in place, another beside the working folder."""
    try:
        encoder_record(source)
    except ModelError:
        return Path(f"{source.name}-encoder")
    return source


def opened(encoder: Retriever | Ranker | OnnxEncoder | Path | str) -> Retriever:
    """Give the torch retriever of any form of encoder."""
    if isinstance(encoder, Retriever):
        return encoder
    if isinstance(encoder, (OnnxEncoder, Path, str)):
        return read_retriever(encoder.folder if isinstance(encoder, OnnxEncoder) else encoder)
    return encoder.retriever()


def assembled(encoder: Retriever | Ranker | OnnxEncoder | Path | str) -> dict[str, Any]:
    """Give what the manifest says about DAM and REM; empty for other encoders."""
    if isinstance(encoder, (Retriever, OnnxEncoder, Path, str)):
        return {}
    return {"assembly": encoder.origins}


def is_graph_only(retriever: Retriever) -> bool:
    """Tell whether the backbone has modules that transformers would ignore: a parallel adapter's."""
    return any(".parallel_adapter." in name for name in retriever.backbone.state_dict())


def require_replaceable(folder: Path) -> None:
    """Raise ModelError when `folder` holds anything but an encoder or the state of an unfinished run."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() and not (folder / ".training").is_dir():
        try:
            encoder_record(folder)
        except ModelError as error:
            raise ModelError(
                f"{folder} exists and is not an encoder of hybridr, so it is not replaced",
                hint="choose another folder with --out, or remove it",
            ) from error


def write_model(retriever: Retriever, folder: Path) -> None:
    """Write weights, configuration and tokenizer as transformers and sentence-transformers read them."""
    write_tokenizer(retriever, folder)
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


def write_tokenizer(retriever: Retriever, folder: Path) -> None:
    """Write the tokenizer, and hand on what else belongs to the source."""
    (folder / TOKENIZER_FILE).write_text(retriever.tokenizer_json, encoding="utf-8")
    own: dict[str, Any] = SPECIAL_TOKENS
    if retriever.folder is not None:
        own = read_json(retriever.folder, "tokenizer_config.json", default=SPECIAL_TOKENS)
        for name in KEPT_FILES:
            if (retriever.folder / name).is_file():
                shutil.copyfile(retriever.folder / name, folder / name)
    write_json(folder / "tokenizer_config.json", own | {"model_max_length": retriever.max_tokens})


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


def write_graph(retriever: Retriever, path: Path) -> None:
    """Trace the retriever into one self-contained ONNX file with free batch and token axes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ["input_ids", "attention_mask"]
    if getattr(retriever.backbone.config, "type_vocab_size", 0) > 1:
        names.append("token_type_ids")
    ids = torch.randint(0, retriever.backbone.config.vocab_size, (2, 9), generator=torch.Generator())
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    example = (ids, mask, torch.zeros_like(ids))[: len(names)]
    outputs = ["last_hidden_state", OUTPUT]
    axes = {name: {0: "batch", 1: "tokens"} for name in [*names, outputs[0]]} | {OUTPUT: {0: "batch"}}
    device = retriever.device
    with torch.inference_mode(), silenced():
        torch.onnx.export(
            retriever.cpu().eval(), example, str(path), input_names=names, output_names=outputs,
            dynamic_axes=axes, opset_version=OPSET, dynamo=False,
        )  # fmt: skip
    retriever.to(device)


@contextmanager
def silenced() -> Any:
    """Hide what torch and the quantiser remark while they trace: the parity check judges the result."""
    import logging

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


def quantize(graph: Path, target: Path) -> None:
    """Quantise the matrix products to int8: weights per channel, activations per batch."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with silenced(), tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / target.name
        quantize_dynamic(
            str(graph), str(written), per_channel=True, weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul"], extra_options={"MatMulConstBOnly": True},
        )  # fmt: skip
        shutil.copyfile(written, target)


def record_export(
    retriever: Retriever, folder: Path, precision: Precision, texts: Sequence[str], records: dict[str, Any]
) -> None:
    """Check parity with torch, write the manifest and render the model card."""
    encoder = describe(retriever, precision)
    parity = measure_parity(retriever, folder, encoder, texts)
    source = read_manifest(retriever.folder) if retriever.folder else None
    kept = {name: source[name] for name in KEPT_RECORDS if source and name in source}
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        path.chmod(0o644)
    manifest = write_manifest(
        folder,
        stage="export",
        settings={"precision": precision, "opset": OPSET},
        inputs={"model": encoder["base"]},
        outputs=[path.relative_to(folder).as_posix() for path in files],
        parents=[source["encoder"]["fingerprint"]] if source and "encoder" in source else [],
        extra={"encoder": encoder, "parity": parity, **kept, **records},
    )
    (folder / CARD_FILE).write_text(render_card(manifest), encoding="utf-8")


def describe(retriever: Retriever, precision: Precision) -> dict[str, Any]:
    """Give the `encoder` entry of the manifest: all that is needed to use the graph."""
    usage = retriever.usage
    return {
        "dim": retriever.dim,
        "pooling": usage.pooling,
        "similarity": usage.similarity,
        "prefixes": dict(usage.prefixes),
        "max_tokens": usage.max_tokens,
        "max_positions": retriever.max_positions,
        "fingerprint": retriever.fingerprint,
        "precision": precision,
        "base": retriever.base,
        "graph_only": is_graph_only(retriever),
    }


def measure_parity(
    retriever: Retriever, folder: Path, encoder: dict[str, Any], texts: Sequence[str]
) -> dict[str, Any]:
    """Compare ONNX with torch over texts of different lengths. Raises ModelError when they differ."""
    sample = [*texts, *generated_texts(retriever, PARITY_TEXTS - len(texts))]
    reference = retriever.encode_documents(sample)
    gap = float(
        np.abs(reference - OnnxEncoder(folder, encoder, precision="fp32").encode_documents(sample)).max()
    )
    if not gap <= FP32_TOLERANCE:
        raise ModelError(
            f"ONNX and torch differ by {gap:.2g} over {len(sample)} texts, {FP32_TOLERANCE:g} is allowed",
            hint="nothing was exported; try other versions of torch and onnxruntime",
        )
    record: dict[str, Any] = {"texts": len(sample), "max_abs_difference": gap, "tolerance": FP32_TOLERANCE}
    if encoder["precision"] == "int8":
        record["int8_cosine"] = measure_int8(reference, OnnxEncoder(folder, encoder).encode_documents(sample))
    return record


def measure_int8(reference: Vectors, found: Vectors) -> dict[str, float]:
    """Compare int8 vectors with fp32 ones `(n, dim)`. Raises ModelError when they are far apart."""
    cosines = cosine(reference, found)
    mean, least = float(cosines.mean()), float(cosines.min())
    if not mean >= INT8_COSINE:
        raise ModelError(
            f"int8 keeps a mean cosine of {mean:.3f} to fp32, {INT8_COSINE} is needed",
            hint="this model does not bear int8: export with --precision fp32",
        )
    return {"mean": mean, "least": least}


def cosine(left: Vectors, right: Vectors) -> Vectors:
    """Compare two `(n, dim)` arrays row by row, as cosines `(n,)`."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    result: Vectors = (left * right).sum(axis=1) / np.maximum(lengths, 1e-12)
    return result


def generated_texts(retriever: Retriever, count: int) -> list[str]:
    """Make texts of random words of the vocabulary, from one word to beyond the limit."""
    entries = json.loads(retriever.tokenizer_json)["model"]["vocab"]  # words, or pairs of word and score
    words = (entry if isinstance(entry, str) else entry[0] for entry in entries)
    vocabulary = [word for word in words if word.isalpha()]
    random = np.random.default_rng(0)
    lengths = np.geomspace(1, retriever.max_tokens * 1.2, max(count, 0)).astype(int)
    return [" ".join(random.choice(vocabulary, size)) for size in lengths]
