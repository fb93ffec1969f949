"""What the command line prints where: results to stdout, the rest to stderr."""

from __future__ import annotations

import io
import json
import sys

import pytest

from hybridr_cli.output import Output, remaining


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


def test_of_several_processes_one_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridr_cli import main

    assert main(["settings", "--json"]) == 0
    assert capsys.readouterr().out
    monkeypatch.setenv("RANK", "1")
    assert main(["settings", "--json"]) == 0
    assert main(["settings"]) == 0
    assert main(["inspect"]) == 2
    found = capsys.readouterr()
    assert found.out == ""
