"""Training traces: batches, and the losses and weights that must come of them (golden/traces/README.md)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from support.places import DDR, GOLDEN, ROOT

MODELS = DDR
TRACES = next(
    folder for folder in (GOLDEN / "traces", ROOT.parent / "shared" / "golden" / "traces") if folder.is_dir()
)


def cases(method: str) -> list[Path]:
    """List the folders of a method's cases."""
    found = sorted(path.parent for path in TRACES.glob(f"{method}_*/case.json"))
    assert found, f"no trace of {method} in {TRACES}"
    return found


def assert_replayed(folder: Path, found: dict[str, np.ndarray]) -> None:
    """Hold a replay against what the case expects, by the tolerances of the case."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    tolerance = case["tolerance"]
    with np.load(folder / "expected.npz") as stored:
        expected = {name: stored[name] for name in stored if name not in tolerance["not_compared"]}
    assert expected.keys() <= found.keys()
    beyond = 0
    for name, wanted in expected.items():
        final = name.startswith("final/")
        gaps = np.abs(found[name] - wanted) / np.maximum(1, np.abs(wanted))
        allowed = tolerance["weights" if final else "records"]
        beyond += int((gaps > allowed).sum()) if final else 0
        most = 2 * case["steps"] * case["optimiser"]["rate"] if final and tolerance["outliers"] else allowed
        assert gaps.max() <= most, (name, gaps.max())
    assert beyond <= tolerance["outliers"]
