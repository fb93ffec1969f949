"""Options come from the settings: each field once, with its name, type, default and help."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import typer
from pydantic import Field

import hybridr.settings
import hybridr_cli
from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import SettingsError
from hybridr.settings import TABLES, NoOption, Option, Stage
from hybridr.training.settings import RemSettings
from hybridr_cli.options import (
    PACKAGES,
    STAGES,
    Only,
    is_stage,
    split_annotation,
    typer_options,
    verb_parameters,
)
from hybridr_cli.session import Session
from hybridr_cli.verbs import Verb, app

UNUSED = {"map"}  # a stage that no verb has options for: file and environment only


class DemoSettings(Stage):
    table: ClassVar[str] = "demo"

    depth: int = Field(100, ge=1, description="candidates of each retriever")
    engine: Literal["lucene", "faiss"] = Field("lucene", description="what searches")
    alias: str | None = Field(None, description="alias to switch; None: NAME-hybridr")
    fields: tuple[str, ...] = Field((), description="text fields; empty: all of them")
    rate: float = 2e-5
    tuned: bool = Field(True, description="take what was tuned")
    dry_run: bool = False
    patience_s: Annotated[float, Option("--patience")] = 300.0
    m: NoOption[int] = 16


@dataclasses.dataclass(frozen=True)
class Page:
    k: Annotated[int, typer.Option(min=1, help="Number of hits.")] = 10
    folder: Annotated[Path | None, typer.Option(help="Where.")] = None


def every_verb(group: Any = app) -> list[Verb]:
    verbs = group.commands.values()
    return [found for one in verbs for found in ([one] if isinstance(one, Verb) else every_verb(one))]


def options_from(annotation: Any) -> dict[str, Any]:
    parameter = inspect.Parameter("p", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    return {option.name: option.annotation.__metadata__[0] for option in typer_options(parameter)}


def keeping(seen: list[Any]) -> Verb:
    """A verb that keeps what it is called with."""

    def keep(session: Session, settings: DemoSettings, page: Page) -> None:
        seen.append((settings, page))

    return Verb("demo", keep, cluster=False)


def called(*arguments: str) -> Any:
    """Give what a verb is called with."""
    seen: list[Any] = []
    keeping(seen)(list(arguments), standalone_mode=False)
    return seen[0]


@pytest.fixture(autouse=True)
def demo_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAGES, "DemoSettings", DemoSettings)
    monkeypatch.setattr(hybridr.settings, "TABLES", (*TABLES, DemoSettings.table))


def test_a_field_says_how_its_option_is_spelled() -> None:
    options = keeping([]).get_params(typer.Context(app))
    spelled = [" ".join(option.opts + option.secondary_opts) for option in options]
    settings = ["--depth", "--engine", "--alias", "--fields", "--rate", "--tuned --no-tuned", "--dry-run"]
    assert spelled == [
        *settings,
        "--patience",
        "--k",
        "--folder",
        "--json",
        "--quiet -q",
        "--config",
        "--help",
    ]


def test_help_and_default_are_those_of_the_field() -> None:
    options = options_from(DemoSettings)
    assert {name: option.show_default for name, option in options.items()} == {
        "depth": "100",
        "engine": "lucene",
        "alias": "NAME-hybridr",
        "fields": "all of them",
        "rate": "2e-05",
        "tuned": "yes",
        "dry_run": False,
        "patience_s": "300",
    }
    assert options["alias"].help == "Alias to switch."
    assert (options["engine"].metavar, options["fields"].metavar) == ("<lucene|faiss>", "<a,b,c>")
    assert options["depth"].metavar is None


def test_a_verb_may_take_some_fields_only_and_say_what_they_are_without() -> None:
    options = options_from(Annotated[DemoSettings, Only("depth", "m", alias="none", depth="as before")])
    assert list(options) == ["depth", "m"], "named, also a field that is no option elsewhere"
    assert options["depth"].show_default == "as before"


def test_a_verb_gets_settings_resolved_and_the_rest_as_given(monkeypatch, tmp_path) -> None:
    file = tmp_path / "hybridr.toml"
    file.write_text("[demo]\nm = 5\ndepth = 6\ntuned = false\n")
    monkeypatch.setenv("HYBRIDR_DEMO_DEPTH", "7")
    monkeypatch.setenv("HYBRIDR_DEMO_RATE", "0.5")
    given = ["--config", str(file), "--rate", "0.25", "--fields", "a, b", "--patience", "2", "--k", "3"]
    settings, page = called(*given)
    assert (settings.m, settings.depth, settings.rate, settings.tuned) == (5, 7, 0.25, False)
    assert (settings.fields, settings.patience_s, settings.dry_run) == (("a", "b"), 2.0, False)
    assert page == Page(3, None)
    settings, page = called(*given, "--tuned", "--dry-run", "--folder", "x")
    assert (settings.tuned, settings.dry_run, page.folder) == (True, True, Path("x"))
    with pytest.raises(SettingsError, match="engine: input should be 'lucene' or 'faiss'"):
        called("--engine", "other")


def test_what_a_verb_has_no_option_for_need_not_be_given(capsys: pytest.CaptureFixture[str]) -> None:
    seen = []

    def mine(session: Session, settings: Annotated[RemSettings, Only("mined")]) -> None:
        seen.append(settings.mined)

    Verb("mine", mine, cluster=False)(["--mined", "4"], standalone_mode=False)
    assert seen == [4]
    assert hybridr_cli.main(["load", "folder"]) == 2
    assert "[load] index: must be given" in capsys.readouterr().err


def test_every_field_is_an_option_or_says_that_it_is_none() -> None:
    found: dict[str, set[str]] = {stage.table: set() for stage in map(STAGES.__getitem__, PACKAGES)}
    for verb in every_verb():
        for parameter in verb_parameters(verb.function):
            kind, _ = split_annotation(parameter.annotation)
            if is_stage(kind):
                found[kind.table] |= {option.name for option in typer_options(parameter)}
        if verb.cluster:
            found["cluster"] |= options_from(ClusterSettings).keys()
    for stage in map(STAGES.__getitem__, PACKAGES):
        marked = {name for name, field in stage.model_fields.items() if Option(None) in field.metadata}
        rest = stage.model_fields.keys() - marked
        assert rest <= found[stage.table] or stage.table in UNUSED, stage
        assert not found[stage.table] or stage.table not in UNUSED


@pytest.mark.parametrize("verb", every_verb(), ids=lambda verb: verb.name)
def test_options_of_settings_are_documented(verb: Verb) -> None:
    for parameter in verb_parameters(verb.function):
        if is_stage(split_annotation(parameter.annotation)[0]):
            for name, option in options_from(parameter.annotation).items():
                assert re.match(r"[A-Z`/0-9].{8,}\.$", option.help or ""), (verb.name, name, option.help)
                assert "None" not in f"{option.help} {option.show_default}"


def test_help_shows_the_default_and_the_choices(capsys: pytest.CaptureFixture[str]) -> None:
    assert hybridr_cli.main(["reindex", "--help"]) == 0
    shown = " ".join(re.sub(r"[│\s]+", " ", capsys.readouterr().out).split())
    for expected in ("--alias", "<lucene|faiss>", "[default: (lucene)]", "[default: (NAME-hybridr)]"):
        assert expected in shown
    assert "--m " not in shown


def test_the_list_of_verbs_does_not_wait_for_settings() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from hybridr_cli import main; main(['--help']);"
        "sys.exit([m for m in ('pydantic', 'hybridr.settings', 'numpy') if m in sys.modules] != [])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("wrong", ["--size", "--top-k", "--limit"])
def test_the_size_of_a_page_by_another_name_is_refused_with_this_one(wrong: str, capsys) -> None:
    assert hybridr_cli.main(["search", "docs", "words", wrong, "3"]) == 2
    assert "-k 3" in " ".join("".join(capsys.readouterr()).split())


def test_members_of_families_are_read_for_the_help_alone(capsys: pytest.CaptureFixture[str]) -> None:
    verb = next(verb for verb in every_verb() if verb.name == "search")
    verb.make_options(members=False)
    fusion = next(option for option in verb.params if option.name == "fusion")
    assert "absolute" not in f"{fusion.help} {fusion.metavar}"
    assert hybridr_cli.main(["search", "--help"]) == 0
    assert "absolute: by" in re.sub(r"[\s│]+", " ", capsys.readouterr().out)
