"""Every verb has help and stands in the documents; what is not known is a usage error."""

from __future__ import annotations

import re
from importlib.metadata import version

import pytest

import hybridr_cli
from support.places import ROOT


@pytest.mark.parametrize("name", hybridr_cli.VERBS)
def test_every_command_has_help_and_is_on_its_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert hybridr_cli.main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--json" in shown or "COMMAND" in shown
    assert re.search(rf"^\| `hybridr {name}[ `]", (ROOT / "docs" / "commands.md").read_text(), re.M)


def test_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert hybridr_cli.main(["search", "--no-such-option"]) == 2
    assert "No such option" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert hybridr_cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"hybridr {version('hybridr')}\n"
    assert hybridr_cli.main(["--help"]) == 0
    assert "--version" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("rules docs list --pin d1", "--pin is for: hybridr rules docs add RULE"),
        ("rules docs remove sale --text x", "--text is for: hybridr rules docs add RULE"),
        ("rules docs import FILE --version 2", "--version is for list and export"),
        ("rules docs export FILE --by me", "--by does not go with export"),
        ("rules docs list sale", "list takes no RULE, 'sale' was given"),
        ("tune docs --reset --judgements", "--judgements does not go with --reset"),
        ("learn docs --forget --beir judged", "--beir does not go with --forget"),
        ("experiment promote docs --undo --winner b", "--winner does not go with --undo"),
        ("deploy docs --explain FILE --ingest", "--ingest does not go with --explain"),
        ("evaluate --run FILE --judgements", "--judgements needs an INDEX"),
        ("evaluate --run FILE --encoder minilm", "--encoder needs an INDEX"),
        ("serve --proxy lexical --port 0", "--proxy needs --index"),
        ("serve --ubi --port 0", "--ubi needs --index"),
        ("serve --query-template FILE --port 0", "--query-template needs --index"),
        ("mcp docs --port 0", "--port needs --http"),
        ("shadow docs --recall all", "--recall needs --queries"),
        ("shadow docs --encoder minilm", "--encoder needs --queries"),
        ("tune docs --reset --encoder minilm", "--encoder does not go with --reset"),
        ("tune docs --reset --query-log FILE", "--query-log does not go with --reset"),
        ("learn docs --forget --endpoint http://127.0.0.1", "--endpoint does not go with --forget"),
        ("learn docs --beir judged --model judge", "--model needs --endpoint"),
        ("deploy docs --explain FILE --way neural", "--way does not go with --explain"),
        ("deploy docs --recall all", "--recall needs --way transparent"),
        ("evaluate --run FILE --systems bm25", "--systems needs an INDEX"),
        ("evaluate docs --beir judged --at-most 0", "--at-most needs --against"),
        ("evaluate --run FILE --split dev", "--split needs --beir or --judgements"),
        ("search docs basket --request --at-least 0", "--at-least does not go with --request"),
        ("search docs basket --request --explain", "--explain does not go with --request"),
        ("verify docs --queries FILE", "--queries is for --recall"),
        ("node stop --all --name mine", "--name does not go with --all"),
    ],
)
def test_an_option_without_effect_is_a_usage_error(command, message, capsys, monkeypatch):
    """They were ignored: rules were listed, and a server without an index began to serve."""
    monkeypatch.setenv("HYBRIDR_URL", "http://127.0.0.1:9")
    assert hybridr_cli.main(command.split()) == 2
    assert f"error: {message}" in capsys.readouterr().err


def test_small_numbers_of_settings_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """The learning rate was shown as 0.0000."""
    assert hybridr_cli.main(["settings"]) == 0
    assert re.search(r"^dam\.learning_rate +2e-05 +default$", capsys.readouterr().out, re.M)
