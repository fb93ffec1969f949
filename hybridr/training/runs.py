"""A training run on disk: its state, its losses, its manifest entry, and whether it is finished.

A run is identified by its key, the fingerprint of everything that its result depends on. During the run its
state is in a folder inside the result's folder; the result replaces that folder atomically.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..errors import HybridrError, ModelError
from ..files.local import read_manifest, sha256_of, storing, write_manifest
from ..settings import Stage

STATE_FOLDER = ".training"  # in the folder of the result, until the run is finished
STATE_FILE = "training.pt"
LOSSES_FILE = "losses.jsonl"
CURVE_POINTS = 200
R = TypeVar("R", bound="Trained")


@dataclass
class Training:
    """Progress of a run: one loss per step, other measured values, and the step at which it was resumed."""

    losses: list[float] = field(default_factory=list)
    resumed_from: int = 0
    seconds: float = 0.0
    observed: dict[str, list[Any]] = field(default_factory=dict)
    """Other values measured at each step, by name: numbers, or lists of them."""

    def add(self, loss: float, observed: Mapping[str, Any]) -> None:
        """Add a step's loss and its other measured values."""
        self.losses.append(loss)
        for name, value in observed.items():
            self.observed.setdefault(name, []).append(value)

    def followed_by(self, later: Training) -> Training:
        """Return this run joined with a later one that continued from its weights."""
        observed = {name: [*values, *later.observed[name]] for name, values in self.observed.items()}
        return Training(
            [*self.losses, *later.losses],
            self.resumed_from + later.resumed_from,
            self.seconds + later.seconds,
            observed or later.observed,
        )

    def line(self, step: int) -> str:
        """Return a step, numbered from 1, as a JSON line for the log."""
        values_by_name = {name: values[step - 1] for name, values in sorted(self.observed.items())}
        return json.dumps({"step": step, "loss": self.losses[step - 1], **values_by_name}) + "\n"

    def record(self) -> dict[str, Any]:
        """Return the run as JSON-compatible values for a manifest."""
        tenth = max(1, len(self.losses) // 10)
        return {
            "steps": len(self.losses),
            "loss_start": float(np.mean(self.losses[:tenth])),
            "loss_end": float(np.mean(self.losses[-tenth:])),
            "losses": self.losses[:: max(1, len(self.losses) // CURVE_POINTS)],
            "seconds": round(self.seconds, 1),
            "resumed_from": self.resumed_from,
        }


@dataclass(frozen=True, kw_only=True)
class Trained:
    """Base of results: a folder, and figures of the training of its contents.

    `loss_start` and `loss_end` are means over the first and last tenth of the steps; `losses` are at most
    400, evenly spread. `documents` counts different texts, without held-out ones.
    """

    folder: Path
    steps: int
    documents: int
    losses: tuple[float, ...] = ()
    loss_start: float
    loss_end: float
    seconds: float
    resumed_from: int
    reused: bool = False


def settings_record(settings: Stage, *, without: Collection[str]) -> dict[str, Any]:
    """Return the settings as JSON-compatible values, without those named in `without`."""
    return {name: value for name, value in settings.record().items() if name not in without}


def require_own_folder(folder: Path, stage: str, label: str) -> None:
    """Raise ModelError if `folder` holds anything but a result of `stage` or an unfinished run's state."""
    if not folder.exists() or (folder / STATE_FOLDER).is_dir():
        return
    if not folder.is_dir() or (
        any(folder.iterdir()) and (intact_manifest(folder) or {}).get("stage") != stage
    ):
        raise ModelError(
            f"{folder} exists and is not a {label} that hybridr trained, so it is not replaced",
            hint="choose another folder with --out, or remove it",
        )


def read_finished(folder: Path, stage: str, key: str) -> dict[str, Any] | None:
    """Return the manifest of a finished run of `stage` with this key; None if there is none, or a file of it
    is missing or changed.
    """
    manifest = intact_manifest(folder) or {}
    # The manifest's section about the run has the name of the stage.
    if manifest.get("stage") != stage or manifest.get(stage, {}).get("key") != key:
        return None
    outputs = manifest.get("outputs", {})
    intact = ((folder / n).is_file() and sha256_of(folder / n) == digest for n, digest in outputs.items())
    return manifest if outputs and all(intact) else None


def intact_manifest(folder: Path) -> dict[str, Any] | None:
    """Read a folder's manifest; None if there is none or it is damaged."""
    try:
        return read_manifest(folder)
    except HybridrError:
        return None


def make_result(kind: type[R], folder: Path, entry: Mapping[str, Any], *, reused: bool, **extra: Any) -> R:
    """Return a result of class `kind` from a manifest's `entry` and `extra` values."""
    names = {field.name for field in fields(kind)}
    values = {name: value for name, value in entry.items() if name in names}
    if "unseen_loss" in entry:
        values["unseen_loss_start"], values["unseen_loss_end"] = entry["unseen_loss"]
    values |= {"folder": folder, "reused": reused, "losses": tuple(entry["losses"]), **extra}
    return kind(**values)


def write_steps(path: Path, run: Training) -> None:
    """Write the log of losses with the steps done so far."""
    lines = (run.line(step) for step in range(1, len(run.losses) + 1))
    with storing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), encoding="utf-8")


def write_result(folder: Path, outputs: Sequence[str], run: Training, **manifest: Any) -> None:
    """Write losses and manifest of a finished run beside its files `outputs`, and let everyone read them."""
    write_steps(folder / LOSSES_FILE, run)
    names = [*outputs, LOSSES_FILE]
    for name in names:  # the writer of safetensors lets only the owner read a file
        (folder / name).chmod(0o644)
    write_manifest(folder, outputs=names, **manifest)
