"""The verb `hybridr export`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.records import Document


USED = {
    "encoder": "hybridr reindex NAME --encoder {}",
    "sparse_encoder": "hybridr reindex NAME --sparse-encoder {}",
    "multi_vector_encoder": "hybridr reindex NAME --token-encoder {}",
    "pair_scorer": "[search] rerank = 'cross', rerank_settings = {{folder = '{}'}} in hybridr.toml",
}
"""Next command for an exported folder, by its entry in the manifest."""
FORMS = ("ranker", "pooling", "similarity")


class Number(str, Enum):
    """Number format of the graph that is opened first."""

    fp32 = "fp32"
    int8 = "int8"


@dataclass(frozen=True)
class Joined:
    """The options for a DAM, the REM to join with it, and how the result is used."""

    dam: Annotated[str | None, typer.Option(help="Instead of FOLDER: domain module, folder or name.")] = None
    rem: Annotated[str | None, typer.Option(help="With --dam: relevance module, folder, zip or name.")] = None
    ranker: Annotated[
        str | None, typer.Option(help="With --dam: dense, unicoil, splade, colbert, rerank.")
    ] = None
    pooling: Annotated[str | None, typer.Option(help="With --dam: mean or cls.")] = None
    similarity: Annotated[str | None, typer.Option(help="With --dam: ip or cosine.")] = None

    def stated(self, *names: str) -> dict[str, Any]:
        """Return name -> value for those of the named options that are set."""
        return {name: getattr(self, name) for name in names if getattr(self, name)}


@verb(app, "export")
def export(
    session: Session,
    joined: Joined,
    folder: Annotated[
        str | None, typer.Argument(help="Encoder or sentence-transformers folder, or a name.")
    ] = None,
    precision: Annotated[Number, typer.Option(help="fp32, or int8 beside it.")] = Number.fp32,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to.", show_default="in place, or FOLDER-encoder")
    ] = None,
    documents: Annotated[
        Path | None, typer.Option(help="JSONL or BEIR folder to measure nDCG on; 128 documents are read.")
    ] = None,
) -> None:
    """Export a model as an encoder folder: ONNX beside the weights, checked against torch."""
    from hybridr.encoders.export.exporting import export, export_target, model_folder
    from hybridr.errors import SettingsError

    if bool(folder) == bool(joined.dam):
        problem = f"both, '{folder}' and '{joined.dam}'" if folder else "neither"
        raise SettingsError(
            f"a FOLDER or --dam is needed, {problem} was given",
            hint="hybridr export FOLDER, or hybridr export --dam DIR --rem DIR --out DIR",
        )
    if not joined.dam and (alone := joined.stated("rem", *FORMS)):
        raise SettingsError(
            f"--{next(iter(alone))} goes with --dam, not with a FOLDER", hint="hybridr export --help"
        )
    progress = session.output.progress
    said: Any = {"precision": precision.value, "texts": read_texts(documents), "progress": progress}
    if joined.dam:
        from hybridr.training.rankers import export_joined

        target = out or Path(f"{Path(joined.dam).name}-encoder")
        export_joined(joined.dam, joined.rem, target, **joined.stated(*FORMS), **said)
    else:
        target = out or export_target(str(folder))
        export(model_folder(str(folder), progress=progress), target, **said)
    render(session, target, precision.value)


def read_texts(path: Path | None) -> list[Document]:
    """Return the first documents of a file, as many as are measured; none without a file. Raises
    DataError.
    """
    if path is None:
        return []
    from hybridr.encoders.export.exporting import TEXTS
    from hybridr.files.formats import document_of, read_corpus

    return [document_of(record, path) for record in islice(read_corpus(path), max(TEXTS.values()))]


def render(session: Session, folder: Path, precision: str) -> None:
    """Print the exported folder, how closely the graphs agree with torch, and the next command."""
    from hybridr.encoders.export.model_files import render_ndcg
    from hybridr.files.local import read_manifest

    output, manifest = session.output, read_manifest(folder) or {}
    parity: dict[str, Any] = manifest["parity"]
    kind, used = next((name, line) for name, line in USED.items() if name in manifest)
    output.line(f"encoder      {folder}  ({precision})")
    output.line(
        f"parity       largest difference to {parity['reference']} {parity['max_abs_difference']:.1e} "
        f"over {parity['texts']} texts"
    )
    if "int8_cosine" in parity:
        floor = parity["int8_cosine"]
        output.line(f"int8         cosine to fp32 {floor['mean']:.4f}, least {floor['least']:.4f}")
    if "int8_correlation" in parity:
        output.line(f"int8         correlation with fp32 {parity['int8_correlation']:.4f}")
    if kind == "encoder":
        output.line(f"nDCG@10      {render_ndcg(parity)}")
    output.line(f"fingerprint  {manifest[kind]['fingerprint']}")
    output.line(f"next         {used.format(folder)}")
    output.result({"folder": str(folder), kind: manifest[kind], "parity": parity})
