"""The shape of the project: light imports, one-way imports, documented names and commands."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import hybridr
import hybridr_cli
from hybridr.errors import HybridrError
from hybridr.files.assets import asset_path

ROOT = Path(__file__).resolve().parents[1]
MODULES = sorted((ROOT / "hybridr").rglob("*.py"))
RACES = sorted((ROOT / "benchmarks" / "hybridr_bench").glob("*.py"))

FLOORS = [
    {"errors", "records", "progress", "folders"},
    {"settings", "manifest", "assets", "failures"},
    {"texts", "configuration"},
    {"fusion", "feedback", "languages", "pydocs", "formats", "vectors", "passages"},
    {"bodies", "hits", "measures", "pictures", "staging", "losses", "significance", "tables", "backends"},
    {"encoder", "node", "lexical", "model_card"},
    {"retriever", "probes", "packaged", "published", "cluster", "machine", "calibration", "query_map"},
    {"special_tokens", "graphs", "parity", "quantization", "trials", "map_learning", "label_free"},
    {"assembly", "training", "model_files"},
    {"masked_lm", "relevance"},
    {"exporting", "reading", "writing"},
    {"sampling", "destinations", "text_fields", "query_terms", "similarity"},
    {"inspection", "loading", "known_encoders", "pacing"},
    {"adaptation", "overlap", "shift"},
    {"stored", "expansion", "preflight", "remote_models", "pipelines"},
    {"tuned", "local_models"},
    {"jobs", "retrieval", "planning", "verification", "deployments"},
    {"encoding", "deploying", "rewriting", "diagnosis", "map_fitting"},
    {"filling"},
    {"in_place"},
    {"renewal", "returning"},
    {"syncing"},
    {"standing"},
    {"reindexing", "evaluation", "serving", "completion"},
    {"reports"},
    {"systems", "tuning"},
    {"demonstration"},
]


def test_public_names_are_complete_and_light() -> None:
    names = {name for name in hybridr.__all__}
    assert sorted(names) == dir(hybridr)
    for name in names:
        assert getattr(hybridr, name).__doc__


def test_import_is_fast_and_leaves_torch_alone() -> None:
    code = (
        "import sys, time; t = time.perf_counter(); import hybridr, hybridr_cli;"
        "heavy = ('torch', 'transformers', 'peft', 'onnxruntime', 'openvino');"
        "print(time.perf_counter() - t, [m for m in heavy if m in sys.modules])"
    )
    answers = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split(
            " ", 1
        )
        for _ in range(3)
    ]
    assert all(heavy.strip() == "[]" for _, heavy in answers)
    code = "import time; t = time.perf_counter(); import hybridr; print(time.perf_counter() - t)"
    seconds = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(seconds) < 0.3


def test_help_is_fast() -> None:
    def timed() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-m", "hybridr_cli", "--help"], capture_output=True, check=True)
        return time.perf_counter() - started

    assert min(timed() for _ in range(4)) < 0.5


def test_imports_go_one_way() -> None:
    floor_of = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    rooms = {path.relative_to(ROOT / "hybridr").parts[0].removesuffix(".py") for path in MODULES}
    assert rooms - {"__init__"} <= floor_of.keys(), "a module without a floor"
    wrong = []
    for path in MODULES:
        room = path.relative_to(ROOT / "hybridr").parts[0].removesuffix(".py")
        depth = len(path.relative_to(ROOT / "hybridr").parts)
        for imported in top_level_imports(path, depth):
            if room != "__init__" and imported != room and floor_of[imported] >= floor_of[room]:
                wrong.append(f"{room} imports {imported}")
    assert not wrong


def top_level_imports(path: Path, depth: int) -> list[str]:
    """List hybridr's rooms that a module imports when it is itself imported."""
    found = []
    for statement in ast.parse(path.read_text()).body:
        if isinstance(statement, ast.ImportFrom) and statement.level == depth:
            found += (
                [statement.module.split(".")[0]] if statement.module else [a.name for a in statement.names]
            )
    return found


def test_library_never_prints_or_exits() -> None:
    for path in [*MODULES, *RACES]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("print", "exit", "quit"), path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("sys", "exit"), path


def test_one_module_imports_the_client() -> None:
    users = [
        path.name
        for path in [*MODULES, *RACES]
        if re.search(r"^\s*(from|import) opensearchpy", path.read_text(), re.M)
    ]
    assert users == ["opensearch.py"]


def test_every_error_is_in_the_tree() -> None:
    def below(kind: type[HybridrError]) -> list[str]:
        return [kind.__name__, *(name for child in kind.__subclasses__() for name in below(child))]

    drawn = re.findall(r"^[│├└─ ]*(\w+)  ", sys.modules["hybridr.errors"].__doc__ or "", re.M)
    assert sorted(set(below(HybridrError))) == sorted(drawn)


@pytest.mark.parametrize("name", hybridr_cli.VERBS)
def test_every_command_has_help_and_is_in_the_readme(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hybridr_cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--json" in shown or "COMMAND" in shown
    assert re.search(rf"`hybridr {name}`", (ROOT / "README.md").read_text())
    assert re.search(rf"^\| `hybridr {name}[ `]", (ROOT / "docs" / "commands.md").read_text(), re.M)


def test_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert hybridr_cli.main(["search", "--no-such-option"]) == 2
    assert "No such option" in capsys.readouterr().err


@pytest.mark.parametrize("file", sorted(asset_path().rglob("*.json")), ids=lambda path: path.name)
def test_assets_are_valid_json(file: Path) -> None:
    assert isinstance(json.loads(file.read_text()), dict)


def test_wheel_holds_every_module_and_asset(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    wanted = {str(path.relative_to(ROOT)) for path in MODULES}
    wanted |= {str(path.relative_to(ROOT / "benchmarks")) for path in RACES}
    wanted |= {str(path.relative_to(ROOT / "cli")) for path in (ROOT / "cli").rglob("*.py")}
    wanted |= {f"hybridr/assets/{path.relative_to(asset_path())}" for path in asset_path().rglob("*.json")}
    assert wanted <= names
    assert {"hybridr/py.typed", "hybridr_cli/py.typed"} <= names


def test_the_image_is_built_from_every_package() -> None:
    copied = re.findall(r"^COPY (\S+) \1$", asset_path("Dockerfile").read_text(), re.M)
    let_through = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M)
    packages = {"benchmarks/hybridr_bench", "cli", "hybridr", "opensearch"}
    assert packages == set(copied)
    assert packages <= set(let_through)
