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
