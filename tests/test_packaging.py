"""What is shipped: the wheel and the image hold every package, and assets that a cluster takes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import hybridr
from hybridr.files.local import asset_path
from hybridr_cli import VERBS
from support.places import ROOT
from support.pythons import PROGRAM, run_python, run_without_torch
from support.wheels import built_wheel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.mark.parametrize("file", sorted(asset_path().rglob("*.json")), ids=lambda path: path.name)
def test_assets_are_valid_json(file: Path) -> None:
    assert isinstance(json.loads(file.read_text()), dict)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("built"))


def test_wheel_holds_every_module_and_asset(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "hybridr").rglob("*.py")}
    wanted |= {str(path.relative_to(ROOT / "cli")) for path in (ROOT / "cli").rglob("*.py")}
    wanted |= {f"hybridr/assets/{path.relative_to(asset_path())}" for path in asset_path().rglob("*.json")}
    wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "hybridr/serving/page/static").iterdir()}
    assert wanted <= names
    shipped = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert shipped == {"hybridr", "hybridr_cli"}, "the benchmarks stay in the checkout"
    assert {"hybridr/py.typed", "hybridr_cli/py.typed"} <= names


def test_the_wheel_of_the_source_distribution_works(wheel: Path, tmp_path: Path) -> None:
    """Installed apart from the checkout, it finds its own assets, families and version."""
    where = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(where), str(wheel)]
    subprocess.run(install, check=True)
    code = (
        "import hybridr; from hybridr_cli import main; from importlib import metadata;"
        "from hybridr.files.local import asset_path, load_asset;"
        "assert metadata.version('hybridr') == hybridr.__version__;"
        f"assert all(str(one).startswith({str(where)!r}) for one in (asset_path(), hybridr.__file__));"
        "assert load_asset('roles', 'search.json'); raise SystemExit(main(['models']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(where)}
    done = run_python(code, folder=tmp_path, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "minilm" in done.stdout.lower()


def test_the_version_stands_in_two_places_and_in_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == hybridr.__version__
    assert re.search(rf"^## \[{re.escape(project['version'])}\]", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_no_hint_installs_a_name_that_anybody_could_register() -> None:
    """No package index has hybridr: `pip install hybridr` would run the code of whoever takes the name."""
    files = [*(ROOT / "hybridr").rglob("*.py"), *(ROOT / "cli").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    files += [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "Makefile", *(ROOT / "opensearch").rglob("*")]
    named = re.compile(r"pip3? install[^`\n;&|]*?[\s\"']hybridr(?![-\w/])")
    found = {
        str(path.relative_to(ROOT)): hits
        for path in files
        if path.is_file() and (hits := named.findall(path.read_text(encoding="utf-8", errors="replace")))
    }
    assert found == {}
    for bad in ('pip install "hybridr[ray]"', "pip install -U hybridr", "pip install hybridr==0.2.0"):
        assert named.search(bad)
    assert not named.search('in a clone of hybridr: pip install ".[ray]"')


def test_the_image_is_built_from_every_package() -> None:
    copied = re.findall(r"^COPY (\S+) \1$", asset_path("Dockerfile").read_text(), re.M)
    let_through = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.M)
    packages = {"cli", "hybridr", "opensearch"}
    assert packages == set(copied)
    assert packages <= set(let_through)


def test_the_image_runs_as_nobody_of_the_host_and_says_whether_it_is_well() -> None:
    last = asset_path("Dockerfile").read_text().split("\nFROM ")[-1]
    assert re.search(r"^USER 10001$", last, re.M)
    assert re.search(r"^HEALTHCHECK .*\\\n +CMD \[", last, re.M)
    assert "COPY --from=build /opt/hybridr /opt/hybridr" in last, "only what the wheel brings"
    assert re.search(r"pip wheel .* && pip install .*\.whl$", asset_path("Dockerfile").read_text(), re.M)
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert services["sync"]["image"] == services["encoder"]["image"]
    assert services["sync"]["volumes"] == services["encoder"]["volumes"]
    assert services["sync"]["profiles"] == ["sync"]


def extras() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def test_readme_names_every_extra_and_the_verbs_that_need_it() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.*?) \|", (ROOT / "README.md").read_text().partition("## Install")[2], re.M
    )
    assert {name for name, _ in rows} == extras().keys() - {"", "clients", "dev"}
    named = {verb for _, verbs in rows for verb in re.findall(r"`([a-z]+)[ `]", verbs)}
    assert named <= set(VERBS)
    assert {"adapt", "dam", "rem", "node", "serve"} <= named


def test_no_more_than_the_extra_train_brings_torch() -> None:
    heavy = {"torch", "transformers", "peft", "accelerate", "sentence-transformers"}
    names = {extra: {re.split(r"[^\w-]", one)[0] for one in packages} for extra, packages in extras().items()}
    assert [extra for extra, packages in names.items() if packages & heavy] == ["train", "dev"]
    assert {"onnx", "onnxruntime", "huggingface-hub", "jgo", "rank-bm25", "threadpoolctl"} <= names[""], (
        "the demo adapts"
    )


def test_the_demo_has_what_it_needs_and_no_torch() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.findall(r'demo-\$\(STAMP\): WHAT = -e "(.*)"', makefile) == [".[embedded,serve]"]


def test_adapting_is_imported_without_torch() -> None:
    done = run_python(f"{PROGRAM}import hybridr.training.adaptation")
    assert done.returncode == 0, done.stderr


def test_verbs_that_need_torch_name_the_extra() -> None:
    commands = [
        "dam train --beir folder --base dam --out out",
        "rem train --dam dam --beir folder --out rem",
        "export --dam dam --out encoder",
    ]
    done = run_without_torch(*commands, several=True)
    assert done.stdout == "1\n1\n1\n", done.stderr
    assert done.stderr.count('hint: in a clone of hybridr: pip install ".[train]"') == 3
