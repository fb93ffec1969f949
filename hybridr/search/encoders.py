"""Finds the encoder of an index: the one that wrote its vectors, the promoted one, or the packaged MiniLM."""

from __future__ import annotations

from pathlib import Path

from ..cluster.connection import Cluster
from ..cluster.destinations import check_fingerprint
from ..cluster.record import IndexInfo
from ..encoders.contract import Arithmetic, Backend, Encoder
from ..encoders.opening import is_encoder, load_encoder
from ..encoders.registry import packaged_as
from ..errors import ModelError
from ..files.remembered import ENCODERS, known_in, remember_encoder
from ..records import Progress, silent


def promote(cluster: Cluster, index: str, folder: Path) -> None:
    """Remember the encoder that `adapt` made for an index, so that `reindex` uses it by default."""
    remember_encoder(cluster.index_info(index).uuid, folder)


def encoder_for(
    info: IndexInfo,
    encoder: Encoder | Path | str | None,
    *,
    precision: Arithmetic | None = None,
    backend: Backend | None = None,
    progress: Progress = silent,
) -> Encoder:
    """Return the encoder of an index: the given one, the one that wrote its vectors, the promoted one, or the
    packaged MiniLM.

    An opened `encoder` is returned unchanged; else it is a folder, also of sentence-transformers, or a name
    (`encoder_folder`). A packaged encoder is recognised by its fingerprint, even if this machine did not
    write the vectors. `precision` and `backend` are for documents, as in `load_encoder`. Raises
    FingerprintMismatch for a folder that did not write the vectors, ModelError if the folder is gone.
    """
    if encoder is not None and not isinstance(encoder, Path | str):
        return encoder
    folder, folders = encoder, known_in(ENCODERS)
    fingerprint = info.record.encoder
    origin = info.record.source_uuid or info.uuid
    remembered = folders.get(fingerprint) if fingerprint else folders.get(origin)
    if folder is None and remembered is not None:
        folder = Path(remembered)
        if not folder.is_dir():
            raise ModelError(
                f"the encoder of '{info.name}' lay in {folder}, which is gone", hint="--encoder FOLDER"
            )
    packaged = packaged_as(fingerprint)
    if folder is None and packaged is not None:
        folder = packaged.name
    path = found_folder(folder, progress, fingerprint=fingerprint)
    opened = load_encoder(path, precision=precision, backend=backend)
    if fingerprint:
        check_fingerprint(opened.fingerprint, info)
    return opened


def found_folder(source: Path | str | None, progress: Progress, *, fingerprint: str = "") -> Path:
    """Return the encoder folder for a path or name, else that of the packaged MiniLM.

    `fingerprint` is that of the encoder that wrote an index, if there is one.
    """
    folder = None if source is None else Path(source).expanduser()
    if folder is not None and is_encoder(folder):
        return folder
    # Here, since onnx takes its time to be imported.
    from ..encoders.export.exporting import encoder_folder, minilm_encoder

    if source is None:
        return minilm_encoder(progress=progress)
    return encoder_folder(source, fingerprint=fingerprint, progress=progress)
