"""`hybridr export`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from ..session import Session, verb


class Precision(str, Enum):
    """Number format of the graph that is opened first."""

    fp32 = "fp32"
    int8 = "int8"


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "export")
    def export(
        session: Session,
        folder: Annotated[str, typer.Argument(help="Encoder or sentence-transformers folder, or 'minilm'.")],
        precision: Annotated[Precision, typer.Option(help="fp32, or int8 beside it.")] = Precision.fp32,
        out: Annotated[
            Path | None, typer.Option(help="Where to write; default: in place, or FOLDER-encoder.")
        ] = None,
    ) -> None:
        """Write an encoder folder: ONNX beside the weights, checked against torch."""
        from hybridr.exporting import export, export_target
        from hybridr.manifest import read_manifest
        from hybridr.packaged import minilm

        source = minilm(progress=session.output.progress) if folder == "minilm" else Path(folder)
        target = out or export_target(source)
        written = export(source, target, precision=precision.value, progress=session.output.progress)
        manifest = read_manifest(written) or {}
        parity = manifest["parity"]
        session.output.line(f"encoder      {written}  ({precision.value})")
        session.output.line(
            f"parity       largest difference to torch {parity['max_abs_difference']:.1e} "
            f"over {parity['texts']} texts"
        )
        if "int8_cosine" in parity:
            floor = parity["int8_cosine"]
            session.output.line(
                f"int8         cosine to fp32 {floor['mean']:.4f}, least {floor['least']:.4f}"
            )
        session.output.line(f"fingerprint  {manifest['encoder']['fingerprint']}")
        session.output.line(f"next         hybridr reindex NAME --encoder {written}")
        session.output.result({"folder": str(written), "encoder": manifest["encoder"], "parity": parity})
