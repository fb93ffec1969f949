"""Whole trainings against golden/traces: the same batches and settings give the same losses and weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.places import DDR, GOLDEN
from support.traces import differences, replay

CASES = sorted(path for path in (GOLDEN / "traces").glob("*") if path.is_dir())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_traces_are_replayed(case: Path) -> None:
    found = differences(replay(case, DDR), case)
    assert max(found.values()) <= 1, {name: value for name, value in found.items() if value > 1}
