"""The promise of a family, held by real members: they are taken out of a copy of the library.

With its file a member is there; without it the rest imports, and no setting, mode, system or option names it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.places import ROOT

MEMBERS = (
    "search/signals/phrases.py",
    "search/rerankers/mmr.py",
    "standing/sidecars/shared_jobs.py",
    "rewriting/clauses/boosting.py",
    "reindexing/runners/ray.py",
)
TOLD = """
import importlib, json, pkgutil, hybridr, hybridr_cli
from hybridr.families import names_of
for one in pkgutil.walk_packages(hybridr.__path__, "hybridr."):
    importlib.import_module(one.name)
from hybridr_cli.stages import STAGES
from hybridr_cli.options import marks_of
fields = [field for stage in STAGES for field in stage.model_fields.values()]
choices = [mark.choices for field in fields for mark in marks_of(field)]
families = {family: names_of(family) for family in FAMILIES}
print(json.dumps({"choices": sorted(set(sum(map(list, choices), []))), "families": families}))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the library and the command line."""
    for name in ("hybridr", "cli/hybridr_cli", "opensearch"):
        shutil.copytree(ROOT / name, tmp_path / Path(name).name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_real_members_come_and_go_by_their_files(copy: Path) -> None:
    before = told(copy)
    for member in MEMBERS:
        (copy / "hybridr" / member).unlink()
    without = told(copy)
    for member in MEMBERS:
        family, name = family_of(member), Path(member).stem
        assert name in before["families"][family]
        assert name not in without["families"][family]
        assert name not in without["choices"]


def told(folder: Path) -> dict[str, Any]:
    """Import all of a copy in a process of its own, and say what it offers."""
    code = TOLD.replace("FAMILIES", repr(sorted({family_of(one) for one in MEMBERS})))
    environment = {"PYTHONPATH": str(folder), "PATH": "", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=folder, env=environment
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def family_of(member: str) -> str:
    return str(Path(member).parent).replace("/", ".")
