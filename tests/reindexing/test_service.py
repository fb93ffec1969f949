"""`hybridr sync --every 30s --install`: a unit for systemd, without secrets."""

from __future__ import annotations

import configparser
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import hybridr_cli
from hybridr.errors import SettingsError
from hybridr.reindexing.service import systemd_unit


def test_the_unit_runs_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path / "a home"))
    read = configparser.ConfigParser(interpolation=None, strict=False)
    read.optionxform = str  # type: ignore[method-assign,assignment]
    read.read_string(systemd_unit("docs", "30s", tmp_path / "100% mine"))
    service = read["Service"]
    command = shlex.split(service["ExecStart"].replace("%%", "%"))
    assert command[1:] == ["sync", "docs", "--every", "30s", "--encoder", str(tmp_path / "100% mine")]
    assert shlex.split(service["Environment"]) == [f"HYBRIDR_HOME={tmp_path / 'a home'}"]
    assert service["Restart"] == "always"
    assert service["EnvironmentFile"] == "/etc/hybridr/docs.env"


@pytest.mark.parametrize(
    "index",
    [
        "a\nExecStartPre=/bin/evil",
        "../../evil",
        "%h",
        "${HYBRIDR_PASSWORD}",
        "$(HYBRIDR_PASSWORD)",
        "a b",
        "",
        "*",
    ],
)
def test_a_name_that_says_more_than_a_name_is_refused(index: str) -> None:
    with pytest.raises(SettingsError, match="a service cannot be named after"):
        systemd_unit(index, "30s")


def test_nothing_is_put_in_the_place_of_parts_of_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", "/home/$x%h")
    unit = systemd_unit("docs", "30s", Path("/models/${HYBRIDR_PASSWORD}%h"))
    assert "'/models/$${HYBRIDR_PASSWORD}%%h'" in unit
    assert "Environment='HYBRIDR_HOME=/home/$x%%h'" in unit
    for path in ("/models/a\nExecStartPre=/bin/evil", "/models/\x1b[2J"):
        with pytest.raises(SettingsError, match="characters that no unit can hold"):
            systemd_unit("docs", "30s", Path(path))


def test_the_command_prints_it_and_asks_no_cluster(capsys: Any) -> None:
    command = ["sync", "docs", "--url", "http://127.0.0.1:9", "--install"]
    assert hybridr_cli.main([*command, "--every", "30s", "--json"]) == 0
    assert "--every 30s" in json.loads(capsys.readouterr().out)["systemd"]
    assert hybridr_cli.main(command) == 2
    assert "--every 30s --install" in capsys.readouterr().err
