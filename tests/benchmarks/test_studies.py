"""The studies are found by their folder, each with what `run.py` and the page ask of it."""

from __future__ import annotations

import argparse
import json

import pytest

import report
import run
import study
from conditions import read_conditions, the_twelve

THROW_AWAY = '''"""Does a new file make a new study?"""

from study import RESULTS, Section


def options(parser):
    parser.add_argument("--times", type=int, default=1)


def measure(given):
    print("measured", given.times)


SECTIONS = [Section(5, "Thrown away", "thrown-away", "python benchmarks/run.py thrown-away", str)]
'''


@pytest.mark.parametrize("name", study.study_files())
def test_a_study_says_what_it_asks_and_takes(name: str) -> None:
    found = study.open_study(name)
    assert f"python benchmarks/run.py {name}" in (found.__doc__ or "")
    assert len(study.question_of(study.study_files()[name])) < 100
    found.options(argparse.ArgumentParser())
    assert callable(found.measure)
    for section in found.SECTIONS:
        assert f"python benchmarks/run.py {name}" in section.command
        assert callable(section.render)


def test_sections_have_places_of_their_own_and_cover_every_result() -> None:
    sections = study.all_sections()
    places = [section.place for section in sections]
    assert places == sorted(set(places))
    committed = {path.stem for path in study.RESULTS.iterdir() if path.name != "failed"}
    assert committed <= {section.result for section in sections}


def test_a_new_file_is_a_new_study(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "thrown_away.py").write_text(THROW_AWAY)
    import studies

    monkeypatch.setattr(study, "HERE", tmp_path)
    monkeypatch.setattr(studies, "__path__", [str(tmp_path / "studies")])
    assert run.main([]) == 0
    assert "Does a new file make a new study?" in capsys.readouterr().out
    assert run.main(["thrown-away", "--times", "3"]) == 0
    assert capsys.readouterr().out == "measured 3\n"
    assert "## Thrown away\n\n    python benchmarks/run.py thrown-away\n\nNot run" in report.render_page()


def test_the_report_checks_without_writing() -> None:
    assert run.main(["report", "--check"]) == 0


def test_a_result_names_the_commit_and_the_code_that_ranked(tmp_path, monkeypatch) -> None:
    """What other code measured is not gone on with; a result that other code began names both."""
    file, settings = tmp_path / "one.json", {"sizes": (1, 2)}
    study.write_result(file, {"settings": settings, "sets": {"a": 1}})
    found = study.current(file, settings)
    assert found["code"] == [{"commit": study.read_commit(), "ranking": study.ranking_code()}]
    assert study.current(file, {"sizes": (1,)}) is None
    monkeypatch.setattr(study, "ranking_code", lambda: "0" * 12)
    assert study.current(file, settings) is None
    assert study.kept(file, settings) == found
    study.write_result(file, found)
    written = json.loads(file.read_text())["code"]
    assert [code["ranking"] for code in written] == [found["code"][0]["ranking"], "0" * 12]
    assert study.current(file, settings) is None


def test_most_studies_run_on_the_twelve() -> None:
    parser = argparse.ArgumentParser()
    study.open_study("baselines").options(parser)
    assert parser.parse_args(["FOLDER"]).sets == the_twelve()
    assert len(the_twelve()) == 12
    assert set(the_twelve()) < set(read_conditions())
