"""What a study is, and what all of them share: options, kept results, processes of their own, tables.

A study is a module of `studies/`, found by its folder; `run.py NAME` runs it, the name with dashes. It has

    docstring          what is asked, and how: the first line in the list, the whole with `--help`
    options(parser)    adds what the command line takes
    measure(given)     measures, writes the result, and gives the exit code or None
    SECTIONS           what the page shows of its results, none where nothing is committed
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hybridr.encoders.machine import instruction_sets, read_cpu, read_gpus
from hybridr.files.local import code_digest, write_json

HERE = Path(__file__).parent
RESULTS = HERE / "results"
LEAD = "nDCG@10"
RANKING = ("cluster/retrievers", "encoders", "evaluation", "serving/rewriting", "search", "indexing/terms")
"""The folders of hybridr that decide how an index ranks, and what that is worth."""
Record = dict[str, Any]


class Picture(NamedTuple):
    """A picture of a result, plots/`result`.svg: what is drawn (nothing if empty) and how."""

    values: Callable[[Record], Record]
    draw: Callable[[Path, Record, str], None]


class Section(NamedTuple):
    """A part of the page: sections stand by `place`; RESULTS/`result` is a JSON file or a folder of such.

    `render` gets the content of the file, or name -> content; `missing` is said where there is none.
    """

    place: int
    title: str
    result: str
    command: str
    render: Callable[[Record], str]
    missing: str = "Not run: no result is committed."
    picture: Picture | None = None


class Study(Protocol):
    """What `run.py` and the report ask of a module."""

    __doc__: str | None
    SECTIONS: Sequence[Section]

    @staticmethod
    def options(parser: argparse.ArgumentParser) -> None:
        """Add what the command line takes."""

    @staticmethod
    def measure(given: argparse.Namespace) -> int | None:
        """Measure; give the exit code, None for 0."""


def study_files() -> dict[str, Path]:
    """Name the file of every study."""
    return {file.stem.replace("_", "-"): file for file in sorted((HERE / "studies").glob("*.py"))}


def open_study(name: str) -> Study:
    """Import a study."""
    found: Any = import_module(f"studies.{name.replace('-', '_')}")
    return found


def question_of(file: Path) -> str:
    """Read the first line of a study without importing what it needs."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").splitlines()[0]


def all_sections() -> list[Section]:
    """Give the sections of all studies in the order of the page."""
    found = [section for name in study_files() for section in open_study(name).SECTIONS]
    return sorted(found, key=lambda section: section.place)


def add_collections(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Take a folder of collections in BEIR layout, and which of them: `names` unless others are given."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="collections in BEIR layout")
    parser.add_argument("--sets", type=listed, default=list(names), metavar="A,B", help="some of them")


def add_asked(parser: argparse.ArgumentParser, names: Sequence[str], name: str) -> None:
    """Take collections, the cluster that has them, and the file of the result."""
    add_collections(parser, names)
    parser.add_argument("--url")
    add_json(parser, name)


def add_training(parser: argparse.ArgumentParser, name: str) -> None:
    """Take the collections, the form of a study that trains, and what changes it."""
    add_collections(parser, [])
    parser.add_argument("--form", default="reduced")
    parser.add_argument("--work", type=Path, default=Path(f"{name}-work"), metavar="DIR")
    parser.add_argument("--backbone")
    parser.add_argument("--json", type=Path, metavar="FILE")


def listed(text: str) -> list[str]:
    """Read names as a,b."""
    return text.split(",")


def measure_sets(given: argparse.Namespace, measure: Callable[[str], Any], settings: Any = None) -> None:
    """Measure the collections that the file has not, measured by today's code, and write it after each."""
    record = current(given.json, settings) or {"sets": {}}
    told = {} if settings is None else {"settings": settings}
    for name in given.sets:
        if name not in record["sets"]:
            print(name, flush=True)
            record["sets"][name] = measure(name)
            write_result(given.json, record | {"machine": machine_record(), **told})


def add_json(parser: argparse.ArgumentParser, name: str) -> None:
    """Take the file of the result."""
    parser.add_argument("--json", type=Path, default=RESULTS / f"{name}.json", metavar="FILE")


def kept(file: Path, settings: Record | None) -> Record | None:
    """Read what was measured before, if that was with the same settings."""
    found: Record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return found if found.get("settings") == json.loads(json.dumps(settings)) else None


def current(file: Path, settings: Record | None = None) -> Record | None:
    """Read what was measured before, if that was with the same settings and by the code that ranks today."""
    found = kept(file, settings)
    codes = {one["ranking"] for one in (found or {}).get("code", [])}
    return found if codes == {ranking_code()} else None


def write_result(file: Path, record: Record) -> None:
    """Write a result with its machine and code; one that other code began names that as well."""
    now = {"commit": read_commit(), "ranking": ranking_code()}
    codes = [*(one for one in record.get("code", []) if one != now), now]
    write_json(file, {"machine": machine_record()} | record | {"code": codes})


@cache
def ranking_code() -> str:
    """Identify the code that ranks: 12 hex digits of its digest."""
    return code_digest(*RANKING)[:12]


def read_commit() -> str:
    """Name the commit of this checkout, with a `+` where hybridr differs from it; `none` outside of one."""
    if shutil.which("git") is None:
        return "none"
    git = ["git", "-C", str(HERE.parent)]
    commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "hybridr"], capture_output=True)
    return f"{commit.stdout.strip() or 'none'}{'+' * (changed.returncode == 1)}"


def read_result(name: str) -> Record | None:
    """Read `name`.json, or every file of the folder `name` by its name; None when there is neither."""
    if (RESULTS / name).is_dir():
        files = sorted((RESULTS / name).glob("*.json"))
        return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files} or None
    file = RESULTS / f"{name}.json"
    found: Record | None = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return found


def own_process(name: str, *arguments: object) -> list[str]:
    """Give the command that runs a study, or one part of it, in a process of its own."""
    return [sys.executable, str(HERE / "run.py"), name, *map(str, arguments)]


def machine_record(*packages: str) -> Record:
    """Name what measured figures depend on: processor, cores, hybridr's version and those of `packages`."""
    cpu, gpus = read_cpu(), read_gpus()
    versions = {name: metadata.version(name) for name in ("hybridr", *packages)}
    return {
        "cpu": cpu.model,
        **({"gpu": ", ".join(gpus)} if gpus else {}),
        "features": instruction_sets(cpu),
        "cores": os.cpu_count(),
        "versions": versions,
    }


def machine_of(machine: Record) -> str:
    """Name the machine."""
    size = f"{machine['cores']} cores" if "cores" in machine else f"threads: {machine['threads']}"
    return f"Machine: {machine.get('gpu') or machine['cpu']}, {size}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Render a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
