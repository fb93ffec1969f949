"""The verb `hybridr export`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.records import Document


NEXT_STEPS = {
    "encoder": "hybridr reindex NAME --encoder {}",
    "sparse_encoder": "hybridr reindex NAME --sparse-encoder {}",
    "multi_vector_encoder": "hybridr reindex NAME --token-encoder {}",
    "pair_scorer": "[search] rerank = 'cross', rerank_settings = {{folder = '{}'}} in hybridr.toml",
}
"""Next command, or setting, for an exported folder, by its entry in the manifest."""
FORM_OPTIONS = ("ranker", "pooling", "similarity")


@dataclass(frozen=True)
class ModuleOptions:
    """The options for a DAM, the REM to assemble with it, and how the result is used."""

    dam: Annotated[str | None, typer.Option(help="Instead of FOLDER: domain module, folder or name.")] = None
    rem: Annotated[str | None, typer.Option(help="With --dam: relevance module, folder, zip or name.")] = None
    ranker: Annotated[
        str | None, typer.Option(help="With --dam: dense, unicoil, splade, colbert, rerank.")
    ] = None
    pooling: Annotated[str | None, typer.Option(help="With --dam: mean or cls.")] = None
    similarity: Annotated[str | None, typer.Option(help="With --dam: ip or cosine.")] = None

    def values_set(self, *names: str) -> dict[str, Any]:
        """Return name -> value for those of the named options that are set."""
        return {name: getattr(self, name) for name in names if getattr(self, name)}


@verb(app, "export")
def export(
    session: Session,
    modules: ModuleOptions,
    folder: Annotated[
        str | None, typer.Argument(help="Encoder or sentence-transformers folder, or a name.")
    ] = None,
    precision: Annotated[Literal["fp32", "int8"], typer.Option(help="fp32, or int8 beside it.")] = "fp32",
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

    if bool(folder) == bool(modules.dam):
        problem = f"both, '{folder}' and '{modules.dam}'" if folder else "neither"
        raise SettingsError(
            f"a FOLDER or --dam is needed, {problem} was given",
            hint="hybridr export FOLDER, or hybridr export --dam DIR --rem DIR --out DIR",
        )
    if not modules.dam and (misplaced := modules.values_set("rem", *FORM_OPTIONS)):
        raise SettingsError(
            f"--{next(iter(misplaced))} goes with --dam, not with a FOLDER", hint="hybridr export --help"
        )
    progress = session.output.progress
    options: Any = {"precision": precision, "texts": read_documents(documents), "progress": progress}
    if modules.dam:
        from hybridr.training.rankers import export_joined

        target = out or Path(f"{Path(modules.dam).name}-encoder")
        export_joined(modules.dam, modules.rem, target, **modules.values_set(*FORM_OPTIONS), **options)
    else:
        target = out or export_target(str(folder))
        export(model_folder(str(folder), progress=progress), target, **options)
    show_export(session, target, precision)


def read_documents(path: Path | None) -> list[Document]:
    """Return the first documents of a file, as many as are measured; an empty list without a file.

    Raises DataError.
    """
    if path is None:
        return []
    from hybridr.encoders.export.exporting import TEXTS
    from hybridr.files.formats import document_of, read_corpus

    return [document_of(record, path) for record in islice(read_corpus(path), max(TEXTS.values()))]


def show_export(session: Session, folder: Path, precision: str) -> None:
    """Print the exported folder, how closely the graphs agree with torch, and the next command."""
    from hybridr.encoders.export.model_files import render_ndcg
    from hybridr.files.local import read_manifest

    output, manifest = session.output, read_manifest(folder) or {}
    parity: dict[str, Any] = manifest["parity"]
    kind, next_step = next((name, line) for name, line in NEXT_STEPS.items() if name in manifest)
    output.line(f"encoder      {folder}  ({precision})")
    output.line(
        f"parity       largest difference to {parity['reference']} {parity['max_abs_difference']:.1e} "
        f"over {parity['texts']} texts"
    )
    if "int8_cosine" in parity:
        cosine = parity["int8_cosine"]
        output.line(f"int8         cosine to fp32 {cosine['mean']:.4f}, least {cosine['least']:.4f}")
    if "int8_correlation" in parity:
        output.line(f"int8         correlation with fp32 {parity['int8_correlation']:.4f}")
    if kind == "encoder":
        output.line(f"nDCG@10      {render_ndcg(parity)}")
    output.line(f"fingerprint  {manifest[kind]['fingerprint']}")
    place = folder if kind == "pair_scorer" else quote(str(folder))  # in TOML, or in a shell
    output.line(f"next         {next_step.format(place)}")
    output.result({"folder": str(folder), kind: manifest[kind], "parity": parity})
