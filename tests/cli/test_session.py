"""Where credentials go, and what is said of it."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import SettingsError
from hybridr.search.settings import SearchSettings
from hybridr.serving.settings import DeploySettings
from hybridr.settings import foreign_config_warning, resolve_stage, resolved_values
from hybridr_cli import main
from hybridr_cli.session import run
from support.hostile_cluster import INDEX, ROOT, Given, hostile


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that somebody else filled, and a user with a password."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYBRIDR_USER", "me")
    monkeypatch.setenv("HYBRIDR_PASSWORD", "hunter2")
    return tmp_path


def written(folder: Path, **cluster: Any) -> Path:
    """Write a settings file for the cluster."""
    file = folder / "hybridr.toml"
    values = "".join(f"{name} = {json.dumps(value)}\n" for name, value in cluster.items())
    file.write_text(f"[cluster]\n{values}", encoding="utf-8")
    return file


def test_a_password_does_not_go_where_the_folder_says(folder: Path, capsys) -> None:
    with hostile({"/": Given(ROOT), "/docs": Given(INDEX)}) as (url, asked):
        written(folder, url=url)
        assert main(["status", "docs"]) == 2
        said = capsys.readouterr().err
        assert "./hybridr.toml sets url of [cluster], but password is from elsewhere" in said
        assert "hint: --config hybridr.toml" in said
        assert asked == []
        main(["status", "docs", "--config", "hybridr.toml"])
        assert asked[0][1] is not None


@pytest.mark.attack(66)
@pytest.mark.parametrize(
    ("file", "flags", "environment", "refused"),
    [
        ({"url": "https://evil"}, {}, {}, "url"),
        ({"verify_certs": False}, {}, {"HYBRIDR_URL": "https://mine"}, "verify_certs"),
        ({"ca_certs": "ca.pem"}, {"url": "https://mine"}, {}, "ca_certs"),
        ({"url": "https://evil", "verify_certs": False}, {"password_file": "p"}, {}, "url and verify_certs"),
        ({"url": "https://evil", "aws_region": "eu-west-1"}, {}, {"HYBRIDR_PASSWORD": ""}, "url"),
        ({"url": "https://evil", "password_file": "/etc/hostname"}, {}, {"HYBRIDR_PASSWORD": ""}, "url"),
        ({"url": "https://evil", "password_file": "../key"}, {}, {"HYBRIDR_PASSWORD": ""}, "url"),
        ({"url": "https://evil", "client_key": "../key"}, {}, {"HYBRIDR_PASSWORD": ""}, "url"),
        ({"url": "https://evil", "password_file": "link"}, {}, {"HYBRIDR_PASSWORD": ""}, "url"),
        ({"url": "https://mine", "password_file": "key"}, {}, {"HYBRIDR_PASSWORD": ""}, None),
        ({"url": "https://mine", "password": "of the file"}, {}, {"HYBRIDR_PASSWORD": ""}, None),
        ({"url": "https://evil"}, {"url": "https://mine"}, {}, None),
        ({"url": "https://evil"}, {}, {"HYBRIDR_URL": "https://mine"}, None),
        ({"timeout_s": 5.0}, {}, {"HYBRIDR_URL": "https://mine"}, None),
        ({"url": "https://any"}, {}, {"HYBRIDR_PASSWORD": ""}, None),
    ],
    ids=range(15),
)
def test_credentials_go_only_where_their_own_layer_says(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: dict[str, Any],
    flags: dict[str, Any],
    environment: dict[str, str],
    refused: str | None,
) -> None:
    (folder / "link").symlink_to("/etc/hostname")
    path = written(folder, **file)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert resolve_stage(ClusterSettings, flags, config=path)  # a file that somebody names is his word
    assert resolved_values(ClusterSettings)  # what is set is shown all the same
    if refused is None:
        assert resolve_stage(ClusterSettings, flags)
        return
    with pytest.raises(SettingsError, match=rf"hybridr.toml sets {refused} of \[cluster\], but .* elsewhere"):
        resolve_stage(ClusterSettings, flags)


def test_a_server_s_token_stays_with_its_own_layer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "hybridr.toml").write_text('[deploy]\nserver = "http://evil:8080"\n')
    assert resolve_stage(DeploySettings, {})[0].server == "http://evil:8080"
    monkeypatch.setenv("HYBRIDR_DEPLOY_TOKEN", "hunter2")
    with pytest.raises(SettingsError, match=r"sets server of \[deploy\], but token"):
        resolve_stage(DeploySettings, {})


@pytest.mark.attack(66)
@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="files have no owner here")
def test_settings_of_somebody_else_are_left_out_with_a_word(folder: Path, monkeypatch, capsys) -> None:
    (folder / "hybridr.toml").write_text("[search]\ndepth = 77\n")
    assert resolve_stage(SearchSettings, {})[0].depth == 77
    assert foreign_config_warning() is None
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(folder / "hybridr.toml").st_uid + 12_345)
    monkeypatch.setattr("hybridr.settings.TRUSTED_OWNERS", ())
    assert resolve_stage(SearchSettings, {})[0].depth == SearchSettings().depth
    assert main(["settings", "--json"]) == 0
    shown = capsys.readouterr()
    assert '"search.depth": {"value": 77' not in shown.out
    assert f"{folder / 'hybridr.toml'} belongs to another user" in shown.err
    assert main(["settings", "--json", "--config", "hybridr.toml"]) == 0
    shown = capsys.readouterr()
    assert '"search.depth": {"value": 77' in shown.out
    assert shown.err == ""


@pytest.mark.attack(67)
@pytest.mark.attack(68)
@pytest.mark.parametrize("quiet", ["--json", "--quiet", None])
def test_a_password_in_clear_and_an_unchecked_certificate_are_always_said(folder, capsys, quiet):
    with hostile({"/": Given(ROOT), "/docs": Given(INDEX)}) as (url, _):
        arguments = ["status", "docs", "--url", url, "--no-verify-certs"]
        main([*arguments, *([quiet] if quiet else [])])
    said = capsys.readouterr().err
    assert said.count(f"warning: the password goes to {url} in clear") == 1
    assert said.count("warning: the cluster's certificate is not checked") == 1
    assert "hunter2" not in said


def test_an_api_key_in_clear_is_said_too(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYBRIDR_USER", raising=False)
    monkeypatch.delenv("HYBRIDR_PASSWORD", raising=False)
    monkeypatch.setenv("HYBRIDR_API_KEY", "hunter3")
    with hostile({"/": Given(ROOT), "/docs": Given(INDEX)}) as (url, _):
        main(["status", "docs", "--url", url])
    said = capsys.readouterr().err
    assert said.count(f"warning: the API key goes to {url} in clear") == 1
    assert "hunter3" not in said


@pytest.mark.parametrize(
    "refused", ["", "/proc/nowhere/file", "/dev/full"], ids=["no space", "no place", "a full disk"]
)
def test_a_file_that_cannot_be_written_is_one_line(capsys: pytest.CaptureFixture[str], refused: str) -> None:
    def verb(**_: object) -> None:
        if not refused:
            raise OSError(errno.ENOSPC, "No space left on device")
        Path(refused).write_text("text" * 10_000)

    assert run(verb, []) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "hint: free some space, or choose a place" in said
    assert "Traceback" not in said
