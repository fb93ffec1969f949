"""What the manual says to type is what there is: commands and options, Python, JSON; and the site builds."""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from hybridr_cli import commands as modules
from hybridr_cli.verbs import app
from support.places import ROOT

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
TYPED = re.compile(r"^(?:    |\$ )((?:\w+=\S+ )*hybridr .*(?:\\\n.*)*)", re.M)
PLACEHOLDER = re.compile(r"^[A-Z][A-Z-]*$|…")
for one in pkgutil.iter_modules(modules.__path__):
    importlib.import_module(f"{modules.__name__}.{one.name}")
MENTIONED = 100  # commands in the manual, at least: or the pattern reads none of them


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of what a page says to type, less what it says beside it and behind a pipe."""
    for typed in TYPED.findall(page.read_text(encoding="utf-8")):
        line = re.sub(r"\s*\\\n\s*", " ", typed) if "\\\n" in typed else re.split(r"\s{3,}", typed)[0]
        yield shlex.split(re.split(r" [|&]+(?:\s|$)", line.rstrip("\\"))[0].partition("hybridr ")[2])


def options_of(words: list[str]) -> set[str]:
    """Give the options that the verb of a command takes. Raises KeyError for a verb that there is not."""
    found: Any = app
    for word in words:
        if not hasattr(found, "commands"):
            break
        found = found.commands[word]
    options = found.get_params(click.Context(found))
    return {name for option in options for name in [*option.opts, *option.secondary_opts]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_exists(page: Path) -> None:
    for words in commands(page):
        if not PLACEHOLDER.match(words[0]):
            given = {word.split("=")[0] for word in words if re.match(r"--?[a-z]", word)}
            unknown = given - options_of([word for word in words if not word.startswith("-")])
            assert not unknown, f"hybridr {' '.join(words)}: {unknown}"


def test_the_manual_holds_commands() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) >= MENTIONED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_and_json_of_a_page_can_be_read(page: Path) -> None:
    for kind, block in re.findall(
        r"^```(python|json)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S
    ):
        if kind == "json":
            json.loads(block)
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hybridr"):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "hybridr":
                assert hasattr(importlib.import_module("hybridr"), node.attr), ast.unparse(node)


def test_the_site_builds_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    shutil.copytree(DOCS, pages / "docs")
    (pages / "benchmarks").mkdir()
    for name in ("README.md", "SECURITY.md", "benchmarks/README.md"):
        shutil.copyfile(ROOT / name, pages / name)
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("build/pages", str(pages))
    (tmp_path / "mkdocs.yml").write_text(
        config.replace("build/site", str(tmp_path / "site")), encoding="utf-8"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-q", "-f", str(tmp_path / "mkdocs.yml")],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "hybridr reindex" in (tmp_path / "site" / "docs" / "reindex" / "index.html").read_text(
        encoding="utf-8"
    )
