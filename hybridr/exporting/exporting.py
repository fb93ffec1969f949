"""Writes an encoder folder that transformers, sentence-transformers and ONNX Runtime open unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ..encoding.contract import Precision
from ..encoding.engines import GRAPHS
from ..encoding.folder import OnnxEncoder, encoder_record, verify_encoder
from ..encoding.packaged import minilm
from ..encoding.quantization import quantize
from ..encoding.registry import declared_languages
from ..encoding.sentence_transformers import read_retriever
from ..errors import MissingExtra, ModelError
from ..files.atomic import staged_folder
from ..files.folders import cache_folder
from ..files.manifest import read_manifest, write_manifest
from ..progress import Progress, silent
from ..records import Document
from .graphs import OPSET, write_graph
from .model_card import CARD_FILE, render_card
from .model_files import Exportable, copy_whole, is_graph_only, write_model
from .parity import measure_parity
from .weights import open_without_torch

if TYPE_CHECKING:
    from ..assembly.ranker import Ranker

KEPT_RECORDS = ("adaptation", "assembly")
"""What is handed on when an encoder folder is exported again."""


def export(
    encoder: Exportable | Ranker | OnnxEncoder | Path | str,
    folder: Path | str,
    *,
    precision: Precision = "fp32",
    texts: Sequence[Document | str] = (),
    records: Mapping[str, Any] | None = None,
    attachments: Mapping[str, Path] | None = None,
    progress: Progress = silent,
) -> Path:
    """Write `encoder` (a retriever, an assembled dense ranker, or a folder of either) into `folder`.

    Without torch a folder of BERT's kin is read all the same, and compared with numpy (`open_source`). What
    has a parallel adapter opens in ONNX Runtime only: its folder holds no weights for transformers.
    With "int8" the folder holds the fp32 graph and a quantised one, which then encodes documents by default.
    ONNX is compared with torch over the first 128 `texts`, the documents at hand: vectors, and nDCG@10 of
    queries made from them; generated texts fill up to 128. The result goes into the manifest, beside
    `records`. `attachments` (name: file or folder) are copied beside the weights. The folder is replaced
    whole or not at all; it may be the source's own. Raises ModelError when the source cannot be used, the
    vectors differ by more than 1e-4 (fp32) or have a mean cosine below 0.9 (int8), or `folder` holds
    something else; DownloadError when it cannot be written.

    >>> hybridr.export(ranker, "exported").name
    'exported'
    """
    if precision not in GRAPHS:
        raise ModelError(f"there is no precision '{precision}'", hint="fp32 or int8")
    folder = Path(folder)
    require_replaceable(folder)
    retriever = retriever_of(encoder)
    with staged_folder(folder) as staged:
        progress("export", 0, 3, "weights")
        write_model(retriever, staged)
        for name, path in (attachments or {}).items():
            copy_whole(path, staged / name)
        progress("export", 1, 3, "graph")
        write_graph(retriever, staged / GRAPHS["fp32"])
        if precision == "int8":
            quantize(staged / GRAPHS["fp32"], staged / GRAPHS["int8"])
        progress("export", 2, 3, "parity")
        record_export(retriever, staged, precision, texts, assembled(encoder) | dict(records or {}))
        progress("export", 3, 3)
    return folder


def minilm_encoder(*, progress: Progress = silent) -> Path:
    """Give the folder of the unadapted MiniLM as an encoder, exported once, without torch.

    Raises DownloadError.
    """
    folder = cache_folder() / "models" / "all-MiniLM-L6-v2-encoder"
    try:
        verify_encoder(folder)
    except ModelError:
        source = minilm(progress=progress)
        progress("export MiniLM", 0, 1)
        export(open_without_torch(source), folder)
        progress("export MiniLM", 1, 1)
    return folder


def export_target(source: Path) -> Path:
    """Choose where to export by default: an encoder folder in place, another beside the working folder."""
    try:
        encoder_record(source)
    except ModelError:
        return Path(f"{source.name}-encoder")
    return source


def retriever_of(encoder: Exportable | Ranker | OnnxEncoder | Path | str) -> Exportable:
    """Give the retriever of any form of encoder."""
    if isinstance(encoder, (OnnxEncoder, Path, str)):
        return open_source(Path(encoder.folder if isinstance(encoder, OnnxEncoder) else encoder))
    found: Exportable = encoder.retriever() if is_assembled(encoder) else encoder  # type: ignore[assignment]
    return found


def open_source(folder: Path) -> Exportable:
    """Open a sentence-transformers folder by torch, or where that is not installed by numpy.

    Raises ModelError, MissingExtra.
    """
    try:
        return read_retriever(folder)
    except MissingExtra:
        return open_without_torch(folder)


def is_assembled(encoder: object) -> TypeGuard[Ranker]:
    """Tell whether an encoder was joined of DAM and REM."""
    return hasattr(encoder, "origins")


def assembled(encoder: object) -> dict[str, Any]:
    """Give what the manifest says about DAM and REM; empty for other encoders."""
    return {"assembly": encoder.origins} if is_assembled(encoder) else {}


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


def record_export(
    retriever: Exportable,
    folder: Path,
    precision: Precision,
    texts: Sequence[Document | str],
    records: dict[str, Any],
) -> None:
    """Check parity, write the manifest and render the model card."""
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
        parents=[source["encoder"].get("fingerprint")] if source and "encoder" in source else [],
        extra={"encoder": encoder, "parity": parity, **kept, **records},
    )
    try:
        card = render_card(manifest)
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # records of the source, handed on
        raise ModelError(
            f"the manifest of {retriever.folder} says something odd of its adaptation or assembly: {error!r}",
            hint="remove its manifest.json and export it again",
        ) from error
    (folder / CARD_FILE).write_text(card, encoding="utf-8")


def describe(retriever: Exportable, precision: Precision) -> dict[str, Any]:
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
        "languages": declared_languages(retriever.folder),
        "graph_only": is_graph_only(retriever),
    }
