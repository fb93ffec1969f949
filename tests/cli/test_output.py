"""What the command line prints where: results to stdout, the rest to stderr."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr_cli.output import Output, remaining
from support.odd_ids import FORGING
from support.places import ROOT


def test_tables_and_progress_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.progress("read", 0, 10)
    out.progress("read", 10, 10)
    out.table(("a", "b"), [("x [bold]y[/bold]", 0.5)])
    out.result({"not": "printed"})
    shown = capsys.readouterr()
    assert "read: 10/10" in shown.err
    assert shown.out.split() == ["a", "b", "x", "[bold]y[/bold]", "0.5000"]


def test_json_is_one_object_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    out = Output(as_json=True)
    out.progress("read", 1, 2)
    out.note("beside")
    out.line("for people")
    out.table(("a",), [(1,)])
    out.result({"value": 1})
    shown = capsys.readouterr()
    assert (json.loads(shown.out), shown.err) == ({"value": 1}, "")


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    out = Output()
    out.progress("encode", 1, 4, note="loss 0.5")
    out.progress("encode", 4, 4)
    out.close()
    assert "encode" in screen.getvalue()
    assert "4/4" in screen.getvalue()


def test_time_left() -> None:
    assert remaining(25, 100, 30.0) == ", 1:30 left"
    assert remaining(0, 100, 30.0) == ""


def test_of_several_processes_one_speaks(capsys, monkeypatch) -> None:
    from hybridr_cli import main

    assert main(["settings", "--json"]) == 0
    assert capsys.readouterr().out
    monkeypatch.setenv("RANK", "1")
    assert main(["settings", "--json"]) == 0
    assert main(["settings"]) == 0
    assert main(["inspect"]) == 2
    assert capsys.readouterr().out == ""


OBEYED = "\x1b[2J\x1b]52;c;aGk=\x07\x9b31m\x00\x7f\u202eevil\u2066\ud800\r\x08"


@pytest.mark.attack(41)
@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_that_a_terminal_obeys_is_printed(as_json: bool, capsys, monkeypatch) -> None:
    out = Output(as_json=as_json)
    out.line(f"text {OBEYED}")
    out.table((f"a{OBEYED}",), [(f"cell {OBEYED}",)], title=OBEYED)
    out.requests([{"method": "GET", "path": f"/{OBEYED}", "body": {"query": OBEYED}}])
    out.result({f"key {OBEYED}": [OBEYED]})
    out.note(OBEYED)
    out.warning(OBEYED)
    out.progress(OBEYED, 1, 1, note=OBEYED)
    out.error(OBEYED, OBEYED)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    out.progress(f"bar {OBEYED} [link=http://x]", 1, 1, note=OBEYED)
    shown = capsys.readouterr()
    for sign in set(OBEYED) - set("[]52;c:aGk=J31mevil "):
        assert sign not in shown.out
        assert sign not in shown.err.replace("\x1b[", "").replace("\r", "") or sign in "\x1b\r"
    assert OBEYED not in shown.err
    if as_json:
        assert json.loads(shown.out) == {f"key {OBEYED}": [OBEYED]}
    else:
        assert "text \\u001b[2J" in shown.out


@pytest.mark.parametrize("way", [{"as_json": True}, {"quiet": True}, {}])
def test_warnings_are_never_left_out(way: dict[str, bool], capsys: pytest.CaptureFixture[str]) -> None:
    Output(**way).warning("warning: look out")
    assert capsys.readouterr() == ("", "warning: look out\n")


@pytest.mark.attack(128)
@pytest.mark.parametrize("doc_id", [name for name in FORGING if name.strip()])
def test_no_id_writes_a_line_of_its_own(doc_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = Output()
    out.table(("rank", "document"), [(1, doc_id), (2, "h1")])
    out.line(f"the nearest is {doc_id}")
    out.requests([{"method": "GET", "path": "/", "body": {"ids": [doc_id]}}])
    assert len(capsys.readouterr().out.splitlines()) == 3 + 1 + 1 + 5
    out.warning(f"warning: {doc_id}")
    out.error(f"no document {doc_id}", f"look for {doc_id}\nhint: sudo reboot")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith("  ")] == ["warning", "error", "hint"]


def unquoted_arguments(path: Path) -> Iterator[str]:
    """Yield the values in the f-strings of a file that stand in a command of hybridr and are not quoted."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            text = ""
            for part in node.values:
                if not isinstance(part, ast.FormattedValue):
                    text += ast.literal_eval(part)
                    continue
                value = ast.unparse(part.value)
                if re.search(r"hybridr [a-z][^;,:(`]*$", text) and not value.startswith("quote("):
                    yield f"{path.name}:{node.lineno} {value}"
                text += "VALUE"


@pytest.mark.parametrize("folder", ["cli", "hybridr/encoders", "hybridr/training", "hybridr/demo"])
def test_commands_to_run_next_quote_their_arguments(folder: str) -> None:
    """Names of indices may hold `$` and `&`, paths may hold spaces."""
    constants = ("INDEX", "objective", "modules", "dam_folder")  # the last two are quoted already
    found = [line for path in sorted((ROOT / folder).rglob("*.py")) for line in unquoted_arguments(path)]
    assert [line for line in found if not line.endswith(constants)] == []
