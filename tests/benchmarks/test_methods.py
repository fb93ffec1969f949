from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import run
from hybridr.files.local import read_manifest
from support.tiny_study import write_source_and_target

ROWS = ["as-is", "dr", "ddr", "coco", "coco-idro", "idro", "modir", "berm"]


def test_the_study_of_methods_runs_every_row_and_goes_on(tmp_path, capsys) -> None:
    backbone, out = write_source_and_target(tmp_path), tmp_path / "methods.json"
    command = ["methods", str(tmp_path), "--form", "smoke", "--backbone", str(backbone)]
    command += ["--work", str(tmp_path / "work"), "--json", str(out)]
    assert run.main(command) == 0
    first, found = json.loads(out.read_text()), capsys.readouterr()
    assert list(first["targets"]["target"]["rows"]) == ROWS
    for row in first["targets"]["target"]["rows"].values():
        assert all(0 <= value <= 1 for value in row.values())
        assert {"dense", "hybrid", "accuracy_documents", "accuracy_queries"} <= row.keys()
    assert found.err.count("ranked") == 2 * len(ROWS)  # two seeds
    methods = {name: manifest_of(tmp_path, name)["rem"].get("method") for name in ("dr", "idro", "rem-ddr")}
    assert [one and one["name"] for one in methods.values()] == [None, "idro", None]
    assert manifest_of(tmp_path, "coco-target")["dam"]["objective"] == "coco"

    (tmp_path / "work" / "smoke" / "seed-2" / "rows" / "berm-target.json").unlink()
    assert run.main(command) == 0
    assert capsys.readouterr().err.count("ranked") == 1  # only what was missing
    assert json.loads(out.read_text())["targets"] == first["targets"]


def manifest_of(folder: Path, name: str) -> dict[str, Any]:
    return read_manifest(folder / "work" / "smoke" / "seed-1" / name) or {}
