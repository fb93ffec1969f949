"""What is shipped: the wheel and the image hold every package, and assets that a cluster takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hybridr.files.assets import asset_path
from support.places import ROOT


@pytest.mark.parametrize("file", sorted(asset_path().rglob("*.json")), ids=lambda path: path.name)
def test_assets_are_valid_json(file: Path) -> None:
    assert isinstance(json.loads(file.read_text()), dict)


def test_wheel_holds_every_module_and_asset(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "hybridr").rglob("*.py")}
    wanted |= {
        str(p.relative_to(ROOT / "benchmarks")) for p in (ROOT / "benchmarks/hybridr_bench").glob("*.py")
    }
    wanted |= {str(path.relative_to(ROOT / "cli")) for path in (ROOT / "cli").rglob("*.py")}
    wanted |= {f"hybridr/assets/{path.relative_to(asset_path())}" for path in asset_path().rglob("*.json")}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "hybridr/workbench/static").iterdir()}
    assert wanted <= names
    assert {"hybridr/py.typed", "hybridr_cli/py.typed"} <= names


def test_the_image_is_built_from_every_package() -> None:
    copied = re.findall(r"^COPY (\S+) \1$", asset_path("Dockerfile").read_text(), re.M)
    let_through = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M)
    packages = {"benchmarks/hybridr_bench", "cli", "hybridr", "opensearch"}
    assert packages == set(copied)
    assert packages <= set(let_through)
