"""Where the tests find what lies beside them."""

from __future__ import annotations

import os
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
SUPPORT = TESTS / "support"
GOLDEN = TESTS / "golden"
DDR = GOLDEN / "ddr"
COLLECTIONS = ROOT.parent / "shared" / "data"


def with_support() -> dict[str, str]:
    """Give the environment in which a program of its own can import `support`."""
    return os.environ | {"PYTHONPATH": str(TESTS)}


def above(folder: Path) -> list[Path]:
    """Give the folders of pytest above one: they are closed to others, such as the account of a node."""
    return [one for one in folder.parents if one.name.startswith(("pytest-", "popen-"))]
