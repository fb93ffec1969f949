"""What a training of a REM is known by: all that its result follows from, the same for all releases."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..encoders.graph_folders import PairScorer, graph_entry
from ..errors import SettingsError
from ..families import member_of
from ..files.manifest import fingerprint, sha256_of
from ..relevance.corpus import TargetDomain
from ..settings import Stage
from . import runs
from .judged import Judged
from .ranker import Ranker
from .rem_files import EMBEDDINGS, HEAD_WEIGHTS, WEIGHTS, RemFiles
from .settings import MODIR, OBJECTIVES, RemSettings

KEY_VERSION = 2  # of the procedure; a change of its results makes finished runs start anew
PATHS = {"out", "dam", "rem", "negatives", "teacher"}
NOT_RECORDED = PATHS | {"device"}
NOT_COMPARED = NOT_RECORDED | {"precision", "checkpoint_every"}  # what lies at the paths is
OWN = {"method", "method_settings"}
FIXED_SINCE = {"name": "rem", "token_dim": 32, "train_embeddings": True}
"""What were settings once, as runs of then that had the defaults are known by."""
FIRST_NAMES = (None, "idro", "groupdro", "modir", "berm")
FIRST_METHODS: Mapping[str, Any] = {
    "robust": None,
    "clusters": 50,
    "invariance": 1.0,
    "adversary": "confusion",
    "half_life": 10_000.0,
    "queue": 1000,
    "queue_entries": 50,
    "traversal": "all",
    "classifier_rate": None,
    "units": None,
    "balance": 0.1,
    "extract": 1.0,
    "reader": None,
    "variant": None,
}
"""The own settings of the first methods, by which runs of all times are known."""


def identity(
    judgements: Judged, settings: RemSettings, ranker: Ranker, rem: RemFiles | None, method: str | None
) -> dict[str, Any]:
    """Give what of the inputs the result follows from."""
    flat = {**FIXED_SINCE, **runs.recorded(settings, without=NOT_COMPARED)}
    own = method_identity(method, settings)
    return {
        **{name: value for name, value in flat.items() if name not in OWN},
        "negatives": settings.negatives and sha256_of(existing(settings.negatives)),
        "teacher": settings.teacher and named_teacher(settings.teacher),
        **own,
        "version": KEY_VERSION,
        "judged": judgements.fingerprint,
        "dam": ranker.fingerprint,
        "rem": rem and fingerprint_of(rem),
    }


def named_teacher(teacher: Path) -> str:
    """Name a file of scores, or the folder of a cross-encoder that gives them."""
    return graph_entry(PairScorer, teacher).fingerprint if teacher.is_dir() else sha256_of(existing(teacher))


def method_identity(name: str | None, settings: RemSettings) -> dict[str, Any]:
    """Give the method and its own settings as records have always had them: all of those four, flat.

    A method that came later adds its settings under its own name: runs without it keep their keys.
    """
    own = own_settings_of(name, settings) if name else None
    values = own.record() if own else {}
    fields = dict(FIRST_METHODS) | {name: value for name, value in values.items() if name in FIRST_METHODS}
    fields["robust"] = name if name in ("idro", "groupdro") else None
    fields["units"] = "sentence" if name == "berm" else None
    later = {name: value for name, value in values.items() if name not in FIRST_METHODS}
    return fields | ({"method": {"name": name, **later}} if later or name not in FIRST_NAMES else {})


def method_of(settings: RemSettings, target: TargetDomain | None) -> str | None:
    """Name what stands on top of the loss."""
    return settings.method or (MODIR if target else None)


def own_settings_of(method: str, settings: RemSettings) -> Stage:
    """Check a method's own settings. Raises SettingsError."""
    own_settings: Stage = member_of(OBJECTIVES, method).own_settings(**settings.method_settings)
    return own_settings


def existing(file: Path) -> Path:
    """Give the file back. Raises SettingsError when there is none."""
    if not file.is_file():
        raise SettingsError(f"there is no file {file}")
    return file


def fingerprint_of(rem: RemFiles) -> str:
    """Hash a REM's design and weights."""
    digest = hashlib.sha256(fingerprint(rem.record["config"]).encode())
    for file in (WEIGHTS, HEAD_WEIGHTS, EMBEDDINGS):
        for key, value in sorted(rem.tensors(file).items()):
            digest.update(key.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()
