"""Settings: precedence, origin, clear refusals, and secrets that stay secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridr.cluster.remote_models import trusted_pattern
from hybridr.cluster.settings import ClusterSettings, LoadSettings
from hybridr.errors import SettingsError
from hybridr.indexing.settings import ReindexSettings
from hybridr.search.settings import SearchSettings
from hybridr.serving.settings import DeploySettings
from hybridr.settings import TABLES, resolve_stage, resolved_values
from hybridr.training.settings import AdaptSettings
from hybridr_cli import main
from hybridr_cli.options import PACKAGES, STAGES


def test_flag_beats_environment_beats_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "hybridr.toml"
    file.write_text(
        '[search]\ndepth = 50\nfusion = "pipeline"\ndense_weight = 0.4\n[cluster]\nurl = "http://file"\n'
    )
    monkeypatch.setenv("HYBRIDR_SEARCH_DEPTH", "60")
    monkeypatch.setenv("HYBRIDR_SEARCH_FUSION", "absolute")
    monkeypatch.setenv("HYBRIDR_URL", "http://environment")
    settings, origin = resolve_stage(SearchSettings, {"depth": 70, "normalization": None}, config=file)
    assert (settings.depth, settings.fusion, settings.dense_weight) == (70, "absolute", 0.4)
    assert (origin["depth"], origin["fusion"]) == ("flag", "environment")
    assert (origin["dense_weight"], origin["normalization"]) == ("file", "default")
    assert resolve_stage(ClusterSettings, {}, config=file)[0].url == "http://environment"


def test_lists_come_from_commas() -> None:
    assert resolve_stage(ReindexSettings, {"fields": "title, body"})[0].fields == ("title", "body")
    assert resolve_stage(SearchSettings, {"signals": "phrases,token_bits"})[0].signals == (
        "phrases",
        "token_bits",
    )


@pytest.mark.attack(70)
def test_secrets_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDR_PASSWORD", "hunter2hunter2")
    settings, _ = resolve_stage(ClusterSettings, {"user": "me"})
    assert settings.password.get_secret_value() == "hunter2hunter2"
    monkeypatch.setenv("HYBRIDR_URL", "https://me:hunter2hunter2@host:9200")
    assert "hunter2" not in str(resolved_values(ClusterSettings))
    assert "hunter2" not in repr(settings) + str(settings.record()) + str(resolved_values(ClusterSettings))


def test_no_message_shows_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A password of digits without quotes in the file was repeated in the error."""
    for table, name, value in (
        ("cluster", "password", "424242"),
        ("serve", "token", "424242"),
        ("assessor", "endpoint", '"http://eve:424242@judge/v1"'),
    ):
        file = tmp_path / "hybridr.toml"
        file.write_text(f"[{table}]\n{name} = {value}\n")
        assert main(["settings", "--config", str(file)]) == 2
        said = capsys.readouterr()
        assert f"[{table}] {name}: " in said.err
        assert "424242" not in said.out + said.err
    server = "http://eve:424242@here:8080"
    assert DeploySettings(server=server).record()["server"] == "http://***@here:8080"
    with pytest.raises(SettingsError, match=r"'http://\*\*\*@here:8080' is not a server's address"):
        trusted_pattern(server)


def test_settings_cannot_change_and_refuse_nonsense() -> None:
    with pytest.raises(SettingsError, match="unknown setting 'stepz', did you mean 'steps'"):
        AdaptSettings(stepz=3)  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"strength: input should be less than or equal to 1, got 1.5"):
        AdaptSettings(strength=1.5)
    with pytest.raises(SettingsError, match="unknown setting 'slice'"):
        ReindexSettings(slice="1/2")  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match="index"):
        LoadSettings(index="")


def test_every_stage_can_be_listed() -> None:
    names = [name for stage in PACKAGES for name, _, _ in resolved_values(STAGES[stage])]
    assert len(names) == len(set(names))
    assert {"cluster.url", "adapt.strength", "reindex.engine", "search.depth", "node.heap"} <= set(names)


def test_every_stage_may_stand_in_the_file() -> None:
    assert {STAGES[stage].table.partition(".")[0] for stage in PACKAGES} == set(TABLES)


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hybridr.toml"
    file.write_text("[evaluation]\ndepth = 7\n")
    with pytest.raises(SettingsError, match=r"unknown table \[evaluation\]"):
        resolve_stage(SearchSettings, {}, config=file)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no settings file at .*none.toml"):
        resolve_stage(SearchSettings, {}, config=tmp_path / "none.toml")


def test_a_fusion_that_there_is_not_is_refused_with_those_that_there_are(tmp_path: Path) -> None:
    file = tmp_path / "hybridr.toml"
    file.write_text('[search]\nfusion = "nothing"\n')
    with pytest.raises(SettingsError, match="'auto', 'absolute' or 'pipeline'"):
        resolve_stage(SearchSettings, {}, config=file)
