from __future__ import annotations

import json
from pathlib import Path

import pytest

import run
from support.tiny_study import write_source_and_target


def test_dr_versus_ddr_runs_every_row_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbone = write_source_and_target(tmp_path)
    options = {
        "--form": "smoke",
        "--work": tmp_path / "work",
        "--backbone": backbone,
        "--json": tmp_path / "ddr.json",
    }
    for kept in (False, True, False):
        if not kept:
            (tmp_path / "ddr.json").unlink(missing_ok=True)
        assert run.main(["ddr", str(tmp_path), *(str(one) for pair in options.items() for one in pair)]) == 0
    record = json.loads((tmp_path / "ddr.json").read_text())
    systems = record["targets"]["target"]["systems"]
    assert list(systems) == ["bm25", "as-is", "source", "dr", "ddr", "ddr-si", "ddr-df", "parallel", "both"]
    assert all(0 <= values["nDCG@10"] <= 1 for values in systems.values())
    assert record["targets"]["target"]["documents"] == 60
    found = capsys.readouterr()
    tables = found.out.split("| nDCG@10 | target (12 queries) |")
    assert len(tables) == 4
    assert tables[1] == tables[2] == tables[3]
    assert found.err.count("target: ddr ranked") == 2
