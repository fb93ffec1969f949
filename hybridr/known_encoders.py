"""Remembers on this machine where encoders lie: by fingerprint, and by the index they were made for.

Only paths are kept; whoever loads one checks it against the fingerprint it should have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from .backends import Arithmetic, Backend
from .cluster import Cluster, IndexInfo
from .destinations import command_for, is_in_place
from .encoder import OnnxEncoder, load_encoder
from .errors import FingerprintMismatch, ModelError
from .folders import state_folder
from .manifest import write_json
from .progress import Progress, silent


def _read() -> dict[str, str]:
    try:
        known: Any = json.loads((state_folder() / "encoders.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(key: str, folder: Path) -> None:
    write_json(state_folder() / "encoders.json", {**_read(), key: str(folder.resolve())})


def remember_encoder(fingerprint: str, folder: Path | None) -> None:
    """Remember where the encoder with this fingerprint lies, if it lies anywhere."""
    if folder is not None:
        _remember(fingerprint, folder)


def folder_of(fingerprint: str) -> Path | None:
    """Name the folder of the encoder with this fingerprint, if it lies where it did."""
    known = _read().get(fingerprint)
    return Path(known) if known and Path(known).is_dir() else None


def remember_map(fingerprint: str, folder: Path) -> None:
    """Remember where the query map with this fingerprint lies."""
    _remember(f"map-{fingerprint}", folder)


def folder_of_map(fingerprint: str) -> Path | None:
    """Name the folder of the query map with this fingerprint, if it lies where it did."""
    return folder_of(f"map-{fingerprint}")


def forget(key: str) -> None:
    """Forget an index's promoted encoder; its folder stays."""
    known = _read()
    if known.pop(key, None) is not None:
        write_json(state_folder() / "encoders.json", known)


def promote(cluster: Cluster, index: str, folder: Path) -> None:
    """Remember the encoder that `adapt` made for an index: `reindex` takes it when none is named."""
    _remember(cluster.index_info(index).uuid, folder)


def encoder_for(
    cluster: Cluster,
    info: IndexInfo,
    folder: Path | None,
    *,
    precision: Arithmetic | None = None,
    backend: Backend | Literal["auto"] | None = None,
    progress: Progress = silent,
) -> OnnxEncoder:
    """Find the encoder of an index: the given folder, the one that wrote its vectors, the promoted one, or
    the packaged MiniLM.

    `precision` and `backend` are for documents, as `load_encoder` takes them. Raises FingerprintMismatch when
    it is not the one that wrote the vectors, ModelError when it is gone.
    """
    known = _read()
    wanted = info.meta.get("encoder")
    origin = info.meta.get("source_uuid", info.uuid)
    remembered = known.get(wanted) if wanted else known.get(origin)
    if folder is None and remembered is not None:
        folder = Path(remembered)
        if not folder.is_dir():
            raise ModelError(
                f"the encoder of '{info.name}' lay in {folder}, which is gone", hint="--encoder FOLDER"
            )
    if folder is None:
        from .packaged import minilm_encoder

        folder = minilm_encoder(progress=progress)
    encoder = load_encoder(folder, precision=precision, backend=backend)
    if wanted:
        check_fingerprint(encoder.fingerprint, info)
    return encoder


def check_fingerprint(fingerprint: str, info: IndexInfo) -> None:
    """Raise FingerprintMismatch unless the encoder wrote the vectors of this index."""
    wanted = info.meta.get("encoder")
    if wanted != fingerprint:
        again = f"hybridr remove {info.name}" if is_in_place(info) else command_for(info)
        raise FingerprintMismatch(
            f"the vectors of '{info.name}' were written by encoder {str(wanted)[:12]}, "
            f"the query encoder is {fingerprint[:12]}",
            hint=f"--encoder FOLDER of {str(wanted)[:12]}, or: {again}",
        )
