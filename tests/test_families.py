"""The promise of a family, held by real members: they are taken out of a copy of the library.

With its file a member is there; without it the rest imports, and no setting, mode, system or option names it.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hybridr import families
from hybridr.search import fusions
from support.places import ROOT
from support.pythons import run_python

MEMBERS = (
    "search/signals/phrases.py",
    "search/rerankers/tokens.py",
    "status/sidecars/term_tables.py",
    "indexing/runners/ray.py",
)
TOLD = """
import importlib, json, pkgutil, hybridr, hybridr_cli
from hybridr.families import member_names
for one in pkgutil.walk_packages(hybridr.__path__, "hybridr."):
    importlib.import_module(one.name)
from hybridr_cli.options import PACKAGES, STAGES
from hybridr_cli.options import family_marks
fields = [field for stage in PACKAGES for field in STAGES[stage].model_fields.values()]
choices = [mark.choices for field in fields for mark in family_marks(field)]
families = {family: member_names(family) for family in FAMILIES}
print(json.dumps({"choices": sorted(set(sum(map(list, choices), []))), "families": families}))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy the library and the command line."""
    for name in ("hybridr", "cli/hybridr_cli", "opensearch"):
        shutil.copytree(ROOT / name, tmp_path / Path(name).name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_real_members_come_and_go_by_their_files(copy: Path) -> None:
    for member in MEMBERS:
        (copy / "hybridr" / member).unlink()
    without = told(copy)
    for member in MEMBERS:
        family, name = family_of(member), Path(member).stem
        assert name in families.member_names(family)
        assert name not in without["families"][family]
        assert name not in without["choices"]


def test_a_family_is_listed_once_and_again_when_its_folder_changed(tmp_path, monkeypatch) -> None:
    families.files_in.cache_clear()
    monkeypatch.setattr(fusions, "__path__", [str(tmp_path)])
    (tmp_path / "one.py").touch()
    assert [families.member_names("search.fusions") for _ in range(9)] == [("one",)] * 9
    assert families.files_in.cache_info().misses == 1
    (tmp_path / "other.py").touch()
    os.utime(tmp_path, (1, 1))  # clocks of file systems tick coarsely
    assert families.member_names("search.fusions") == ("one", "other")


def test_a_member_is_read_once_and_again_when_its_file_changed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(fusions, "__path__", [str(tmp_path)])
    file = tmp_path / "one.py"
    families.constants_in.cache_clear()
    for help_text in ("first", "second"):
        file.write_text(f'class One:\n    name = "one"\n    help = "{help_text}"\n')
        os.utime(file, (1, len(help_text)))
        assert [families.OneOf("search.fusions").help for _ in range(9)] == [f"one: {help_text}"] * 9
    assert families.constants_in.cache_info().misses == 2


def told(folder: Path) -> dict[str, Any]:
    """Import all of a copy in a process of its own, and say what it offers."""
    code = TOLD.replace("FAMILIES", repr(sorted({family_of(one) for one in MEMBERS})))
    environment = {"PYTHONPATH": str(folder), "PATH": "", "HOME": str(folder)}
    done = run_python(code, folder=folder, environment=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def family_of(member: str) -> str:
    return str(Path(member).parent).replace("/", ".")
