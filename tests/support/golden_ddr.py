"""Checkpoints, inputs and vectors of the authors' code (golden/ddr/README.md)."""

from __future__ import annotations

import atexit
import json
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from support.places import DDR

INPUTS = json.loads((DDR / "inputs.json").read_text())
SOURCE, TARGET = DDR / "dams" / "dam_source", DDR / "dams" / "dam_target"
TOLERANCE = 1e-5


def rem_of(name: str) -> Path:
    return DDR / "rems" / f"rem_{name}" / "msmarco"


def gap(found: Any, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    assert found.dtype == np.float32
    return float(np.abs(found - wanted).max())


def changed(rem: Path, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Copy a REM with a changed configuration of its last method."""
    copy = shutil.copytree(rem, folder / "rem")
    record = json.loads((copy / "adapter_config.json").read_text())
    config = record["config"]
    change(config["configs"][-1] if "configs" in config else config)
    (copy / "adapter_config.json").write_text(json.dumps(record))
    return copy


@cache
def exported(ranker: str, precision: str = "fp32") -> Path:
    """Export a golden ranker once for all tests of a process."""
    from hybridr.encoders.export.exporting import export

    folder = Path(mkdtemp(prefix=f"hybridr-{ranker}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return export(golden(ranker), folder / "encoder", precision=precision)  # type: ignore[arg-type]


@cache
def golden(ranker: str) -> Any:
    """Assemble the golden source with the REM of a ranker."""
    from hybridr.training.rankers import assemble

    made = assemble(SOURCE, rem_of(f"{ranker}_lora192-pa4"), ranker=ranker)
    if ranker == "unicoil":  # as it is, its random head gives no token of a query a weight
        made.head.bias.data += 1.0
    return made


colbert = partial(exported, "colbert")
cross_encoder = partial(exported, "rerank")
