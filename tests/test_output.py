"""What the command line prints where: results to stdout, the rest to stderr."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time

import pytest

from hybridr.cluster.writing import Action, by_bytes, encoded
from hybridr.reindexing.filling import prefetched
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


def test_settings_verb_prints_json() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hybridr_cli", "settings", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["reindex.engine"] == {"value": "lucene", "from": "default"}
    assert done.stderr == ""


def test_prefetched_keeps_order_raises_and_stops() -> None:
    assert list(prefetched(iter(range(50)))) == list(range(50))

    def failing() -> object:
        yield 1
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        list(prefetched(failing()))
    made: list[int] = []

    def endless() -> object:
        while True:
            made.append(1)
            yield 1

    for _ in prefetched(endless(), size=2):
        break
    time.sleep(0.3)
    count = len(made)
    time.sleep(0.3)
    assert len(made) == count <= 5
    assert threading.active_count() < 20


def test_bulk_bodies_are_cut_by_bytes() -> None:
    actions = [Action(str(number), b"x" * 40) for number in range(5)] + [Action("big", b"y" * 500)]
    assert [len(group) for group in by_bytes(actions, 100)] == [2, 2, 1, 1]
    assert json.loads(encoded({"n": 2**70, "s": "\ud800"})) == {"n": 2**70, "s": "\ud800"}


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
