"""A file that somebody named is opened by files/local.py, with a bound and never a pipe: held by syntax."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.client import read_password
from hybridr.cluster.retrievers.lexical import Template
from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import HybridrError, SettingsError
from hybridr.files.formats import read_corpus, read_lines, read_qrels, read_query_log, read_run, read_table
from hybridr.indexing.stages.bundle import count_rows
from hybridr.settings import read_config
from hybridr.training.judged import is_pickle
from support import house

OWN = {
    "configuration.py": "/proc, which this kernel writes",
    "families.py": "modules of hybridr itself",
    "local.py": "assets, which come with hybridr",
    "answering.py": "the list of what people ask elsewhere, which comes with hybridr",
    "loop.py": "/sys/fs/cgroup",
    "model_files.py": "the model card's template, which comes with hybridr",
    "machine.py": "/proc/cpuinfo",
    "demo.py": "the sources of this Python",
}
READING = {"read_text", "read_bytes"}
LIBRARIES = {"ParquetFile", "ZipFile"}
OPENERS = {"open", "gzip.open", "bz2.open", "lzma.open", "io.open", "codecs.open", "os.open"}


def raw_openings(tree: ast.Module) -> list[str]:
    """List the calls that open a file for reading without `require_regular`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [text for call in calls if "regular(" not in (text := ast.unparse(call)) and is_raw(call, text)]


def is_raw(call: ast.Call, text: str) -> bool:
    called = ast.unparse(call.func)
    name = called.rsplit(".", 1)[-1]
    modes = [one.value for one in (*call.args, *(key.value for key in call.keywords)) if is_text(one)]
    writes = any(set(mode) <= set("rwaxbt+") and set(mode) & set("wax") for mode in modes)
    if name in READING:
        return True
    if name in LIBRARIES:
        return not writes
    if called in OPENERS:
        return not writes
    # `path.open()`, `path.open("rb")`, `path.open(encoding=…)`; an encoder's own `open(threads)` is another.
    return name == "open" and not writes and (not call.args or bool(modes))


def is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@pytest.mark.attack(98)
def test_no_file_is_opened_but_by_the_one_place() -> None:
    raw = {
        path.name: found
        for folder in ("hybridr", "cli")
        for path in sorted((house.ROOT / folder).rglob("*.py"))
        if (found := raw_openings(house.tree_of(path)))
    }
    assert {name: found for name, found in raw.items() if name not in OWN} == {}
    assert raw.keys() == OWN.keys(), "a file that opens nothing any more leaves OWN"


@pytest.mark.parametrize(
    "form",
    [
        *("open(path)", "path.open()", "path.open('rb')", "path.open(encoding='utf-8')"),
        *("path.read_text(encoding='utf-8')", "(folder / 'x').read_bytes()", "gzip.open(file, 'rt')"),
        *("zipfile.ZipFile(path)", "pq.ParquetFile(file)"),
    ],
)
def test_every_raw_form_is_seen(form: str) -> None:
    assert raw_openings(ast.parse(form))


@pytest.mark.parametrize(
    "form",
    ["regular(path).open('rb')", "path.open('wb')", "encoder.open(threads)", "zipfile.ZipFile(path, 'w')"],
)
def test_no_checked_form_is_blamed(form: str) -> None:
    assert not raw_openings(ast.parse(form))


def with_password(file: Path) -> Any:
    return read_password(ClusterSettings(user="u", password_file=file))


READERS: dict[str, Callable[[Path], Any]] = {
    "password": with_password,
    "template": Template.read,
    "settings": read_config,
    "qrels": read_qrels,
    "run": read_run,
    "queries": read_query_log,
    "corpus": lambda file: list(read_corpus(file)),
    "lines": lambda file: list(read_lines(file)),
    "table": lambda file: list(read_table(file)),
    "scores": is_pickle,
    "part": lambda file: count_rows(file, "again"),
}


@pytest.mark.attack(98)
@pytest.mark.parametrize("what", READERS)
def test_a_pipe_and_a_device_are_refused_at_once(what: str, tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    for odd in (pipe, Path("/dev/zero")):
        with pytest.raises(HybridrError, match=r"a regular file is needed|no settings file"):
            READERS[what](odd)


@pytest.mark.attack(98)
def test_a_password_of_any_length_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "password"
    with file.open("wb") as sparse:
        sparse.truncate(4 << 30)
    with pytest.raises(SettingsError, match="has more than 1 MB"):
        with_password(file)
    file.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="is not UTF-8"):
        with_password(file)
