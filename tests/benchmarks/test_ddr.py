from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import paper
import run
from conditions import read_form
from studies import ddr
from support.tiny_study import write_source_and_target
from support.waiting import wait_until


def test_dr_versus_ddr_runs_every_row_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbone = write_source_and_target(tmp_path)
    options = {
        "--form": "smoke",
        "--work": tmp_path / "work",
        "--backbone": backbone,
        "--json": tmp_path / "ddr.json",
    }
    for kept in (False, True, False):
        if not kept:
            (tmp_path / "ddr.json").unlink(missing_ok=True)
        assert run.main(["ddr", str(tmp_path), *(str(one) for pair in options.items() for one in pair)]) == 0
    record = json.loads((tmp_path / "ddr.json").read_text())
    systems = record["targets"]["target"]["systems"]
    assert list(systems) == ["bm25", "as-is", "source", "dr", "ddr", "ddr-si", "ddr-df", "parallel", "both"]
    assert all(0 <= values["nDCG@10"] <= 1 for values in systems.values())
    assert record["targets"]["target"]["documents"] == 60
    found = capsys.readouterr()
    tables = found.out.split("| nDCG@10 | target (12 queries) |")
    assert len(tables) == 4
    assert tables[1] == tables[2] == tables[3]
    assert found.err.count("target: ddr ranked") == 2


def test_rows_of_several_seeds_go_on_from_their_results(tmp_path, capsys, monkeypatch) -> None:
    backbone = write_source_and_target(tmp_path)
    shutil.copytree(tmp_path / "target", tmp_path / "other")
    out = tmp_path / "results"
    command = ["ddr", str(tmp_path), "--form", "seeds", "--backbone", str(backbone)]
    command += ["--work", str(tmp_path / "work"), "--json", str(out)]
    form = read_form("ddr", "seeds")
    monkeypatch.setattr(ddr, "read_form", lambda *_: dict(form))
    form["seeds"] = [1]
    assert run.main([*command, "--jobs", "2"]) == 0
    first = {file.stem: json.loads(file.read_text()) for file in out.glob("*.json")}
    rows = first["target"]["rows"]
    # Others stand for these.
    absent = {"coco", "coco-si", "ddr-parallel", "source-distil", "ddr-distil", "few-32"}
    assert set(rows) == set(paper.ROWS) - absent
    assert set(first["other"]["rows"]) == {"bm25", "dr", "ddr", "ddr@fast"}
    vectors_of = {name: json.dumps(found[max(found)]["queries"]["dense"]) for name, found in rows.items()}
    assert len(set(vectors_of.values())) > len(rows) // 2, vectors_of  # rows are models of their own
    assert first["other"]["rows"]["ddr@fast"]["1"]["key"] != first["other"]["rows"]["ddr"]["1"]["key"]
    assert all(len(row["queries"]["hybrid"].split()) == 8 for of in rows.values() for row in of.values())
    assert {"steps", "seconds", "loss_end"} <= first["target"]["training"].popitem()[1].keys()
    capsys.readouterr()

    # On a fresh machine, with one row and a seed missing, only they and what they need are trained.
    shutil.rmtree(tmp_path / "work")
    complete = rows.pop("dr")["1"]
    (out / "target.json").write_text(json.dumps(first["target"]))
    form["seeds"], form["rounds"] = [1, 2], [["bm25", "dr"]]
    assert run.main(command) == 0
    assert capsys.readouterr().err.count("by seed") == 2
    assert {file.name for file in (tmp_path / "work" / "seeds").glob("seed-*")} == {"seed-1", "seed-2"}
    again = json.loads((out / "target.json").read_text())["rows"]
    assert (set(again["bm25"]), set(again["dr"]), set(again["ddr"])) == ({"0"}, {"1", "2"}, {"1"})
    assert again["dr"]["1"] == complete, "alone and beside others the same model is made"


def test_what_another_process_works_on_is_left_to_it(tmp_path: Path) -> None:
    with paper.claimed(tmp_path / "model"):
        with pytest.raises(paper.Taken), paper.claimed(tmp_path / "model"):
            pass
    with paper.claimed(tmp_path / "model"):
        pass


def test_a_command_that_is_stopped_leaves_no_worker_behind(tmp_path: Path) -> None:
    backbone = write_source_and_target(tmp_path)
    shutil.copytree(tmp_path / "target", tmp_path / "other")
    command = [
        sys.executable,
        run.__file__,
        "ddr",
        str(tmp_path),
        *"--form seeds --backbone".split(),
        str(backbone),
    ]
    command += ["--work", str(tmp_path / "work"), "--json", str(tmp_path / "out"), "--jobs", "2"]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: list((tmp_path / "out").glob("*.json")), 120)  # a row: both workers work
    running.terminate()
    assert running.wait(30) == 128 + signal.SIGTERM
    wait_until(lambda: not is_there(running.pid), 30)


def is_there(group: int) -> bool:
    """Return whether a process of a group is there."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
